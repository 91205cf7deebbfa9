"""A connected socket that one thread reads while another one writes, plain or TLS.

On a plain socket the kernel waits, which takes the fewest calls. TLS state has one user at a time: each step takes a
lock for as long as it does not wait, and waits outside of it.
"""

import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress


class SocketStream:
    """The bytes of one connection, which it owns. Reading waits; writing waits for ``tick_s`` at most."""

    def __init__(self, sock: socket.socket, *, tick_s: float) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._tick_ms = sock, max(1, round(1000 * tick_s))
        self._lock = threading.Lock() if isinstance(sock, ssl.SSLSocket) else None
        sock.setblocking(self._lock is None)
        if self._lock is None:
            seconds, rest_ms = divmod(self._tick_ms, 1000)
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", seconds, 1000 * rest_ms)
            )

    def recv_into(self, target: memoryview) -> int:
        """Read some bytes, as soon as there are any; 0 where the peer closed the connection."""
        if self._lock is None:
            return self._sock.recv_into(target)
        while True:
            try:
                return self.receive_now(target)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, None)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, None)
            except ssl.SSLEOFError:
                return 0

    def send(self, parts: Sequence[memoryview]) -> int:
        """Write some bytes of the parts; 0 where the peer took nothing for a tick: then give the same bytes again."""
        if self._lock is None:
            try:
                return self._sock.sendmsg(parts)
            except BlockingIOError:  # SO_SNDTIMEO
                return 0
        for wait in (True, False):
            try:
                return self.send_now(parts)
            except ssl.SSLWantWriteError:
                if not wait or not self._wait(select.POLLOUT, self._tick_ms):
                    return 0
            except ssl.SSLWantReadError:
                if not wait or not self._wait(select.POLLIN, self._tick_ms):
                    return 0
        return 0

    def send_now(self, parts: Sequence[memoryview]) -> int:
        """Write some bytes without waiting; raises BlockingIOError, or TLS's own, where that is not possible."""
        if self._lock is None:
            return self._sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
        part = next((part for part in parts if part.nbytes), memoryview(b""))
        with self._lock:
            return self._sock.send(part)

    def receive_now(self, target: memoryview) -> int:
        """Read some bytes without waiting; raises BlockingIOError, or TLS's own, where there are none yet."""
        if self._lock is None:
            return self._sock.recv_into(target, 0, socket.MSG_DONTWAIT)
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
