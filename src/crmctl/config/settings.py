"""One answer per setting, with its source: flag > environment > profile > top level of the file > default. Asks nobody."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from crmctl.config.keys import DEFAULT_PROFILE, KEYS, NotAChoice, is_loopback, origin_of, parse_profile_name
from crmctl.config.paths import Paths
from crmctl.config.profiles import ConfigFile
from crmctl.errors import ConfigError, CrmctlError, UsageError
from crmctl.models.nearest import suggestion

__all__ = ["Flags", "Settings", "Sourced", "load_settings", "origin_of"]

T = TypeVar("T")


@dataclass(frozen=True)
class Flags:
    """What the command line gave; None is "not given". Texts are parsed here, numbers and booleans may come ready."""

    profile: str | None = None
    base_url: str | None = None
    output: str | None = None
    timeout: float | str | None = None
    max_wait: float | str | None = None
    color: str | None = None
    ca_bundle: str | None = None
    no_input: bool | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The options this takes, as parameter names."""
        return tuple(cls.__dataclass_fields__)


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and where it came from, as a user would name it: `--timeout`, `CRMCTL_TIMEOUT`, `[profiles.work]`, `config.toml` or
    `default`.
    """

    value: T
    source: str


@dataclass(frozen=True)
class Settings:
    """Every setting after precedence. `output.value` None means: a table on a terminal, JSON elsewhere."""

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
    file: ConfigFile

    def items(self) -> Iterator[tuple[str, Sourced[Any]]]:
        """Name and sourced value of every setting, `profile` first, for `config list`."""
        for name in ("profile", *KEYS):
            yield name, getattr(self, name)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should hear about before the first request."""
        url = self.base_url.value
        if url is None or not url.startswith("http://") or is_loopback(url):
            return ()
        return (f"{url} is not encrypted: the API key and all data cross the network in clear; use https://",)

    def require_base_url(self) -> str:
        """The service's address. Raises ConfigError saying how to configure one, also where --profile names none: a slip of the pen must
        not reach the service that the environment names.
        """
        name, known = self.profile.value, sorted(self.file.profiles)
        is_slip = self.profile.source == "--profile" and name not in (*known, DEFAULT_PROFILE)
        if self.base_url.value is not None and not is_slip:
            return self.base_url.value
        other = "set CRMCTL_BASE_URL" if self.base_url.value is None else "leave --profile out"
        way = f"run `crmctl auth login --profile {name} --base-url URL`, or {other}"
        if name in known:
            raise ConfigError(f"profile {name!r} has no base_url", hint=way, code="no_base_url")
        if known or is_slip:
            hint = f"known profiles: {', '.join(known)}; or {way}" if known else way
            raise ConfigError(f"there is no profile {name!r} ({self.profile.source})", hint=hint, code="unknown_profile")
        raise ConfigError(
            "no service is configured yet", hint="run `crmctl auth login --base-url URL`, or set CRMCTL_BASE_URL", code="no_base_url"
        )

    def require_origin(self) -> str:
        """Scheme, host and port that a key has to belong to. Raises ConfigError like require_base_url."""
        return origin_of(self.require_base_url())


def load_settings(environ: Mapping[str, str], flags: Flags, paths: Paths) -> Settings:
    """Merge all sources. Raises ConfigError for a broken file or variable, UsageError for a flag; the message names the source."""
    file = ConfigFile.load(paths.config_file)
    profile = _profile(environ, flags, file)
    sources = (
        {name: (f"--{name.replace('_', '-')}", getattr(flags, name, None)) for name in KEYS},
        {name: (key.variable, environ.get(key.variable) or None) for name, key in KEYS.items() if key.variable},
        {name: (f"[profiles.{profile.value}]", value) for name, value in file.profiles.get(profile.value, {}).items()},
        {name: ("config.toml", value) for name, value in file.top.items()},
    )
    values: dict[str, Sourced[Any]] = {}
    for name, key in KEYS.items():
        given = (source[name] for source in sources if name in source)
        label, raw = next((entry for entry in given if entry[1] is not None), ("default", key.default))
        values[name] = Sourced(raw if raw is None else _parsed(name, key.parse, raw, str(label)), str(label))
    return Settings(profile=profile, file=file, **values)


def _profile(environ: Mapping[str, str], flags: Flags, file: ConfigFile) -> Sourced[str]:
    candidates = (
        ("--profile", flags.profile),
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
        shown = re.sub("//[^/]*@", "//…@", str(raw))  # a password pasted into a URL stays off the screen
        words = error.words if isinstance(error, NotAChoice) else ()
        hint = suggestion(shown, words, f"correct or remove {source}")
        raise kind(f"{name} {error}, not {shown!r} (from {source})", hint=hint) from error
