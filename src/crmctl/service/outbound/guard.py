"""Which addresses a webhook or a workflow may call: public ones only, unless the operator allows more.

A name is resolved once, so that the vetted address is the one connected to.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from crmctl.service.outbound.addresses import Address, Network, reached, why_not_public
from crmctl.service.outbound.lookup import Lookups, Resolver, resolve

LOOKUP_SECONDS = 15.0

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")
_KEPT_IN_PATH = "%/:?[]@!$&'()*+,;=~"


class ForbiddenTargetError(Exception):
    """The address must not be called; the text says why and is shown in the delivery history."""


@dataclass(frozen=True)
class VettedAddress:
    """A vetted address: connect to `address`, speak to `host`, in ASCII, as is `path` with its query."""

    scheme: str
    host: str
    port: int
    address: str
    path: str


@dataclass(frozen=True)
class _Url:
    """A target without its address. `literal` is the address that the host spells out, where it does."""

    scheme: str
    host: str
    port: int
    path: str
    literal: Address | None


def check_form(url: str) -> None:
    """Refuse what is no web address at all, whoever it belongs to. Raises ForbiddenTargetError."""
    _read(url)


class TargetGuard:
    """`allowed` are networks the operator opened (for `--dev`: loopback); everything not public is refused otherwise."""

    def __init__(self, allowed: Iterable[Network] = (), resolver: Resolver = resolve) -> None:
        self._allowed = tuple(allowed)
        self._lookups = Lookups(resolver)

    def check_url(self, url: str) -> None:
        """Refuse an URL that can never be called. Raises ForbiddenTargetError; resolves nothing."""
        literal = _read(url).literal
        if literal is not None:
            self._vet(literal)

    def vet(self, url: str, seconds: float = LOOKUP_SECONDS) -> VettedAddress:
        """Resolve and vet. Every address of a name must be allowed: a name that mixes public and private ones is an attack or a mistake.

        Raises ForbiddenTargetError or UnresolvableTargetError, the latter also when the name was not resolved within `seconds`.
        """
        read = _read(url)
        addresses = [str(read.literal)] if read.literal is not None else self._lookups.addresses(read.host, read.port, seconds)
        for address in addresses:
            self._vet(ipaddress.ip_address(address.partition("%")[0]))
        return VettedAddress(read.scheme, read.host, read.port, addresses[0], read.path)

    def _vet(self, address: Address) -> None:
        real = reached(address)
        if any(real.version == network.version and real in network for network in self._allowed):
            return
        problem = why_not_public(real)
        if problem is not None:
            raise ForbiddenTargetError(f"{address} is not a public address ({problem})")


def _read(url: str) -> _Url:
    """Stricter than any parser of URLs, so that no two of them can read the same text differently."""
    if any(unicodedata.category(character)[0] in "CZ" or character == "\\" for character in url):
        raise ForbiddenTargetError("the URL must not hold blanks, line breaks, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port, name = parts.port, parts.hostname or ""
    except ValueError as error:
        raise ForbiddenTargetError("the URL cannot be read") from error
    if parts.scheme not in ("http", "https") or not name:
        raise ForbiddenTargetError("the URL must start with https:// or http:// and name a host")
    if "@" in parts.netloc:
        raise ForbiddenTargetError("the URL must not hold a user name or password")
    if port == 0:
        raise ForbiddenTargetError("the URL must not name port 0")
    host, literal = _host(name, is_bracketed="[" in parts.netloc)
    path = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_KEPT_IN_PATH)
    return _Url(parts.scheme, host, port or {"https": 443, "http": 80}[parts.scheme], path, literal)


def _host(name: str, *, is_bracketed: bool) -> tuple[str, Address | None]:
    """A host name in ASCII, and the address it spells out in a notation that connect() would take (1.2.3.4, 0x7f.1, 2130706433, [::1])."""
    if "%" in name:
        raise ForbiddenTargetError("the URL must not name a network interface, or a host with a percent sign")
    if is_bracketed:
        try:
            address = ipaddress.IPv6Address(name)
        except ValueError as error:
            raise ForbiddenTargetError("the URL cannot be read") from error
        return str(address), address
    try:
        host = name.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError as error:
        raise ForbiddenTargetError("the URL's host name cannot be read") from error
    if not _NAME.fullmatch(host):
        raise ForbiddenTargetError("the URL's host name cannot be read")
    try:
        return host, ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return host, None
