"""The configuration keys: their names, environment variables, types and defaults. Every source of a value is checked by the same parser."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from crmctl.errors import ConfigError
from crmctl.models.nearest import suggestion

OUTPUT_FORMATS = ("table", "json", "jsonl", "csv", "tsv", "yaml", "ids")
COLOR_MODES = ("auto", "always", "never")
DEFAULT_PROFILE = "default"

_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_FALSE = frozenset({"0", "false", "no", "off", "n", "f"})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")


def parse_bool(value: Any) -> bool:
    """True or false from a boolean or the usual words. Raises ValueError."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("must be true or false")


_LONGEST = 1e9
"""Seconds. No clock of a system counts much further."""


def _seconds(value: Any, *, zero: bool) -> float:
    try:
        if isinstance(value, bool):
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
    """A word that is none of `words`."""

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
    """A profile's name: letters, digits, dot, dash, underscore; at most 64. Raises ValueError."""
    if not isinstance(value, str) or not _PROFILE_NAME.fullmatch(value):
        raise ValueError("must be letters, digits, '.', '-' or '_', begin with a letter or digit, and have at most 64 characters")
    return value


def parse_base_url(value: Any) -> str:
    """The service's base address without a trailing slash; a pasted `/api/v1` is taken off. Raises ValueError saying what is wrong."""
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


def origin_of(url: str) -> str:
    """Scheme, host and port of a URL, normalised: lower case, default port left out, international names in ASCII."""
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


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True)
class SettingKey:
    """One configuration key. `parse` takes a TOML value or text and raises ValueError with a phrase that follows the key's name."""

    name: str
    parse: Callable[[Any], Any]
    help: str
    variable: str | None = None
    default: Any = None


KEYS: dict[str, SettingKey] = {
    key.name: key
    for key in (
        SettingKey("base_url", parse_base_url, "address of the service", "CRMCTL_BASE_URL"),
        SettingKey("output", _choice(*OUTPUT_FORMATS), "output format", "CRMCTL_OUTPUT"),
        SettingKey("timeout", lambda value: _seconds(value, zero=False), "seconds to wait for one answer", "CRMCTL_TIMEOUT", 30.0),
        SettingKey(
            "max_wait", lambda value: _seconds(value, zero=True), "most seconds to wait in retries and for the rate limit", None, 300.0
        ),
        SettingKey("color", _choice(*COLOR_MODES), "colour in the output", None, "auto"),
        SettingKey("ca_bundle", _text, "file with the certificate authorities to trust"),
        SettingKey("no_input", parse_bool, "never prompt", "CRMCTL_NO_INPUT", False),
        SettingKey("read_only", parse_bool, "refuse every write", "CRMCTL_READ_ONLY", False),
        SettingKey("pager", _text, "command that shows lists on a terminal, for example less", "CRMCTL_PAGER"),
        SettingKey("protected", parse_bool, "refuse writes unless the profile's name is typed", None, False),
    )
}
"""What a profile may hold, and what the top level may hold as everybody's default."""

TOP_LEVEL_ONLY = {"default_profile": parse_profile_name}


def find_key(name: str) -> SettingKey:
    """The key with this name (dashes count as underscores). Raises ConfigError with the valid names."""
    key = KEYS.get(name.replace("-", "_"))
    if key is None:
        valid = [*TOP_LEVEL_ONLY, *KEYS]
        raise ConfigError(f"there is no configuration key {name!r}", hint=suggestion(name, valid, f"valid keys: {', '.join(valid)}"))
    return key
