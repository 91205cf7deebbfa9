"""A connected socket that one thread reads while another one writes, plain or TLS.

TLS state has one user at a time: each step takes a lock for as long as it does not wait, and waits outside of it.
"""

import select
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress


class Stream:
    """The bytes of one connection, which it owns. Reading waits; writing waits for ``tick_s`` at most."""

    def __init__(self, sock: socket.socket, *, tick_s: float) -> None:
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._tick_ms = sock, max(1, round(1000 * tick_s))
        self._lock = threading.Lock() if isinstance(sock, ssl.SSLSocket) else None

    def recv_into(self, target: memoryview) -> int:
        """Read some bytes, as soon as there are any; 0 where the peer closed the connection."""
        while True:
            try:
                return self.receive_now(target)
            except (BlockingIOError, ssl.SSLWantReadError):
                self._wait(select.POLLIN, None)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)
            except ssl.SSLEOFError:
                return 0

    def send(self, parts: Sequence[memoryview]) -> int:
        """Write some bytes of the parts; 0 where the peer took nothing for a tick: then give the same bytes again."""
        for wait in (True, False):
            try:
                return self.send_now(parts)
            except (BlockingIOError, ssl.SSLWantWriteError):
                if not wait or not self._wait(select.POLLOUT, self._tick_ms):
                    return 0
            except ssl.SSLWantReadError:
                if not wait or not self._wait(select.POLLIN, self._tick_ms):
                    return 0
        return 0

    def send_now(self, parts: Sequence[memoryview]) -> int:
        """Write some bytes without waiting; raises BlockingIOError, or TLS's own, where that is not possible."""
        if self._lock is None:
            return self._sock.sendmsg(parts)
        part = next((part for part in parts if part.nbytes), memoryview(b""))
        with self._lock:
            return self._sock.send(part)

    def receive_now(self, target: memoryview) -> int:
        """Read some bytes without waiting; raises BlockingIOError, or TLS's own, where there are none yet."""
        if self._lock is None:
            return self._sock.recv_into(target)
        with self._lock:
            return self._sock.recv_into(target)

    def fileno(self) -> int:
        """The descriptor of the connection, to wait for."""
        return self._sock.fileno()

    def shut(self) -> None:
        """End the connection: whoever reads or writes learns it at once."""
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # SSLSocket's own would drop its state

    def close(self) -> None:
        """End the connection and free it; nobody may use it any more."""
        self.shut()
        self._sock.close()

    def _wait(self, event: int, timeout_ms: int | None) -> bool:
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        return bool(poll.poll(timeout_ms))
