"""YAML that people wrote: what cannot be read is said in words."""

from __future__ import annotations

import pytest

from crmctl.models import yamltext


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 2026-02-30", "a date or a number that does not exist"),
        ("a: " + "[" * 5_000, "stand too deep in each other"),
        ("a: [1, 2", "line 1, column 9"),
        ("a: \x00", "a character that no text holds"),
        ("!!python/object:os.system x", "line 1, column 1"),
    ],
)
def test_what_cannot_be_read_is_said_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        yamltext.loads(text)
    assert type(refused.value) is ValueError


def test_the_rest_is_plain_values() -> None:
    assert yamltext.loads("a: [1, x]\nb: {c: null}") == {"a": [1, "x"], "b": {"c": None}}
