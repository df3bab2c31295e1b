"""Addresses that are not public are refused in every notation, with the reason; the guard returns the address it vetted."""

from __future__ import annotations

import ipaddress
import re
import threading

import pytest

from crmctl.service.outbound.guard import CallFailedError, ForbiddenTargetError, TargetGuard
from tests.support.patience import PATIENCE

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")]

NOT_PUBLIC = re.findall(
    r"\S+",
    """
    0.0.0.0 0.1.2.3 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.255
    168.63.129.16 169.254.0.0 169.254.169.254 169.254.255.255 172.16.0.0 172.31.255.255 192.0.0.0 192.0.0.9 192.0.0.192 192.0.0.255
    192.0.2.0 192.0.2.255 192.88.99.0 192.88.99.255 192.168.0.0 192.168.255.255 198.18.0.0 198.19.255.255 198.51.100.0 198.51.100.255
    203.0.113.0 203.0.113.255 224.0.0.1 239.255.255.255 240.0.0.0 255.255.255.254 255.255.255.255 :: ::1 ::7f00:1 ::808:808
    ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:168.63.129.16 ::ffff:0:7f00:1 64:ff9b::127.0.0.1 64:ff9b::168.63.129.16 64:ff9b::10.0.0.1
    64:ff9b::169.254.169.254 64:ff9b::192.0.0.192 64:ff9b:1::1 64:ff9b:1:ffff::8.8.8.8 100::1 100:0:0:1::1 200::1 400::1 1fff:ffff::1
    4000::1 5f00::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:1ff:ffff::1 2001:db8::1 2001:db8:ffff::1
    2002:7f00:1:: 2002:a00:1:: 2002:c0a8:101::1 2002:a9fe:a9fe:: 2002:808:808:: 3fff::1 3fff:fff:ffff::1 fc00::1 fd00:ec2::254
    fd20:ce::254 fdff:ffff::1 fe80::1 febf::1 fec0::1 feff::1 ff02::1 ffff:ffff::1
    """,
)

PUBLIC = re.findall(
    r"\S+",
    """
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.15 168.63.129.17
    169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.88.98.255 192.88.100.0
    192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.99.255 203.0.112.255 203.0.114.0 223.255.255.255 2000::1 2001:200::1
    2001:4860:4860::8888 2001:db7:ffff::1 2001:db9::1 2003::1 2606:4700::1111 2a00:1450::1 3ffe:ffff::1 3fff:1000::1
    64:ff9b::8.8.8.8 64:ff9b::168.63.129.17
    ::ffff:8.8.8.8 ::ffff:168.63.129.17
    """,
)


def guard(*addresses: str, dev: bool = False) -> TargetGuard:
    return TargetGuard(LOOPBACK if dev else (), resolver=lambda host, port: addresses)


def in_url(address: str) -> str:
    return f"https://[{address}]/hook" if ":" in address else f"https://{address}/hook"


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_a_private_address_is_refused_directly_and_behind_a_name(address: str) -> None:
    for refuse in (guard().check_url, guard().vet):
        with pytest.raises(ForbiddenTargetError, match="not a public address"):
            refuse(in_url(address))
    with pytest.raises(ForbiddenTargetError, match="not a public address"):
        guard(address).vet("https://example.com/hook")


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_accepted(address: str) -> None:
    guard().check_url(in_url(address))
    assert ipaddress.ip_address(guard(address).vet("https://example.com/hook").address) == ipaddress.ip_address(address)


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "0", "0x7f.1", "１２７.0.0.1", "127。0。0。1"]
)
def test_no_notation_of_a_private_address_passes(host: str) -> None:
    for refuse in (guard().check_url, guard().vet):
        with pytest.raises(ForbiddenTargetError, match="not a public address"):
            refuse(f"https://{host}/hook")


def test_the_reason_names_the_kind_of_address() -> None:
    with pytest.raises(ForbiddenTargetError, match=r"^168\.63\.129\.16 is not a public address \(a cloud's own service\)$"):
        guard().check_url("http://168.63.129.16/")
    with pytest.raises(ForbiddenTargetError, match=r"^64:ff9b::a00:1 is not a public address \(private\)$"):
        guard("64:ff9b::a00:1").vet("http://example.com/")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com", "file:///etc/passwd", "https://", "https:///hook", "hook", "", "//example.com/",
        "https://user:pw@example.com/", "https://user@example.com/", "https://@example.com/",
        "https://example.com:99999/", "https://example.com:0/", "https://example.com:x/", "https://example.com:-1/",
        "https://exa mple.com/", "https://example.com/a b", "https://example.com/\tb", "https://example.com/\nb",
        "https://example.com/\r\nHost: x",
        "https://example.com/\x00", "https://exam\x00ple.com/", "https://example.com/\x7f", "https://example.com/\u00a0",
        "https://example.com/\u2028",
        "https://example.com/\u200b", " https://example.com/", "https://example.com/ ", "\x01https://example.com/", "https://example.com/\ud800",
        "https://example.com\\@10.0.0.1/", "https://[::1", "https://::1/", "https://[v1.a]/", "https://[8.8.8.8]/", "https://[fe80::1%25eth0]/",
        "https://[2606:4700::1111%25eth0]/", "https://[2606:4700::1111%eth0]/", "https://127.0.0.1%25eth0/", "https://exa%6dple.com/",
        "https://-/", "https://exa*mple.com/", "https://a..b/", "https://.a/", f"https://{'a' * 64}.com/",
    ],
)  # fmt: skip
def test_only_plain_web_addresses_pass(url: str) -> None:
    for refuse in (guard("93.184.216.34").check_url, guard("93.184.216.34").vet):
        with pytest.raises(ForbiddenTargetError):
            refuse(url)


def test_a_name_with_one_private_address_is_refused() -> None:
    with pytest.raises(ForbiddenTargetError, match=r"10\.0\.0\.1"):
        guard("93.184.216.34", "10.0.0.1").vet("https://example.com/")


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("https://example.com/hook?a=1", "example.com", 443, "/hook?a=1"),
        ("http://Example.COM.:8080?a=/b#c", "example.com", 8080, "/?a=/b"),
        ("https://bücher.example/straße/%C3%A4?q=ä", "xn--bcher-kva.example", 443, "/stra%C3%9Fe/%C3%A4?q=%C3%A4"),
        ("https://a_b.example:/", "a_b.example", 443, "/"),
    ],
)
def test_the_guard_returns_the_address_to_connect_to(url: str, host: str, port: int, path: str) -> None:
    target = guard("93.184.216.34").vet(url)
    assert (target.address, target.host, target.port, target.path) == ("93.184.216.34", host, port, path)


def test_an_unknown_name_can_be_retried() -> None:
    with pytest.raises(CallFailedError):
        guard().vet("https://nowhere.invalid/")


def test_a_silent_name_server_costs_the_timeout_and_one_thread_per_name() -> None:
    answered, asked = threading.Event(), list[str]()

    def silent(host: str, port: int) -> list[str]:
        asked.append(host)
        answered.wait(PATIENCE)
        return ["93.184.216.34"]

    slow = TargetGuard(resolver=silent)
    for _ in range(3):
        with pytest.raises(CallFailedError, match="in time"):
            slow.vet("https://slow.example/", 0.05)
    assert asked == ["slow.example"]
    answered.set()
    assert slow.vet("https://slow.example/").address == slow.vet("https://other.example/").address == "93.184.216.34"


def test_development_allows_only_loopback_in_addition() -> None:
    assert guard(dev=True).vet("http://127.0.0.1:8080/").port == 8080
    assert guard(dev=True).vet("http://[::ffff:127.0.0.1]/").port == 80
    for address in ("10.0.0.1", "168.63.129.16", "0.0.0.0", "fec0::1"):
        with pytest.raises(ForbiddenTargetError):
            guard(dev=True).vet(in_url(address))
