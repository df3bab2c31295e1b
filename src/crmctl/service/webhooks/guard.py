"""Which addresses a webhook or a workflow may call: public ones only, unless the operator allows more.

A name is resolved once, so that the vetted address is the one connected to.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolver = Callable[[str, int], Sequence[str]]

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenTargetError(Exception):
    """The address must not be called; the text says why and is shown in the delivery history."""


class UnresolvableTargetError(Exception):
    """The host name has no address right now: worth another try later."""


@dataclass(frozen=True)
class Target:
    """A vetted address: connect to `address`, speak to `host`."""

    scheme: str
    host: str
    port: int
    address: str
    path: str


def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host name, in the system's order."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnresolvableTargetError(f"the host name {host} has no address") from error
    return list(dict.fromkeys(str(item[4][0]) for item in found))


class TargetGuard:
    """`allowed` are networks the operator opened (for `--dev`: loopback); everything not public is refused otherwise."""

    def __init__(self, allowed: Iterable[Network] = (), resolver: Resolver = resolve) -> None:
        self._allowed = tuple(allowed)
        self._resolver = resolver

    def check_url(self, url: str) -> None:
        """Refuse an URL that can never be called. Raises ForbiddenTargetError; resolves nothing."""
        parts = _split(url)
        literal = _literal(parts.hostname or "")
        if literal is not None:
            self._vet(literal)

    def vet(self, url: str) -> Target:
        """Resolve and vet. Every address of a name must be allowed: a name that mixes public and private ones is an attack or a mistake.

        Raises ForbiddenTargetError or UnresolvableTargetError.
        """
        parts = _split(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        literal = _literal(host)
        addresses = [str(literal)] if literal is not None else list(self._resolver(host, port))
        if not addresses:
            raise UnresolvableTargetError(f"the host name {host} has no address")
        for address in addresses:
            self._vet(ipaddress.ip_address(address.partition("%")[0]))
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(parts.scheme, host, port, addresses[0], path)

    def _vet(self, address: Address) -> None:
        real = _unwrapped(address)
        if any(real.version == network.version and real in network for network in self._allowed):
            return
        if not real.is_global or real.is_multicast or real.is_reserved:
            raise ForbiddenTargetError(f"{address} is not a public address")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ForbiddenTargetError("the URL cannot be read") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ForbiddenTargetError("the URL must start with https:// or http:// and name a host")
    if parts.username or parts.password:
        raise ForbiddenTargetError("the URL must not hold a user name or password")
    return parts


def _literal(host: str) -> Address | None:
    """The address a host spells out, in every notation that connect() would accept (1.2.3.4, 0x7f.1, 2130706433, [::1])."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError, UnicodeError):
        return None


def _unwrapped(address: Address) -> Address:
    """The IPv4 address inside a mapped, 6to4 or NAT64 one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
