"""How passwords are hashed (Argon2id) and what a password must be. Nothing else imports argon2; slow on purpose: never in a transaction."""

from __future__ import annotations

import threading
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from crmctl.service.faults import BadRequest

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST, LONGEST = 10, 500

_AT_ONCE = threading.BoundedSemaphore(2)
"""Each takes 64 MiB and a tenth of a second of a processor."""


def check_new(password: str, again: str, email: str) -> None:
    """Raises BadRequest for a password that is too short, too long, the email address, or not what was typed again."""
    if len(password) < SHORTEST or len(password) > LONGEST:
        raise BadRequest(f"a password must have {SHORTEST} to {LONGEST} characters", {"field": "password"})
    if password.casefold() == email.casefold() or len(set(password)) < 4:
        raise BadRequest("this password is too easy to guess", {"field": "password"})
    if password != again:
        raise BadRequest("the two passwords are not the same", {"field": "again"})


def hash_password(password: str) -> str:
    """What may be stored."""
    with _AT_ONCE:
        return _hasher().hash(_bytes(password))


def is_right(hashed: str | None, password: str) -> bool:
    """Whether this is the password; takes its time also where there is none, so that nobody learns who has one."""
    from argon2.exceptions import InvalidHashError, VerificationError

    with _AT_ONCE:
        try:
            return _hasher().verify(hashed or _nobodys(), _bytes(password)) and hashed is not None
        except (VerificationError, InvalidHashError):
            return False


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    return PasswordHasher()


@cache
def _nobodys() -> str:
    return _hasher().hash(b"nobody's")


def _bytes(password: str) -> bytes:
    """However a keyboard composes letters, they are the same ones."""
    return unicodedata.normalize("NFC", password[:LONGEST]).encode(errors="replace")
