"""Helpers: both ends of a connection in this process, plain or TLS, and threads whose errors are returned."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from siafu.wire.tls import Certificate, dial

A = TypeVar("A")
B = TypeVar("B")
PATIENCE_S = 60.0


def both(first: Callable[[], A], second: Callable[[], B]) -> tuple[A | BaseException, B | BaseException]:
    """Run two functions at once; returns what each returned or raised."""
    with ThreadPoolExecutor(2) as threads:
        futures = threads.submit(first), threads.submit(second)
        found = [future.exception(PATIENCE_S) or future.result() for future in futures]
    return found[0], found[1]


@contextmanager
def plain_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Caller and listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        listener, _ = server.accept()
    with caller, listener:
        yield caller, listener


@contextmanager
def secure_pair(certificate: Certificate) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Caller and listener, over TLS."""
    with plain_pair() as (caller, listener):
        context = certificate.server_context()
        called, listened = both(
            lambda: dial(caller, fingerprint=certificate.fingerprint)[0],
            lambda: context.wrap_socket(listener, server_side=True),
        )
        assert isinstance(called, socket.socket)
        assert isinstance(listened, socket.socket)
        with called, listened:
            yield called, listened
