"""The operating system's keyring behind three bounded calls: the only importer of keyring. It knows names and secrets, not profiles.

A Secret Service that waits for a password dialog nobody sees never answers: each call runs in a daemon thread, which
the process can leave behind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from crmctl.errors import DeniedError, reason

SERVICE = "crmctl"
TIME_LIMIT = 5.0
"""Seconds one call may take."""

POSIX = os.name == "posix"

T = TypeVar("T")


def get(name: str) -> str | None:
    """The secret with this name, or None. Raises DeniedError when there is no working keyring."""
    secret: str | None = _bounded(lambda backend: backend.get_password(SERVICE, name))
    return secret


def put(name: str, secret: str) -> None:
    """Store or replace a secret. Raises DeniedError when there is no working keyring."""
    _bounded(lambda backend: backend.set_password(SERVICE, name, secret))


def remove(name: str) -> bool:
    """Remove a secret; False when there was none. Raises DeniedError when there is no working keyring."""

    def delete(backend: Any) -> bool:
        from keyring.errors import PasswordDeleteError

        if backend.get_password(SERVICE, name) is None:
            return False
        try:
            backend.delete_password(SERVICE, name)
        except PasswordDeleteError:  # somebody else was quicker
            return backend.get_password(SERVICE, name) is None
        return True

    return _bounded(delete)


def _bounded(call: Callable[[Any], T]) -> T:
    """Run one call on the back end within TIME_LIMIT; whatever goes wrong becomes the one error that names the ways out."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call(_backend()))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, name="keyring", daemon=True)
    thread.start()
    thread.join(TIME_LIMIT)
    if outcome:
        return outcome[0]
    if not failure:
        raise _unavailable(f"the system keyring did not answer within {TIME_LIMIT:g} seconds; it may be waiting to be unlocked")
    raise _unavailable(f"no working keyring: {reason(failure[0])}") from failure[0]


def _backend() -> Any:
    """The working back end. Importing keyring is slow and looks for plug-ins, so that too happens inside the time limit."""
    import keyring
    from keyring.backends import fail, null

    backend = keyring.get_keyring()
    if isinstance(backend, fail.Keyring | null.Keyring):
        raise RuntimeError("this machine offers no place to keep secrets")
    return backend


def _unavailable(message: str) -> DeniedError:
    hint = "set CRMCTL_API_KEY, or run `crmctl auth login --insecure-storage` to keep the key in a private file"
    return DeniedError(message, hint=hint, code="keyring_unavailable")
