"""Which IP addresses are public, by the IANA special-purpose registries. A table of our own: what `ipaddress` calls global differs from
one version of Python to the next, and leaves out addresses that clouds answer on themselves.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_SPECIAL: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(network), name)
    for network, name in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by carriers; clouds answer here"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's own service"),
        ("169.254.0.0/16", "link-local; clouds answer here"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "protocol assignments; clouds answer here"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b:1::/48", "NAT64 of a local network"),
        ("100::/64", "discard"),
        ("2001::/32", "Teredo"),
        ("2001::/23", "protocol assignments"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("3fff::/20", "documentation"),
        ("5f00::/16", "segment routing"),
        ("fc00::/7", "unique local; clouds answer here"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)
"""IANA's IPv4 and IPv6 special-purpose registries (what is not globally reachable), multicast, what was withdrawn from use, and addresses
that clouds answer on. The first that fits gives the name."""

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_EMBEDDING = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv4-mapped and NAT64: connecting to one is connecting to the IPv4 address in its last 32 bits."""


def reached(address: Address) -> Address:
    """The address that is spoken to: the IPv4 address inside a mapped or NAT64 one, else the address itself."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _EMBEDDING):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def why_not_public(address: Address) -> str | None:
    """What a `reached` address is instead of public; None for a public one."""
    for network, name in _SPECIAL:
        if address.version == network.version and address in network:
            return name
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return "not assigned to anybody"
    return None
