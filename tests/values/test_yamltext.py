"""YAML written by people: errors explain in words what crmctl cannot read."""

from __future__ import annotations

import pytest

from crmctl.errors import UsageError
from crmctl.models.resources import Attribute
from crmctl.values import yaml_text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\na: 2", "'a' is there twice"),
        ("a: {<<: 1}", "expected a mapping"),
        ("1: a", "the file has the key 1"),
        ("a: [!!set {b}]", r"a\[0\] has a value of a kind"),
        ("a: .inf", "a has a value of a kind"),
        ("a: " + "[" * 5_000, "nested too deeply"),
        ("a: [1, 2", "line 1, column 9"),
        ("a: \x00", "an invalid character"),
        ("!!python/object:os.system x", "line 1, column 1"),
    ],
)
def test_unreadable_yaml_is_explained_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        yaml_text.loads(text)
    assert type(refused.value) is ValueError


def test_the_rest_is_plain_values() -> None:
    assert yaml_text.loads("a: [1, x]\nb: {c: null}\nd: 2026-02-30") == {"a": [1, "x"], "b": {"c": None}, "d": "2026-02-30"}


def test_merge_keys_give_the_values_and_lines_of_the_merged_mapping() -> None:
    text = "- &base\n  a: 1\n  b: 2\n- b: 3\n  <<: [*base, {a: 9, c: 4}]\n"
    value, lines = yaml_text.loads_with_lines(text)
    assert value == [{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}]
    assert [lines[1, key] for key in "abc"] == [2, 4, 5]


@pytest.mark.parametrize("text", ["08001", "0o7", "1e3", "1.5E-3", ".5", "5.", "+08", "0049"])
def test_texts_that_readers_of_yaml_1_2_take_for_numbers_are_quoted(text: str) -> None:
    assert yaml_text.dumps({text: [text]}) == f"'{text}':\n- '{text}'\n"


def test_an_edited_value_keeps_its_kind() -> None:
    attributes = [Attribute(id=slug, slug=slug, type="list" if slug == "tags" else "unknown") for slug in ("facts", "inner", "tags")]
    before = "facts: {a: 1}\ninner: ~\ntags: [a]\n"
    after = "facts: {}\ninner: {b: ['1', 1, true, {}, ~, x]}\ntags: []\n"
    assert yaml_text.edited_values(before, after, attributes) == {"facts": {}, "inner": {"b": ["1", 1, True, {}, None, "x"]}, "tags": []}
    assert yaml_text.edited_values(before, "facts: {'a': 1}\n", attributes) == {}
    with pytest.raises(UsageError, match="line 2: a is there twice"):
        yaml_text.edited_values(before, "facts:\n  {a: 1, a: 2}\n", attributes)
