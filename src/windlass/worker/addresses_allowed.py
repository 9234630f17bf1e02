"""Which addresses of the network jobs may be sent to.

A worker names its own address, so a stranger may name one that only this machine can reach. Judged is the address that
a connection is made to, never the name that led there. Python's own `is_global` is not enough: it lets multicast and
several forms pass in which an IPv6 address stands for an IPv4 one.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from windlass.model.errors import Denied, Invalid

IP = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

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
LOOPBACK: tuple[Network, ...] = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))


class Allowed(Struct, frozen=True):
    """What an operator allows beyond the addresses that everybody can reach."""

    loopback: bool = False
    """This machine itself: only while nobody else can reach the server."""
    networks: tuple[Network, ...] = ()
    hosts: frozenset[tuple[str, int]] = frozenset()
    """Names and ports; their addresses are not judged."""

    def check(self, host: str, port: int, addresses: Sequence[str], *, encrypted: bool) -> list[IP]:
        """The addresses of a host, if jobs may be sent to every one of them."""
        found = [inner(ip_address(address.partition("%")[0])) for address in addresses]
        if not found:
            raise Denied(f"{host} has no address", at="url")
        if (host, port) in self.hosts or all(self._is_near(address) for address in found):
            return found
        if not encrypted:
            raise Denied(f"jobs are sent to {host} only with https://", at="url")
        for address in found:
            if not self._is_near(address) and not is_for_all(address):
                raise Denied(f"jobs are not sent to {host}: {address} is not of the open network", at="url")
        return found

    def _is_near(self, address: IP) -> bool:
        return any(address in network for network in (*self.networks, *(LOOPBACK if self.loopback else ())))


def read_allowed(entries: Sequence[str], *, loopback: bool, at: str = "push_allow") -> Allowed:
    """What an operator wrote: networks (`10.1.0.0/16`), addresses, or hosts with a port (`workers.internal:8443`)."""
    networks: list[Network] = []
    hosts: set[tuple[str, int]] = set()
    for entry in entries:
        try:
            networks.append(ip_network(entry))
            continue
        except ValueError:
            host, _, port = entry.rpartition(":")
        if not host or not port.isdecimal():
            raise Invalid(f"{entry!r} is neither a network (10.1.0.0/16) nor a host with its port", at=at)
        hosts.add((host.strip("[]").lower(), int(port)))
    return Allowed(loopback, tuple(networks), frozenset(hosts))


def inner(address: IP) -> IP:
    """The address that is reached in the end, where one stands for another."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else address


def is_for_all(address: IP) -> bool:
    """Whether an address means the same to everybody. Old forms of IPv4 in IPv6 do not."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_FOR_ALL_V4)
    return address in FOR_ALL_V6 and not any(address in network for network in NOT_FOR_ALL_V6)


async def resolve(host: str, port: int) -> list[str]:
    """Ask the machine."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
