"""API keys: where they are found, stored and removed. A key is bound to a profile and an origin; nothing here ever prints one."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from crmctl.config import keychain
from crmctl.config.paths import Paths
from crmctl.config.profiles import write_private
from crmctl.config.settings import Settings
from crmctl.errors import ConfigError, CrmctlError, DeniedError, UsageError
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

    The variable imports and asks nothing else. Raises ConfigError without a base URL, DeniedError when the keyring cannot be asked.
    """
    origin = settings.require_origin()
    if environ.get(KEY_VARIABLE, "").strip():
        return Credential(check_key(environ[KEY_VARIABLE]), KEY_VARIABLE, origin)
    name = _entry(settings.profile.value, origin)
    if key := _read_file(paths).get(name):
        return Credential(check_key(key), str(paths.credentials_file), origin)
    if key := keychain.get(name):
        return Credential(check_key(key), "keyring", origin)
    return None


def require_credential(settings: Settings, environ: Mapping[str, str], paths: Paths) -> Credential:
    """Like find_credential, but no key is a DeniedError that says how to get one."""
    credential = find_credential(settings, environ, paths)
    if credential is not None:
        return credential
    profile, origin = settings.profile.value, settings.require_origin()
    login = f"run `crmctl auth login --profile {profile}`, or set {KEY_VARIABLE}"
    if settings.base_url.source in ("--base-url", "CRMCTL_BASE_URL"):
        command = f"crmctl auth login --profile {profile} --base-url {settings.base_url.value}"
        login = f"keys belong to one origin; run `{command}`, or set {KEY_VARIABLE}"
    raise DeniedError(f"no API key for profile {profile!r} at {origin}", hint=login, code="no_api_key")


def store_credential(profile: str, origin: str, key: str, paths: Paths, *, insecure: bool = False) -> Credential:
    """Keep a key for this profile and origin, in the keyring, or with `insecure` in a private file. Replaces an older one.

    Raises UsageError for a key that cannot be one, ConfigError when it cannot be stored.
    """
    key, name = check_key(key), _entry(profile, origin)
    if insecure:
        _write_file(paths, {**_read_file(paths), name: key})
        return Credential(key, str(paths.credentials_file), origin)
    try:
        keychain.put(name, key)
    except DeniedError as error:  # nothing was denied by the service: this machine lacks a place for the key
        raise ConfigError(error.message, hint=error.hint, code=error.code) from error
    _forget_file(paths, name)  # it would win over the keyring
    return Credential(key, "keyring", origin)


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
        raise ConfigError(f"cannot read {path}: {error}", hint=f"remove it and log in again, or set {KEY_VARIABLE}") from error
    if keychain.POSIX and mode & 0o077:
        raise ConfigError(f"{path} holds API keys and other users may open it (mode {mode:04o})", hint=f"chmod 600 {path}")
    try:
        entries = jsontext.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}", hint="remove it and run `crmctl auth login --insecure-storage` again") from error
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
