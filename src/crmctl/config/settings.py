"""Settings: keys, types, the file config.toml, directories, and which source wins."""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import urlsplit

from crmctl.config.output_formats import OUTPUT_FORMATS
from crmctl.errors import ConfigError, CrmctlError, UsageError, reason, storage_error
from crmctl.frozen import frozen
from crmctl.models.ids import suggestion

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


COLOR_MODES = ("auto", "always", "never")
DEFAULT_PROFILE = "default"

_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_FALSE = frozenset({"0", "false", "no", "off", "n", "f"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


def parse_bool(value: Any) -> bool:
    """Return a boolean, also from one of the usual words. Raises ValueError."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("must be true or false")


_LONGEST = 1e9
"""Most seconds of a setting, which every system clock can count."""


def _seconds(value: Any, *, zero: bool) -> float:
    try:
        if isinstance(value, bool) or "_" in str(value):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number > _LONGEST and math.isfinite(number):
        raise ValueError("must be at most 1,000,000,000 seconds")
    if math.isfinite(number) and (number > 0 or (zero and number == 0)):
        return number
    raise ValueError("must be a number of seconds, 0 or more" if zero else "must be a number of seconds above 0")


class NotAChoice(ValueError):
    """Refuse a word that is not in `words`."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(f"must be one of {', '.join(words)}")
        self.words = words


def _choice(*words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise NotAChoice(words)
        return word

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value


def parse_profile_name(value: Any) -> str:
    """Check a profile name: letters, digits, dot, dash, underscore; at most 64. Raises ValueError."""
    if not isinstance(value, str) or not _PROFILE_NAME.fullmatch(value):
        raise ValueError("must be letters, digits, '.', '-' or '_', begin with a letter or digit, and have at most 64 characters")
    return value


def parse_base_url(value: Any) -> str:
    """Return the service's base address without a trailing slash or a pasted `/api/v1`. Raises ValueError with the reason."""
    text = str(value).strip() if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError("must be a URL that names a host and at most a port between 1 and 65535") from error
    if _UNPRINTABLE.search(text) or parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError("must be a URL that begins with https:// or http:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not carry a user name or password")
    if "?" in text or "#" in text:
        raise ValueError("must not have a query or a fragment")
    path = parts.path.rstrip("/").removesuffix("/api/v1").rstrip("/")
    return origin_of(text) + path


def parse_command(value: Any) -> list[str]:
    """Return program and arguments of a list, a JSON list or a shell line. Raises ValueError with the reason."""
    words = value
    if isinstance(value, str):
        import json
        import shlex

        try:
            words = json.loads(value) if value.lstrip().startswith("[") else shlex.split(value)
        except ValueError:
            words = None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError('must be a list of words such as ["op", "read", "op://vault/crm/key"]')
    return [str(word) for word in words]


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL in normal form: lower case, no default port, international names in ASCII."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise ValueError("must be a URL with a host name whose parts have at most 63 letters and digits each") from error
    bracketed = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{bracketed}{port}"


def is_web_address(text: str, *schemes: str) -> bool:
    """Whether a text is an address with a host, by default of http or https."""
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return has_host and parts.scheme in (schemes or _DEFAULT_PORTS) and not (parts.query or parts.fragment)


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@frozen
class SettingKey:
    """One configuration key. `parse` takes a TOML value or text and raises ValueError with a phrase that follows the key's name."""

    name: str
    parse: Callable[[Any], Any]
    variable: str | None = None
    default: Any = None


KEYS: dict[str, SettingKey] = {
    key.name: key
    for key in (
        SettingKey("base_url", parse_base_url, "CRMCTL_BASE_URL"),
        SettingKey("output", _choice(*OUTPUT_FORMATS), "CRMCTL_OUTPUT"),
        SettingKey("timeout", lambda value: _seconds(value, zero=False), "CRMCTL_TIMEOUT", 30.0),
        SettingKey("max_wait", lambda value: _seconds(value, zero=True), None, 300.0),
        SettingKey("color", _choice(*COLOR_MODES), None, "auto"),
        SettingKey("ca_bundle", _text),
        SettingKey("no_input", parse_bool, "CRMCTL_NO_INPUT", False),
        SettingKey("read_only", parse_bool, "CRMCTL_READ_ONLY", False),
        SettingKey("pager", _text, "CRMCTL_PAGER"),
        SettingKey("auth", _choice("key", "oidc"), None, "key"),
        SettingKey("key_command", parse_command),
        SettingKey("protected", parse_bool, None, False),
    )
}
"""The keys of a profile; at the top level they are defaults for every profile."""

TOP_LEVEL_ONLY = {"default_profile": parse_profile_name}


def find_key(name: str) -> SettingKey:
    """Return the key of this name (dashes count as underscores). Raises ConfigError with the valid names."""
    key = KEYS.get(name.replace("-", "_"))
    if key is None:
        valid = [*TOP_LEVEL_ONLY, *KEYS]
        raise ConfigError(f"there is no configuration key {name!r}", hint=suggestion(name, valid, f"valid keys: {', '.join(valid)}"))
    return key


OTHER_KEYS = dict.fromkeys(("api_key", "apikey", "key", "token"), "crmctl auth login stores a key") | {"url": "did you mean base_url?"}
"""Options that look like settings, and the way to set them."""


@frozen
class ConfigFile:
    """A parsed config.toml: `top` level values, and one dict of values per profile. Values are checked but not merged."""

    path: Path
    top: dict[str, Any] = field(default_factory=dict)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> ConfigFile:
        """Read the file; a missing one is empty. Raises ConfigError with file, line and remedy."""
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
        """Write one value for a profile, or for the top level if `profile` is None; return the file. The key's type parses text. Raises
        ConfigError for an unknown key or a bad value."""
        key = key.replace("-", "_")
        parsed = _checked_values({key: value}, profile)[key]

        def change(document: TOMLDocument) -> None:
            _table(document, profile)[key] = int(parsed) if isinstance(parsed, float) and parsed.is_integer() else parsed

        return self._rewrite(change)

    def unset_value(self, key: str, profile: str | None) -> ConfigFile:
        """Remove one value, if it is there. Raises ConfigError for an unknown key."""
        key = key.replace("-", "_")
        if key not in TOP_LEVEL_ONLY:
            find_key(key)
        values = self.top if profile is None else self.profiles.get(profile, {})
        return self._rewrite(lambda document: _table(document, profile).pop(key)) if key in values else self

    def _rewrite(self, change: Callable[[TOMLDocument], object]) -> ConfigFile:
        import tomlkit  # only writes need it

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
    """Raise ConfigError for a key or value that the configuration cannot have."""


def _check(parse: Callable[[Any], Any], value: Any, where: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise _Misfit(f"{where} {error}, not {repr(value) if isinstance(value, str) else value}") from error


def _checked_values(values: dict[str, Any], profile: str | None) -> dict[str, Any]:
    """Return the values of one profile, or of the top level, in their own types."""
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
    """Return the table to change, created if missing. tomlkit puts top-level keys before the first table."""
    import tomlkit

    if profile is None:
        return document
    _check(parse_profile_name, profile, "a profile name")
    profiles: Any = document.setdefault("profiles", tomlkit.table(is_super_table=True))
    return profiles.setdefault(profile, tomlkit.table())


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically with mode 0600. Raises ConfigError, StorageError."""
    import tempfile  # only writes need it

    target = path.resolve()  # keep a symlinked dotfile a symlink
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
        raise storage_error(
            error,
            path,
            ConfigError(f"cannot write {path}: {reason(error)}", hint="set CRMCTL_CONFIG_DIR to a directory that can be written"),
        ) from error


@frozen
class Paths:
    """The directories of crmctl: `config` (the user's), `state` (jobs, journals), `cache` (may be deleted at any time)."""

    config: Path
    state: Path
    cache: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def credentials_file(self) -> Path:
        """Holds API keys only after --insecure-storage."""
        return self.config / "credentials.json"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Paths:
        """Return CRMCTL_CONFIG_DIR, CRMCTL_STATE_DIR and CRMCTL_CACHE_DIR, else the platform's directories. Creates nothing. Raises
        ConfigError without a home directory."""
        return cls(**{kind: _directory(kind, environ) for kind in ("config", "state", "cache")})


def _directory(kind: str, environ: Mapping[str, str]) -> Path:
    variable = f"CRMCTL_{kind.upper()}_DIR"
    try:
        if folder := environ.get(variable):
            return Path(folder).expanduser().absolute()
        import platformdirs  # not needed if the variables are set

        directories = platformdirs.PlatformDirs("crmctl", appauthor=False)
        return {"config": directories.user_config_path, "state": directories.user_state_path, "cache": directories.user_cache_path}[kind]
    except (RuntimeError, KeyError, OSError) as error:
        raise ConfigError(f"cannot work out the {kind} directory: {reason(error)}", hint=f"set {variable} to a directory") from error


T = TypeVar("T")


@frozen
class Sourced(Generic[T]):
    """A value and its source for the user: `--timeout`, `CRMCTL_TIMEOUT`, `[profiles.work]`, `config.toml` or `default`."""

    value: T
    source: str


@frozen
class Settings:
    """Every setting after precedence. `output.value` None means a table on a terminal, JSON elsewhere."""

    profile: Sourced[str]
    base_url: Sourced[str | None]
    output: Sourced[str | None]
    timeout: Sourced[float]
    max_wait: Sourced[float]
    color: Sourced[str]
    ca_bundle: Sourced[str | None]
    no_input: Sourced[bool]
    read_only: Sourced[bool]
    protected: Sourced[bool]
    pager: Sourced[str | None]
    auth: Sourced[str]
    key_command: Sourced[list[str] | None]
    file: ConfigFile

    def items(self) -> Iterator[tuple[str, Sourced[Any]]]:
        """Return name and sourced value of every setting, `profile` first, for `config list`."""
        for name in ("profile", *KEYS):
            yield name, getattr(self, name)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings to show before the first request."""
        url = self.base_url.value
        if url is None or not url.startswith("http://") or is_loopback(url):
            return ()
        return (f"{url} is not encrypted: the API key and all data cross the network in clear; use https://",)

    def require_base_url(self) -> str:
        """Return the service's address. Raises ConfigError without one, also if --profile names a profile without one: a typing error must
        not reach the service that the environment names."""
        name, profiles = self.profile.value, sorted(self.file.profiles)
        is_slip = self.profile.source == "--profile" and name not in (*profiles, DEFAULT_PROFILE)
        if self.base_url.value is not None and not is_slip:
            return self.base_url.value
        other = "set CRMCTL_BASE_URL" if self.base_url.value is None else "leave --profile out"
        way = f"run `crmctl auth login --profile {name} --base-url URL`, or {other}"
        if name in profiles:
            raise ConfigError(f"profile {name!r} has no base_url", hint=way, code="no_base_url")
        if profiles or is_slip:
            hint = f"known profiles: {', '.join(profiles)}; or {way}" if profiles else way
            raise ConfigError(f"there is no profile {name!r} ({self.profile.source})", hint=hint, code="unknown_profile")
        raise ConfigError(
            "no service is configured yet", hint="run `crmctl auth login --base-url URL`, or set CRMCTL_BASE_URL", code="no_base_url"
        )

    def require_origin(self) -> str:
        """Return scheme, host and port that a key must belong to. Raises ConfigError like require_base_url."""
        return origin_of(self.require_base_url())


def load_settings(environ: Mapping[str, str], flags: Mapping[str, Any], paths: Paths) -> Settings:
    """Merge all sources. `flags` are options by parameter name, as text or parsed.

    Raises ConfigError for a bad file or variable, UsageError for a flag; the message names the source.
    """
    file = ConfigFile.load(paths.config_file)
    profile = _profile(environ, flags, file)
    sources = (
        {name: (f"--{name.replace('_', '-')}", flags.get(name)) for name in KEYS},
        {name: (key.variable, environ.get(key.variable) or None) for name, key in KEYS.items() if key.variable},
        {name: (f"[profiles.{profile.value}]", value) for name, value in file.profiles.get(profile.value, {}).items()},
        {name: ("config.toml", value) for name, value in file.top.items()},
    )
    values: dict[str, Sourced[Any]] = {}
    for name, key in KEYS.items():
        settings = (source[name] for source in sources if name in source)
        label, raw = next((entry for entry in settings if entry[1] is not None), ("default", key.default))
        values[name] = Sourced(raw if label == "default" else _parsed(name, key.parse, raw, str(label)), str(label))
    return Settings(profile=profile, file=file, **values)


def _profile(environ: Mapping[str, str], flags: Mapping[str, Any], file: ConfigFile) -> Sourced[str]:
    candidates = (
        ("--profile", flags.get("profile")),
        ("CRMCTL_PROFILE", environ.get("CRMCTL_PROFILE") or None),
        ("config.toml", file.default_profile),
    )
    label, name = next((entry for entry in candidates if entry[1] is not None), ("default", DEFAULT_PROFILE))
    return Sourced(_parsed("profile", parse_profile_name, name, label), label)


def _parsed(name: str, parse: Any, raw: Any, source: str) -> Any:
    try:
        return parse(raw)
    except ValueError as error:
        kind: type[CrmctlError] = UsageError if source.startswith("--") else ConfigError
        shown = re.sub("//[^/]*@", "//…@", str(raw))  # do not show a password pasted into a URL
        words = error.words if isinstance(error, NotAChoice) else ()
        hint = suggestion(shown, words, f"correct or remove {source}")
        raise kind(f"{name} {error}, not {shown!r} (from {source})", hint=hint) from error
