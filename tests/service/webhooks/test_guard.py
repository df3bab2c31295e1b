"""Private, metadata and odd notations are refused; the address that was vetted is the one handed on."""

import ipaddress

import pytest

from crmctl.service.webhooks.guard import ForbiddenTargetError, TargetGuard, UnresolvableTargetError

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")]


def guard(*addresses: str, dev: bool = False) -> TargetGuard:
    return TargetGuard(LOOPBACK if dev else (), resolver=lambda host, port: addresses)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "[::1]", "[::]", "[fc00::1]", "[fe80::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]", "224.0.0.1", "255.255.255.255", "[fe80::1%25eth0]",
    ],
)  # fmt: skip
def test_no_notation_of_a_private_address_passes(host: str) -> None:
    with pytest.raises(ForbiddenTargetError):
        guard().vet(f"https://{host}/hook")
    with pytest.raises(ForbiddenTargetError):
        guard().check_url(f"https://{host}/hook")


@pytest.mark.parametrize(
    "url", ["ftp://example.com", "file:///etc/passwd", "https://", "https://user:pw@example.com/", "https://example.com:99999/", "hook"]
)
def test_only_plain_web_addresses_pass(url: str) -> None:
    with pytest.raises(ForbiddenTargetError):
        guard("93.184.216.34").vet(url)


def test_a_name_with_one_private_address_is_refused() -> None:
    with pytest.raises(ForbiddenTargetError, match=r"10\.0\.0\.1"):
        guard("93.184.216.34", "10.0.0.1").vet("https://example.com/")


def test_the_vetted_address_is_the_one_to_connect_to() -> None:
    target = guard("93.184.216.34").vet("https://example.com/hook?a=1")
    assert (target.address, target.host, target.port, target.path) == ("93.184.216.34", "example.com", 443, "/hook?a=1")


def test_an_unknown_name_is_worth_another_try() -> None:
    with pytest.raises(UnresolvableTargetError):
        guard().vet("https://nowhere.invalid/")


def test_development_allows_loopback_and_nothing_else() -> None:
    assert guard(dev=True).vet("http://127.0.0.1:8080/").port == 8080
    with pytest.raises(ForbiddenTargetError):
        guard(dev=True).vet("http://10.0.0.1/")
