"""How a worker and a graph server prove to each other that they hold the run's token, before any frame."""

import socket
import time
from collections.abc import Mapping
from typing import Any

from siafu import __version__
from siafu.wire.handshake import HandshakeError, authenticate
from siafu.workers.lease import Lease

_MAX_NAME = 200


class Refused(Exception):
    """One side does not take the other; the text says why."""


def admit(sock: socket.socket, token: str, *, binding: bytes, wait_s: float) -> str:
    """The server's side; returns the worker's name, or raises Refused."""
    try:
        found = _meet(sock, token, {"worker": ""}, listening=True, binding=binding, wait_s=wait_s)
    except HandshakeError as stranger:
        raise Refused(f"it is no worker of this run: {stranger}") from stranger
    name = _text(found, "worker")
    _check_version(name, of_worker=_text(found, "version"), of_run=__version__)
    return name


def enter(sock: socket.socket, lease: Lease, *, binding: bytes, wait_s: float) -> None:
    """The worker's side; raises Refused."""
    own = {"worker": lease.worker}
    try:
        found = _meet(sock, lease.token, own, listening=False, binding=binding, wait_s=wait_s)
    except HandshakeError as stranger:
        raise Refused(f"{stranger}; is the lease of another run?") from stranger
    _check_version(lease.worker, of_worker=__version__, of_run=_text(found, "version"))


def _meet(
    sock: socket.socket,
    token: str,
    own: Mapping[str, str],
    *,
    listening: bool,
    binding: bytes,
    wait_s: float,
) -> dict[str, Any]:
    until = time.monotonic() + wait_s
    identity = {**own, "version": __version__}
    return authenticate(sock, token.encode(), identity, listening=listening, until=until, binding=binding)


def _check_version(worker: str, *, of_worker: str, of_run: str) -> None:
    if of_worker != of_run:
        raise Refused(
            f"worker {worker!r} runs siafu {of_worker}, this run {of_run}; install the same version on both sides "
            "(for a function: deploy its package again)"
        )


def _text(identity: Mapping[str, Any], name: str) -> str:
    value = identity.get(name)
    if not isinstance(value, str) or len(value) > _MAX_NAME or not value.isprintable():
        raise Refused(f"it names its {name} as {value!r:.60}, expected printable text")
    return value
