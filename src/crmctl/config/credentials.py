"""API keys: where they are found, stored and removed. A key is bound to a profile and an origin; nothing here ever prints one."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from crmctl.config import keychain
from crmctl.config.keys import origin_of
from crmctl.config.paths import Paths
from crmctl.config.profiles import write_private
from crmctl.config.settings import Settings
from crmctl.errors import ConfigError, CrmctlError, DeniedError, UsageError, reason
from crmctl.models import jsontext

KEY_VARIABLE = "CRMCTL_API_KEY"
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class Credential:
    """An API key, where it came from (`CRMCTL_API_KEY`, `keyring` or the path of a file) and the only origin it may be sent to."""

    key: str = field(repr=False)
    source: str
    origin: str

    @property
    def masked(self) -> str:
        """The key in a form that can be shown."""
        return mask_key(self.key)


def mask_key(key: str) -> str:
    """`crs_…abcd` for a long key, dots alone for one under 20 characters, where four would give away too much."""
    if len(key) < 20:
        return "••••••••"
    prefix, underscore, _ = key[:6].partition("_")
    return f"{prefix}_…{key[-4:]}" if underscore else f"…{key[-4:]}"


def check_key(text: str) -> str:
    """The key without surrounding blanks. Raises UsageError, without showing it, when it cannot be sent in a header."""
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
    """The key for the settings' profile and origin, or None when none is stored: CRMCTL_API_KEY, else the private file, else the keyring.

    The variable imports and asks nothing else. Raises ConfigError without a base URL, DeniedError when the keyring cannot be asked, or
    need not be because the profile's key belongs to another origin.
    """
    origin = settings.require_origin()
    if environ.get(KEY_VARIABLE, "").strip():
        return Credential(check_key(environ[KEY_VARIABLE]), KEY_VARIABLE, origin)
    name = _entry(settings.profile.value, origin)
    if key := _read_file(paths).get(name):
        return Credential(check_key(key), str(paths.credentials_file), origin)
    try:
        key = keychain.get(name)
    except DeniedError as unavailable:
        if owner := _other_origin(settings, origin, paths):  # a keyring would not help: say what would
            raise _no_key(settings, origin, owner) from unavailable
        raise
    return Credential(check_key(key), "keyring", origin) if key else None


def require_credential(settings: Settings, environ: Mapping[str, str], paths: Paths) -> Credential:
    """Like find_credential, but no key is a DeniedError that says how to get one."""
    credential = find_credential(settings, environ, paths)
    if credential is not None:
        return credential
    origin = settings.require_origin()
    raise _no_key(settings, origin, _other_origin(settings, origin, paths))


def _other_origin(settings: Settings, origin: str, paths: Paths) -> str | None:
    """Where the key of this profile belongs, when that is not the origin asked for."""
    profile = settings.profile.value
    own = settings.file.profiles.get(profile, {}).get("base_url")
    stored = [name.partition("@")[2] for name in _read_file(paths) if name.startswith(f"{profile}@")]
    return next((other for other in (*stored, *([origin_of(own)] if own else [])) if other != origin), None)


def _no_key(settings: Settings, origin: str, owner: str | None) -> DeniedError:
    profile = settings.profile.value
    command = f"crmctl auth login --profile {profile}"
    if settings.base_url.source in ("--base-url", "CRMCTL_BASE_URL"):
        command += f" --base-url {settings.base_url.value}"
    said = f"no API key for profile {profile!r} at {origin}"
    if owner is None:
        return DeniedError(said, hint=f"run `{command}`, or set {KEY_VARIABLE}", code="no_api_key")
    leave = f"leave {settings.base_url.source} out, " if settings.base_url.source.startswith(("--", "CRMCTL")) else ""
    return DeniedError(f"{said}: its key belongs to {owner}", hint=f"{leave}run `{command}`, or set {KEY_VARIABLE}", code="no_api_key")


def store_credential(profile: str, origin: str, key: str, paths: Paths, *, insecure: bool = False) -> Credential:
    """Keep a key for this profile and origin, in the keyring, or with `insecure` in a private file. Replaces an older one.

    Raises UsageError for a key that cannot be one, ConfigError when it cannot be stored.
    """
    key, name = check_key(key), _entry(profile, origin)
    if insecure:
        _write_file(paths, {**_read_file(paths), name: key})
        return Credential(key, str(paths.credentials_file), origin)
    with _lacking_a_place():
        keychain.put(name, key)
    _forget_file(paths, name)  # it would win over the keyring
    return Credential(key, "keyring", origin)


def check_keyring(profile: str, origin: str) -> None:
    """Find out whether a key can be stored in the keyring before somebody types one. Raises ConfigError."""
    with _lacking_a_place():
        keychain.get(_entry(profile, origin))


@contextmanager
def _lacking_a_place() -> Iterator[None]:
    try:
        yield
    except DeniedError as error:  # nothing was denied by the service: this machine lacks a place for the key
        raise ConfigError(error.message, hint=error.hint, code=error.code) from error


def remove_credential(profile: str, origin: str, paths: Paths) -> list[str]:
    """Remove the key of this profile and origin wherever it is stored; returns those places, none when there was no key.

    Raises DeniedError when the keyring cannot be asked and no file held the key.
    """
    name = _entry(profile, origin)
    removed = [str(paths.credentials_file)] if _forget_file(paths, name) else []
    try:
        if keychain.remove(name):
            removed.append("keyring")
    except CrmctlError:
        if not removed:
            raise
    return removed


def _entry(profile: str, origin: str) -> str:
    """The name of a stored key. A profile's name has no `@`, so the two halves cannot be confused."""
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
    if keychain.POSIX and mode & 0o077:
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
