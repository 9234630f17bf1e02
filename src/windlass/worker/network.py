"""Which addresses jobs may be sent to.

A worker or a handler names its own address, so a stranger may name one that only this machine can reach. What counts is
the address that a connection is made to, never the name that led there. Python's own `is_global` is not enough: it lets
multicast and several forms pass in which an IPv6 address stands for an IPv4 one.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from msgspec import Struct

from windlass.model import push
from windlass.model.errors import Denied, Invalid
from windlass.model.push import read_url

IP = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as text."""

# Everything that IANA lists as special: own, private, shared, local, documentation, relays, tests, multicast, reserved.
NOT_FOR_ALL_V4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24"),
            *("192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
            *("224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
FOR_ALL_V6 = IPv6Network("2000::/3")
# Within it: protocol assignments and Teredo, documentation, 6to4, AS112.
NOT_FOR_ALL_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")))
NAT64 = IPv6Network("64:ff9b::/96")
NEAR: tuple[IPNetwork, ...] = (
    *map(IPv4Network, ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),
    *map(IPv6Network, ("::1/128", "fc00::/7")),
)
"""This machine itself, and private networks."""


class Allowed(Struct, frozen=True):
    """What an operator allows beyond public addresses."""

    near: bool = False
    """This machine and private networks, at any port: for workers that all tenants trust."""
    networks: tuple[tuple[IPNetwork, int], ...] = ()
    """With the one port that may be reached there."""
    hosts: frozenset[tuple[str, int]] = frozenset()
    """Names and ports; their addresses are not checked."""

    def check(self, host: str, port: int, addresses: Sequence[str], *, encrypted: bool) -> list[IP]:
        """The addresses of a host, if jobs may be sent to every one of them."""
        found = [inner(ip_address(address.partition("%")[0])) for address in addresses]
        if not found:
            raise Denied(f"{host} has no address", at="url")
        if (host, port) in self.hosts or all(self._is_allowed(address, port) for address in found):
            return found
        for address in found:
            if not self._is_allowed(address, port) and not is_for_all(address):
                raise Denied(
                    f"jobs are not sent to {host}: {address} is not a public address, and the operator has not "
                    f"allowed it (--reach {_entry(address, port)})",
                    at="url",
                )
        if not encrypted:
            raise Denied(f"jobs are sent to {host} only with https://", at="url")
        return found

    def _is_allowed(self, address: IP, port: int) -> bool:
        if self.near and any(address in network for network in NEAR):
            return True
        return any(address in network and port == allowed for network, allowed in self.networks)


def read_allowed(entries: Sequence[str], *, at: str = "reach") -> Allowed:
    """What an operator wrote: a network (`10.1.0.0/16:8443`), an address or a host, each with its port."""
    networks: list[tuple[IPNetwork, int]] = []
    hosts: set[tuple[str, int]] = set()
    for entry in entries:
        host, _, port = entry.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16 or _is_network(entry):
            raise Invalid(
                f"{entry!r} is no address with its port: write 10.1.0.0/16:8443, [::1]:8080 or HOST:PORT", at=at
            )
        if _is_network(host):
            networks.append((ip_network(host), int(port)))
        elif "/" in host or ":" in host:
            raise Invalid(f"{host!r} is no network: write 10.1.0.0/16:{port} or [fd00::/8]:{port}", at=at)
        else:
            hosts.add((host.lower(), int(port)))
    return Allowed(False, tuple(networks), frozenset(hosts))


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _entry(address: IP, port: int) -> str:
    return f"[{address}]:{port}" if isinstance(address, IPv6Address) else f"{address}:{port}"


def inner(address: IP) -> IP:
    """The address that is reached in the end, where one stands for another."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else address


def is_for_all(address: IP) -> bool:
    """Whether an address is public: it means the same everywhere. Old forms of IPv4 in IPv6 do not."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_FOR_ALL_V4)
    return address in FOR_ALL_V6 and not any(address in network for network in NOT_FOR_ALL_V6)


async def resolve(host: str, port: int) -> list[str]:
    """Ask the machine."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Network(NamedTuple):
    """How addresses are reached."""

    allowed: Allowed
    resolve: Resolve = resolve
    tls: ssl.SSLContext | None = None
    """Which certificates to trust; null = those the system trusts."""
    answer_within: float = push.ANSWER_WITHIN


LOOK_UP_WITHIN = 5.0
"""Seconds to look up a name that is checked."""


async def check_url(url: str, network: Network, *, at: str) -> None:
    """Refuse an address that no job will be sent to. What a name means is looked up again for each connection."""
    address = read_url(url, at=at)
    try:
        async with asyncio.timeout(LOOK_UP_WITHIN):
            found = await network.resolve(address.host, address.port)
    except (OSError, TimeoutError, UnicodeError):
        return  # the name has no address now; perhaps later
    try:
        network.allowed.check(address.host, address.port, found, encrypted=address.scheme == "https")
    except Denied as fault:
        raise Denied(fault.detail, at=at) from None
