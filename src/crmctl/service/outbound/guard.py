"""Decide which addresses webhooks and workflows may call."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from urllib.parse import quote, urlsplit

from crmctl.frozen import frozen
from crmctl.models.jsontext import Json
from crmctl.service.faults import BadRequest
from crmctl.version import __version__

ATTEMPT_SECONDS = 15.0
"""Limit of a whole attempt, from looking up the name to the last byte of the answer."""

USER_AGENT = f"crmctl-service/{__version__}"


class CallFailedError(Exception):
    """There was no answer, or the address must not be called; the text says why. The call may have arrived nevertheless."""


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))

_SPECIAL: dict[str, str] = {
    "this network": "0.0.0.0/8 ::/128",
    "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16",
    "shared by carriers; clouds answer here": "100.64.0.0/10",
    "loopback": "127.0.0.0/8 ::1/128",
    "a cloud's own service": "168.63.129.16/32",
    "link-local; clouds answer here": "169.254.0.0/16 fe80::/10",
    "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
    "6to4": "192.88.99.0/24 2002::/16",
    "benchmarking": "198.18.0.0/15",
    "multicast": "224.0.0.0/4 ff00::/8",
    "reserved": "240.0.0.0/4",
    "IPv4-compatible": "::/96",
    "NAT64 of a local network": "64:ff9b:1::/48",
    "discard": "100::/64",
    "Teredo": "2001::/32",
    "protocol assignments": "192.0.0.0/24 2001::/23",
    "segment routing": "5f00::/16",
    "unique local; clouds answer here": "fc00::/7",
    "site-local": "fec0::/10",
}
"""IANA's IPv4 and IPv6 special-purpose registries (what is not globally reachable), multicast, withdrawn networks, and addresses of cloud
services. The first match gives the name."""

_NETWORKS = [(ipaddress.ip_network(network), name) for name, networks in _SPECIAL.items() for network in networks.split()]

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_EMBEDDING = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv4-mapped and NAT64 networks: their addresses lead to the IPv4 address in the last 32 bits."""


def reached(address: Address) -> Address:
    """Return the address that a connection reaches: the IPv4 address inside a mapped or NAT64 one, else the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def why_not_public(address: Address) -> str | None:
    """Return what a `reached` address is instead of public, None for a public one."""
    for network, name in _NETWORKS:
        if address.version == network.version and address in network:
            return name
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return "not assigned to anybody"
    return None


Resolver = Callable[[str, int], Sequence[str]]


def resolve(host: str, port: int) -> list[str]:
    """Return all addresses of a host name in the system's order. Raises CallFailedError."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise CallFailedError(f"the host name {host} has no address") from error
    return list(dict.fromkeys(str(item[4][0]) for item in entries))


class Lookups:
    """Thread-safe name lookups, one at a time per name: a name whose servers are silent occupies one thread only."""

    def __init__(self, resolver: Resolver = resolve) -> None:
        self._resolver = resolver
        self._guarded = threading.Lock()
        self._under_way: dict[tuple[str, int], Future[Sequence[str]]] = {}

    def addresses(self, host: str, port: int, seconds: float) -> Sequence[str]:
        """Return at least one address. Raises CallFailedError, also when the time is over."""
        try:
            addresses = self._ask(host, port).result(max(0.0, seconds))
        except TimeoutError:
            raise CallFailedError(f"the host name {host} could not be looked up in time") from None
        if not addresses:
            raise CallFailedError(f"the host name {host} has no address")
        return addresses

    def _ask(self, host: str, port: int) -> Future[Sequence[str]]:
        with self._guarded:
            future = self._under_way.get((host, port))
            if future is None:
                future = self._under_way[host, port] = Future()
                threading.Thread(target=self._run, args=(host, port, future), name="lookup", daemon=True).start()
            return future

    def _run(self, host: str, port: int, future: Future[Sequence[str]]) -> None:
        try:
            future.set_result(self._resolver(host, port))
        except Exception as error:
            future.set_exception(error)
        finally:
            with self._guarded:
                del self._under_way[host, port]


_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?")
_KEPT_IN_PATH = "%/:?[]@!$&'()*+,;=~"


class ForbiddenTargetError(BadRequest):
    """The address must not be called. The text says why; the delivery history shows it."""

    def __init__(self, message: str, details: Json | None = None) -> None:
        super().__init__(message, details or {"field": "url"})


@frozen
class VettedAddress:
    """Connect to `address`, speak to `host`. `host` and `path`, which includes the query, are ASCII.

    Until a name is resolved, `address` is the one that the host spells out, else empty.
    """

    scheme: str
    host: str
    port: int
    address: str
    path: str


class TargetGuard:
    """Refuses everything that is not public, except for the `allowed` networks (with `--dev`: loopback)."""

    def __init__(self, allowed: Iterable[Network] = (), resolver: Resolver = resolve) -> None:
        self._allowed = tuple(allowed)
        self._lookups = Lookups(resolver)

    def check_url(self, url: str) -> None:
        """Raise ForbiddenTargetError for a URL that can never be called. Resolves nothing."""
        if literal := read_target(url).address:
            self._vet(literal)

    def vet(self, url: str, seconds: float = ATTEMPT_SECONDS) -> VettedAddress:
        """Resolve and vet a URL. Every address of a name must be allowed: mixing public and private ones is an attack or a mistake.

        Raises ForbiddenTargetError, or CallFailedError, also when the name is not resolved within `seconds`.
        """
        target = read_target(url)
        addresses = [target.address] if target.address else self._lookups.addresses(target.host, target.port, seconds)
        for address in addresses:
            self._vet(address.partition("%")[0])
        return replace(target, address=addresses[0])

    def _vet(self, address: str) -> None:
        real = reached(ipaddress.ip_address(address))
        if any(real.version == network.version and real in network for network in self._allowed):
            return
        problem = why_not_public(real)
        if problem is not None:
            raise ForbiddenTargetError(f"{address} is not a public address ({problem})")


def read_target(url: str) -> VettedAddress:
    """Parse more strictly than any URL parser, so that no two of them can read the same text differently. Raises ForbiddenTargetError for a
    text that is no web address."""
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
    return VettedAddress(parts.scheme, host, port or {"https": 443, "http": 80}[parts.scheme], literal, path)


def _host(name: str, *, is_bracketed: bool) -> tuple[str, str]:
    """Return a host name in ASCII, and the address, if any, it spells out in a notation that connect() takes (1.2.3.4, 0x7f.1, 2130706433,
    [::1])."""
    if "%" in name:
        raise ForbiddenTargetError("the URL must not name a network interface, or a host with a percent sign")
    if is_bracketed:
        try:
            address = ipaddress.IPv6Address(name)
        except ValueError as error:
            raise ForbiddenTargetError("the URL cannot be read") from error
        return str(address), str(address)
    try:
        host = name.encode("idna").decode("ascii").lower().removesuffix(".")
    except UnicodeError as error:
        raise ForbiddenTargetError("the URL's host name cannot be read") from error
    if not _NAME.fullmatch(host):
        raise ForbiddenTargetError("the URL's host name cannot be read")
    try:
        return host, str(ipaddress.IPv4Address(socket.inet_aton(host)))
    except (OSError, ValueError):
        return host, ""
