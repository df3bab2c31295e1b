"""The file config.toml: reading it with clear errors, changing it without losing comments or order. Precedence lives in settings.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crmctl.config.keys import KEYS, TOP_LEVEL_ONLY, find_key, parse_profile_name
from crmctl.errors import ConfigError, reason, storage_error
from crmctl.models.nearest import suggestion

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

OTHER_KEYS = dict.fromkeys(("api_key", "apikey", "key", "token"), "crmctl auth login stores a key") | {"url": "did you mean base_url?"}
"""What else people look for among the settings."""


@dataclass(frozen=True)
class ConfigFile:
    """config.toml as read: `top` level values, and one dict of values per profile. Values are checked, but not yet merged."""

    path: Path
    top: dict[str, Any] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> ConfigFile:
        """Read the file; a missing one is empty. Raises ConfigError with file, line and the way out for anything that is not in order."""
        text = _read_text(path)
        if not text:
            return cls(path)
        import tomllib

        try:
            return cls._checked(path, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(
                f"{path} is not valid TOML: {reason(error)}", hint="repair that line, or move the file away and run `crmctl auth login`"
            ) from error
        except _Misfit as error:
            raise ConfigError(f"{path}: {error.message}", hint=error.hint or f"correct it in {path}", code=error.code) from error

    @classmethod
    def _checked(cls, path: Path, document: dict[str, Any]) -> ConfigFile:
        profiles = document.pop("profiles", {})
        if not isinstance(profiles, dict) or not all(isinstance(values, dict) for values in profiles.values()):
            raise _Misfit("profiles must be tables such as [profiles.work]")
        for name in profiles:
            _check(parse_profile_name, name, f"the profile name {name!r}")
        return cls(path, _checked_values(document, None), {name: _checked_values(values, name) for name, values in profiles.items()})

    @property
    def default_profile(self) -> str | None:
        return self.top.get("default_profile")

    def set_value(self, key: str, value: Any, profile: str | None) -> ConfigFile:
        """Write one value for a profile, or for the top level when `profile` is None; returns the file as it is now.

        `value` may be text: it is parsed by the key's own type. Raises ConfigError for an unknown key or a value that does not fit.
        """
        key = key.replace("-", "_")
        parsed = _checked_values({key: value}, profile)[key]

        def change(document: TOMLDocument) -> None:
            _table(document, profile)[key] = int(parsed) if isinstance(parsed, float) and parsed.is_integer() else parsed

        return self._rewrite(change)

    def unset_value(self, key: str, profile: str | None) -> ConfigFile:
        """Remove one value; removing what is not there changes nothing. Raises ConfigError for an unknown key."""
        key = key.replace("-", "_")
        if key not in TOP_LEVEL_ONLY:
            find_key(key)
        values = self.top if profile is None else self.profiles.get(profile, {})
        return self._rewrite(lambda document: _table(document, profile).pop(key)) if key in values else self

    def _rewrite(self, change: Callable[[TOMLDocument], object]) -> ConfigFile:
        import tomlkit  # only a write pays for it

        document = tomlkit.parse(_read_text(self.path))
        change(document)
        write_private(self.path, tomlkit.dumps(document))
        return ConfigFile.load(self.path)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {reason(error)}", hint=f"make {path} a readable UTF-8 file, or set CRMCTL_CONFIG_DIR"
        ) from error


class _Misfit(ConfigError):
    """A key or a value that the configuration cannot have, before it is known whether it stood in the file."""


def _check(parse: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise _Misfit(f"{where} {error}, not {value!r}") from error


def _checked_values(values: dict[str, Any], profile: str | None) -> dict[str, Any]:
    """The values of one profile, or of the top level, in their own types."""
    parsers = {**({} if profile else TOP_LEVEL_ONLY), **{name: key.parse for name, key in KEYS.items()}}
    place = f"[profiles.{profile}]" if profile else "the top level"
    for key in values:
        if key not in parsers:
            raise _Misfit(
                f"unknown key {key!r} at {place}",
                hint=OTHER_KEYS.get(key) or suggestion(key, parsers, f"valid keys there: {', '.join(parsers)}"),
                code="unknown_key",
            )
    return {key: _check(parsers[key], value, f"{key} at {place}") for key, value in values.items()}


def _table(document: TOMLDocument, profile: str | None) -> Any:
    """The table to change, made where it is missing. Top-level keys have to come before the first table, which tomlkit sees to."""
    import tomlkit

    if profile is None:
        return document
    _check(parse_profile_name, profile, "a profile name")
    profiles: Any = document.setdefault("profiles", tomlkit.table(is_super_table=True))
    return profiles.setdefault(profile, tomlkit.table())


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically with mode 0600: readers see the old text or the new one, never a part. Raises ConfigError, StorageError."""
    import tempfile  # only a write pays for it

    target = path.resolve()  # a symlinked dotfile stays a symlink
    temporary: str | None = None
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # created with 0600
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise storage_error(error, path) or ConfigError(
            f"cannot write {path}: {reason(error)}", hint="set CRMCTL_CONFIG_DIR to a directory that can be written"
        ) from error
