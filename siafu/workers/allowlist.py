"""The addresses that a serverless function may dial, from the environment variable ``SIAFU_LEASE_ADDRESSES``.

Entries are separated by commas: a host, a network such as ``10.0.0.0/16`` or ``[fd00::]/8``, or ``*`` for any address.
Each entry may end in ``:PORT`` or ``:FIRST-LAST``.
"""

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

ADDRESSES_VARIABLE = "SIAFU_LEASE_ADDRESSES"
_ENTRY = re.compile(
    r"(?:\[(?P<six>[0-9a-fA-F:]+)\](?P<bits>/\d+)?|(?P<host>[^:\[\]]+))"
    r"(?::(?P<first>\d{1,5})(?:-(?P<last>\d{1,5}))?)?"
)


class AllowedAddress(NamedTuple):
    """An entry of the list: a host or a network, and its ports."""

    host: str
    network: IPv4Network | IPv6Network | None
    ports: range

    def permits(self, host: str, port: int) -> bool:
        """Tell whether the entry covers a host name or IP address. Names are compared, not resolved."""
        if port not in self.ports:
            return False
        if self.host in ("*", host.lower()):
            return True
        with suppress(ValueError):
            return self.network is not None and ip_address(host) in self.network
        return False


def parse_allowlist(text: str) -> list[AllowedAddress]:
    """Parse a list of addresses; raises ValueError for an empty list or a wrong entry."""
    found = [_parse_entry(item) for item in re.split(r"[,\s]+", text) if item]
    if not found:
        raise ValueError(
            f"{ADDRESSES_VARIABLE} is not set; list the hosts, or networks such as 10.0.0.0/16, of the graph servers "
            "that it may dial, with commas; * stands for any address"
        )
    return found


def first_allowed(host: str, port: int, allowed: Sequence[AllowedAddress]) -> str | None:
    """Return the address to dial: the host if it is listed, else its first IP address that is, else None."""
    for each in _addresses(host, port):
        if any(entry.permits(each, port) for entry in allowed):
            return each
    return None


def _parse_entry(item: str) -> AllowedAddress:
    match = _ENTRY.fullmatch(item)
    if match is None:
        raise ValueError(
            f"{ADDRESSES_VARIABLE} lists {item!r:.60}; expected HOST, NETWORK/BITS or [IPV6], perhaps with :PORT or "
            ":FIRST-LAST"
        )
    host = (match["host"] or match["six"] + (match["bits"] or "")).lower()
    first = int(match["first"] or 1)
    last = int(match["last"] or match["first"] or 65535)
    network = None
    try:
        network = ip_network(host, strict=False)
    except ValueError:
        if "/" in host:
            raise ValueError(f"{ADDRESSES_VARIABLE} lists {item!r:.60}, which is no network") from None
    return AllowedAddress(host, network, range(first, last + 1))


def _addresses(host: str, port: int) -> Iterator[str]:
    yield host
    with suppress(OSError):
        for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            yield str(address[0])
