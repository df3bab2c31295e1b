"""Rules for passwords and their hashes."""

from __future__ import annotations

import pytest

from crmctl.service.console.sign_in import check_new, hash_password, is_right
from crmctl.service.faults import BadRequest


def test_passwords_match_in_any_unicode_composition() -> None:
    hashed = hash_password("cafe\u0301 au lait")
    assert hashed.startswith("$argon2id$")
    assert is_right(hashed, "caf\u00e9 au lait")
    assert not is_right(hashed, "cafe au lait")
    assert not is_right(None, "cafe au lait")
    assert not is_right("no hash at all", "cafe au lait")


@pytest.mark.parametrize(
    ("password", "again", "problem"),
    [
        ("too short", "too short", "10 to 500"),
        ("x" * 501, "x" * 501, "10 to 500"),
        ("Ada@example.com", "Ada@example.com", "easy to guess"),
        ("aaaaaaaaaaaa", "aaaaaaaaaaaa", "easy to guess"),
        ("correct horse", "correct house", "not the same"),
    ],
)
def test_a_bad_password_is_refused_with_the_reason(password: str, again: str, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        check_new(password, again, "ada@example.com")
