"""Network addresses of ranks: which one to listen on, and whether the rendezvous address can be reached."""

import errno
import socket
import time
from ipaddress import ip_address

_RETRY_S = 0.1
_EXTERNAL_ADDRESS = (
    "192.0.2.1"  # reserved for documentation: no packet is sent, but the kernel picks the outgoing interface
)


def listen_for_rendezvous(address: str, port: int) -> tuple[str, socket.socket]:
    """Listen at the rendezvous address; returns the address by which this host reaches it.

    A name that other hosts resolve to this host may resolve here to the loopback or to a gateway; then this listens on
    all addresses.
    """
    found = _resolve(address, port)
    everywhere = _is_loopback(found) and not is_loopback_name(address)
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
    """Return once something listens at the rendezvous address."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=max(1.0, seconds / 10)).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{socket.gethostname()} could not reach the rendezvous address {address}:{port} "
                    f"within {seconds:g} s ({error}); check that rank 0 runs there and that no firewall is between"
                ) from None
        time.sleep(_RETRY_S)


def choose_bind_address(address: str, port: int) -> str:
    """Return the address of this host that ranks can reach whose rendezvous is at ``address``."""
    found = _resolve(address, port)
    if is_loopback_name(address):
        return found
    if _is_loopback(found):
        found = _EXTERNAL_ADDRESS
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


def is_loopback_name(address: str) -> bool:
    """Return whether an address means the loopback on every host."""
    return address == "localhost" or _is_loopback(address)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
