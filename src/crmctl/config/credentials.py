"""Find, store and remove API keys. The only importer of keyring."""

from __future__ import annotations

import math
import os
import re
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any, TypeVar

from crmctl.config.settings import Paths, Settings, origin_of, write_private
from crmctl.errors import ConfigError, CrmctlError, DeniedError, UsageError, reason
from crmctl.frozen import frozen
from crmctl.models import jsontext

SERVICE = "crmctl"
TIME_LIMIT = 5.0
"""Seconds one call may take."""

POSIX = os.name == "posix"

T = TypeVar("T")


def get(name: str) -> str | None:
    """Return the secret of this name, or None. Raises DeniedError without a working keyring."""
    secret: str | None = _bounded(lambda backend: backend.get_password(SERVICE, name))
    return secret


def put(name: str, secret: str) -> None:
    """Store or replace a secret. Raises DeniedError without a working keyring."""
    _bounded(lambda backend: backend.set_password(SERVICE, name, secret))


def remove(name: str) -> bool:
    """Remove a secret; return False if there was none. Raises DeniedError without a working keyring."""

    def delete(backend: Any) -> bool:
        from keyring.errors import PasswordDeleteError

        if backend.get_password(SERVICE, name) is None:
            return False
        try:
            backend.delete_password(SERVICE, name)
        except PasswordDeleteError:  # another process was quicker
            return backend.get_password(SERVICE, name) is None
        return True

    return _bounded(delete)


def _bounded(call: Callable[[Any], T]) -> T:
    """Run one call on the back end within TIME_LIMIT. Any failure becomes one DeniedError with the ways out."""
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
    """Return the working back end. Importing keyring is slow and searches for plug-ins, so it happens within the time limit too."""
    import keyring
    from keyring.backends import fail, null

    backend = keyring.get_keyring()
    if isinstance(backend, fail.Keyring | null.Keyring):
        raise RuntimeError("this machine offers no place to keep secrets")
    return backend


def _unavailable(message: str) -> DeniedError:
    hint = "set CRMCTL_API_KEY, or run `crmctl auth login --insecure-storage` to keep the key in a private file"
    return DeniedError(message, hint=hint, code="keyring_unavailable")


KEY_VARIABLE = "CRMCTL_API_KEY"
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")


@frozen
class Credential:
    """An API key, its source (`CRMCTL_API_KEY`, `keyring` or the path of a file), and the only origin it is sent to."""

    key: str = field(repr=False)
    source: str
    origin: str
    renew: Callable[[], Credential] | None = field(default=None, repr=False, compare=False)
    """Returns the next key of one that expires; `renew_at` is when it should, in Unix seconds."""
    renew_at: float = math.inf

    @property
    def masked(self) -> str:
        """The key in a form that can be shown."""
        return mask_key(self.key)


def mask_key(key: str) -> str:
    """Return `crs_…abcd` for a long key; dots for one under 20 characters, where four would reveal too much."""
    if len(key) < 20:
        return "••••••••"
    prefix, underscore, _ = key[:6].partition("_")
    return f"{prefix}_…{key[-4:]}" if underscore else f"…{key[-4:]}"


def check_key(text: str) -> str:
    """Return the key without surrounding blanks. Raises UsageError, without showing it, if no header can carry it."""
    key = text.strip()
    if not key:
        raise UsageError("the API key is empty", hint="paste the key as it was shown when it was created")
    if not _HEADER_SAFE.fullmatch(key):
        raise UsageError(
            "the API key holds characters that a key cannot have (spaces, line breaks or letters outside ASCII)",
            hint="paste the key alone, in one line",
        )
    return key


def find_credential(settings: Settings, environ: Mapping[str, str], paths: Paths) -> Credential | None:
    """Return the key for the settings' profile and origin, or None: from CRMCTL_API_KEY, else the profile's key_command, else
    the private file, else the keyring.

    The variable alone imports nothing. Raises ConfigError without a base URL, DeniedError if the keyring fails or the profile's key belongs
    to another origin.
    """
    origin = settings.require_origin()
    if environ.get(KEY_VARIABLE, "").strip():
        return Credential(check_key(environ[KEY_VARIABLE]), KEY_VARIABLE, origin)
    own = settings.file.profiles.get(settings.profile.value, {}).get("base_url")
    if settings.key_command.value and own and origin_of(own) == origin:
        return Credential(run_key_command(settings.key_command.value), "key_command", origin)
    name = _entry(settings.profile.value, origin)
    if key := _read_file(paths).get(name):
        return Credential(check_key(key), str(paths.credentials_file), origin)
    if settings.key_command.value and not own:
        message = f"key_command is not run: profile {settings.profile.value!r} has no base_url that its key belongs to"
        raise DeniedError(message, hint=f"crmctl config set base_url {settings.base_url.value}", code="no_api_key")
    try:
        key = get(name)
    except DeniedError as unavailable:
        if owner := _other_origin(settings, origin, paths):  # a keyring would not help: show the real cause
            raise _no_key(settings, origin, owner) from unavailable
        raise
    return Credential(check_key(key), "keyring", origin) if key else None


COMMAND_SECONDS = 10.0
MOST_PRINTED = 64 * 1024
"""Most bytes that a command may print; a key has fewer."""


def run_key_command(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str:
    """Return the one line that a command prints. Its output never appears in an error. Raises DeniedError."""
    import subprocess

    def failed(problem: str) -> DeniedError:
        hint = "run it yourself: it must print the key alone, in one line, within 10 seconds"
        return DeniedError(f"key_command {command[0]} {problem}", hint=hint, code="key_command_failed")

    problems: list[str] = []

    def end() -> None:
        problems.append(f"did not end within {seconds:g} seconds")
        with suppress(ProcessLookupError):  # its children as well: they may hold the pipe open
            os.killpg(process.pid, signal.SIGKILL) if POSIX else process.kill()

    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]  # noqa: S603
    except OSError as error:
        raise failed(f"cannot be run: {reason(error)}") from error
    deadline = threading.Timer(seconds, end)
    deadline.daemon = True
    deadline.start()
    with process:  # a command that prints more cannot write on, and ends
        printed = process.stdout.read(MOST_PRINTED + 1)
    deadline.cancel()
    if process.returncode and len(printed) <= MOST_PRINTED:
        problems.append(f"ended with exit code {process.returncode}")
    key = str(printed.decode("utf-8", "replace").strip())
    if len(printed) > MOST_PRINTED or not _HEADER_SAFE.fullmatch(key):
        problems.append("printed no key, or more than a key")
    if problems:
        raise failed(problems[0])
    return key


def require_credential(settings: Settings, environ: Mapping[str, str], paths: Paths) -> Credential:
    """Like find_credential, but raise DeniedError with the way to get a key."""
    credential = find_credential(settings, environ, paths)
    if credential is not None:
        return credential
    origin = settings.require_origin()
    raise _no_key(settings, origin, _other_origin(settings, origin, paths))


def _other_origin(settings: Settings, origin: str, paths: Paths) -> str | None:
    """Return the origin of this profile's key if it is not the requested one."""
    profile = settings.profile.value
    own = settings.file.profiles.get(profile, {}).get("base_url")
    stored = [name.partition("@")[2] for name in _read_file(paths) if name.startswith(f"{profile}@")]
    return next((other for other in (*stored, *([origin_of(own)] if own else [])) if other != origin), None)


def _no_key(settings: Settings, origin: str, owner: str | None) -> DeniedError:
    profile = settings.profile.value
    command = f"crmctl auth login --profile {profile}"
    if settings.base_url.source in ("--base-url", "CRMCTL_BASE_URL"):
        command += f" --base-url {settings.base_url.value}"
    message = f"no API key for profile {profile!r} at {origin}"
    if owner is None:
        return DeniedError(message, hint=f"run `{command}`, or set {KEY_VARIABLE}", code="no_api_key")
    leave = f"leave {settings.base_url.source} out, " if settings.base_url.source.startswith(("--", "CRMCTL")) else ""
    return DeniedError(f"{message}: its key belongs to {owner}", hint=f"{leave}run `{command}`, or set {KEY_VARIABLE}", code="no_api_key")


def store_credential(profile: str, origin: str, key: str, paths: Paths, *, insecure: bool = False) -> Credential:
    """Store a key for this profile and origin in the keyring, or with `insecure` in a private file. Raises UsageError for an invalid key,
    ConfigError if it cannot be stored."""
    key, name = check_key(key), _entry(profile, origin)
    if insecure:
        _write_file(paths, {**_read_file(paths), name: key})
        return Credential(key, str(paths.credentials_file), origin)
    with _lacking_a_place():
        put(name, key)
    _forget_file(paths, name)  # it would take precedence over the keyring
    return Credential(key, "keyring", origin)


def check_keyring(profile: str, origin: str) -> None:
    """Check that the keyring can store a key before the user types one. Raises ConfigError."""
    with _lacking_a_place():
        get(_entry(profile, origin))


@contextmanager
def _lacking_a_place() -> Iterator[None]:
    try:
        yield
    except DeniedError as error:  # the service denied nothing: this machine has no place for the key
        raise ConfigError(error.message, hint=error.hint, code=error.code) from error


def remove_credential(profile: str, origin: str, paths: Paths) -> list[str]:
    """Remove the profile's key wherever it is stored; return those places. Raises DeniedError if the keyring fails and no file held the
    key."""
    name = _entry(profile, origin)
    removed = [str(paths.credentials_file)] if _forget_file(paths, name) else []
    try:
        if remove(name):
            removed.append("keyring")
    except CrmctlError:
        if not removed:
            raise
    return removed


def _entry(profile: str, origin: str) -> str:
    """Return the name of a stored key. A profile name has no `@`, so the halves are unambiguous."""
    return f"{profile}@{origin}"


def _read_file(paths: Paths) -> dict[str, str]:
    path = paths.credentials_file
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}", hint=f"remove it and log in again, or set {KEY_VARIABLE}") from error
    if POSIX and mode & 0o077:
        raise ConfigError(f"{path} holds API keys and other users may open it (mode {mode:04o})", hint=f"chmod 600 {path}")
    try:
        entries = jsontext.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{path} is damaged: {reason(error)}", hint="remove it and run `crmctl auth login --insecure-storage` again"
        ) from error
    return {str(name): str(key) for name, key in entries.items()} if isinstance(entries, dict) else {}


def _write_file(paths: Paths, entries: Mapping[str, str]) -> None:
    if entries:
        write_private(paths.credentials_file, jsontext.dumps(dict(entries), indent=2) + "\n")
    else:
        paths.credentials_file.unlink(missing_ok=True)


def _forget_file(paths: Paths, name: str) -> bool:
    entries = _read_file(paths)
    if entries.pop(name, None) is None:
        return False
    _write_file(paths, entries)
    return True
