"""S1: which addresses may be dialled for a URL that comes from data."""

from __future__ import annotations

import pytest

from redrive.errors import ConfigError, TargetDenied
from redrive.net.guard import Guard

PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1 168.63.129.17
169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
203.0.114.1 223.255.255.255 2606:4700:4700::1111 2001:4860:4860::8888 2a00:1450::1 2400:cb00::1 ::ffff:8.8.8.8
64:ff9b::808:808 2a00::5efe:808:808
""".split()  # noqa: SIM905 - a table
DENIED = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 127.0.0.1 127.255.255.254 168.63.129.16 169.254.0.1
169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.1 192.168.255.255
198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 :: ::1 ::2
::ffff:0:1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::a9fe:a9fe
64:ff9b:1::1 64:ff9b:1:2::808:808 100::1 100:0:0:1::1 2001::1 2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1
2001:db8::1 2002:7f00:1:: 2002:808:808::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1
10.128.0.1 100.64.0.0 100.127.255.255 127.1.2.3 169.254.0.0 169.254.255.255 172.16.0.0 172.24.1.1 192.0.0.0 192.0.0.255
192.0.2.255 192.88.99.255 192.168.100.1 198.18.0.0 198.51.100.0 203.0.113.255 0.255.255.255 240.1.2.3 254.255.255.254
::ffff:100.64.0.1 ::ffff:172.16.0.1 ::ffff:192.168.0.1 ::ffff:0.0.0.1 64:ff9b::c0a8:1 64:ff9b::a00:1 2001:0:a00:1::1
2002:a00:1:: 2002:c0a8:1::1 fd12:3456::1 fdff::1 fe80::ffff:1 febf::1 feff::1
ff0e::1 2a00::5efe:7f00:1 2a00::200:5efe:a00:1 fe80::5efe:a00:1 4000::1
""".split()  # noqa: SIM905 - a table


def test_s1_only_the_public_internet_may_be_dialled() -> None:
    guard = Guard()
    assert {address: why for address in PUBLIC if (why := guard.denies(address))} == {}
    assert [address for address in DENIED if not guard.denies(address)] == []


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "\uff11\uff12\uff17.0.0.1"])
def test_what_is_no_address_is_denied(text: str) -> None:
    assert Guard().denies(text) == "it is no address"


def test_one_denied_address_denies_a_host() -> None:
    with pytest.raises(TargetDenied, match=r"two\.example leads to 10\.0\.0\.1, which is not public \(private\)"):
        Guard().check("two.example", ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(TargetDenied, match=r"^10\.0\.0\.1 is not public \(private\)"):
        Guard().check("10.0.0.1", ["10.0.0.1"])


def test_networks_can_be_allowed() -> None:
    guard = Guard(["10.1.0.0/16", "fd00::/8"])
    guard.check("partner.example", ["10.1.2.3", "fd12::1", "8.8.8.8"])
    assert guard.denies("10.2.0.1") == "private"
    assert guard == Guard(["10.1.0.0/16", "fd00::/8"]) != Guard()
    with pytest.raises(ConfigError, match="'intranet' is not a network"):
        Guard(["intranet"])
