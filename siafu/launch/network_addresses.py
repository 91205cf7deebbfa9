"""Addresses: on which one to listen so that other ranks reach this one, and whether a meeting place is there."""

import errno
import socket
import time
from ipaddress import ip_address

_RETRY_S = 0.1
_ELSEWHERE = (
    "192.0.2.1"  # reserved for documentation: no packet is sent, but the kernel says which way it would go
)


def listen(address: str, port: int) -> tuple[str, socket.socket]:
    """Listen where ranks meet; returns the address by which this host reaches itself there.

    A name that other hosts resolve to this one may here mean the loopback, or a gate before it: then on all addresses.
    """
    found = _resolve(address, port)
    everywhere = _is_loopback(found) and not says_loopback(address)
    try:
        return found, _listen("" if everywhere else found, port)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return "127.0.0.1", _listen("", port)
        raise


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise ValueError(
            f"port {port} of {socket.gethostname()}, where ranks are to meet, is in use; end what listens there "
            "(see ss -ltnp) or set MASTER_PORT to a free port on all ranks"
        ) from None


def wait_until_reachable(address: str, port: int, *, seconds: float) -> None:
    """Return once something listens at the meeting place."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=max(1.0, seconds / 10)).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{socket.gethostname()} could not reach the meeting place {address}:{port} within {seconds:g} s "
                    f"({error}); check that rank 0 runs there and that no firewall is between"
                ) from None
        time.sleep(_RETRY_S)


def address_to_bind(address: str, port: int) -> str:
    """The address of this host by which ranks reach it that meet at ``address``."""
    found = _resolve(address, port)
    if says_loopback(address):
        return found
    if _is_loopback(found):
        found = _ELSEWHERE
    family = socket.AF_INET6 if ":" in found else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((found, port or 9))
        return str(probe.getsockname()[0])


def _resolve(address: str, port: int) -> str:
    try:
        known = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(
            f"the host {address!r}, where ranks are to meet, is not known on {socket.gethostname()} ({error}); "
            "set MASTER_ADDR"
        ) from None
    return str(min(known, key=lambda each: each[0] != socket.AF_INET)[4][0])


def says_loopback(address: str) -> bool:
    """Whether an address means the loopback on every host."""
    return address == "localhost" or _is_loopback(address)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
