"""The SSRF guard: which addresses a URL that comes from data may lead to.

Only addresses of the public internet. The table is that of IANA's special-purpose registries; an IPv6 address that
carries an IPv4 address is judged by it too. The address that is dialled is judged, not the name: a name may resolve
differently each time.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from redrive.core.quantity import shown
from redrive.errors import ConfigError, TargetDenied

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DENIED = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by carriers",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "metadata of a cloud",
    "169.254.0.0/16": "link-local, metadata of clouds",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "multicast tunnels",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "64:ff9b:1::/48": "local NAT64",
    "2001::/23": "protocol assignments, Teredo",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
    "::/128": "unspecified",
    "::1/128": "loopback",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_TABLE = tuple((ipaddress.ip_network(network), why) for network, why in DENIED.items())
_GLOBAL = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)
"""The middle of an interface id that has an IPv4 address at its end."""


class Guard:
    """`allow`: networks that may be reached all the same, as "10.1.0.0/16" for partners in a private network."""

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self.allow = tuple(_network(each) for each in allow)

    def __eq__(self, other: object) -> bool:
        return self.allow == other.allow if isinstance(other, Guard) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.allow)

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raises TargetDenied if one of the addresses of this host is denied: then none of them is dialled."""
        for text in addresses:
            why = self.denies(text)
            if why:
                hint = "use a public address, or allow its network"
                which = f"{text} is" if host.strip("[]") == text else f"{host} leads to {text}, which is"
                raise TargetDenied(f"{which} not public ({why})", hint=hint)

    def denies(self, text: str) -> str:
        """Why the address may not be reached; "" if it may."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return "it is no address"
        if any(_within(address, network) for network in self.allow):
            return ""
        return _why(address)


def _why(address: Address) -> str:
    for network, why in _TABLE:
        if _within(address, network):
            return why
    if isinstance(address, ipaddress.IPv4Address):
        return ""
    inner = _embedded(address)
    if inner is not None:
        return _why(inner)
    return "" if address in _GLOBAL else "reserved"


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that it stands for, or that its interface id names."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64:
        return low
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and _why(low):
        return low
    return None


def _within(address: Address, network: Network) -> bool:
    return address.version == network.version and address in network


def _network(text: object) -> Network:
    try:
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        hint = "use networks such as 10.1.0.0/16"
        raise ConfigError(f"{shown(text)} is not a network", field="allow", hint=hint) from None
