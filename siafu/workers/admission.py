"""The handshake of a worker and a graph server: both prove that they hold the run's token, before any frame."""

import socket
import time
from collections.abc import Mapping
from typing import Any

from siafu import __version__
from siafu.wire.handshake import HandshakeError, authenticate
from siafu.workers.lease import Lease

_MAX_NAME = 200


class AdmissionRefused(Exception):
    """One side refuses the other; the text gives the reason."""


def admit_worker(sock: socket.socket, token: str, *, binding: bytes, wait_s: float) -> str:
    """Authenticate a worker, on the server's side; returns its name, or raises AdmissionRefused."""
    try:
        peer = _authenticate(sock, token, {"worker": ""}, listening=True, binding=binding, wait_s=wait_s)
    except HandshakeError as stranger:
        raise AdmissionRefused(f"it is no worker of this run: {stranger}") from stranger
    name = _text(peer, "worker")
    _check_version(name, of_worker=_text(peer, "version"), of_run=__version__)
    return name


def join_run(sock: socket.socket, lease: Lease, *, binding: bytes, wait_s: float) -> None:
    """Authenticate with the graph server, on the worker's side; raises AdmissionRefused."""
    own = {"worker": lease.worker}
    try:
        peer = _authenticate(sock, lease.token, own, listening=False, binding=binding, wait_s=wait_s)
    except HandshakeError as stranger:
        raise AdmissionRefused(f"{stranger}; is the lease of another run?") from stranger
    _check_version(lease.worker, of_worker=__version__, of_run=_text(peer, "version"))


def _authenticate(
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
        raise AdmissionRefused(
            f"worker {worker!r} runs siafu {of_worker}, this run {of_run}; install the same version on both sides "
            "(for a function: deploy its package again)"
        )


def _text(identity: Mapping[str, Any], name: str) -> str:
    value = identity.get(name)
    if not isinstance(value, str) or len(value) > _MAX_NAME or not value.isprintable():
        raise AdmissionRefused(f"it names its {name} as {value!r:.60}, expected printable text")
    return value
