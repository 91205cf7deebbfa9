"""A connected socket that one thread reads while another one writes, plain or TLS.

A plain socket blocks in the kernel, which takes the fewest system calls. TLS state must not be used by two threads at
once: each step holds a lock while it does not block, and waits outside of it.
"""

import select
import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress


class SocketStream:
    """A byte stream over a socket that it owns. Reads block; writes block for at most ``tick_s``."""

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
        """Wait for bytes and read some; returns 0 if the peer closed the connection."""
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
        """Write some bytes of the parts; returns 0 if the peer took none for a tick: then pass the same bytes again."""
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
        """Write some bytes without blocking; raises BlockingIOError, or the SSL equivalent, if that is not possible."""
        if self._lock is None:
            return self._sock.sendmsg(parts, (), socket.MSG_DONTWAIT)
        part = next((part for part in parts if part.nbytes), memoryview(b""))
        with self._lock:
            return self._sock.send(part)

    def receive_now(self, target: memoryview) -> int:
        """Read some bytes without blocking; raises BlockingIOError, or the SSL equivalent, if there are none yet."""
        if self._lock is None:
            return self._sock.recv_into(target, 0, socket.MSG_DONTWAIT)
        with self._lock:
            return self._sock.recv_into(target)

    def fileno(self) -> int:
        """Return the file descriptor, for polling."""
        return self._sock.fileno()

    def shutdown(self) -> None:
        """End the connection; blocked reads and writes return at once."""
        with suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # SSLSocket's own would drop its state

    def close(self) -> None:
        """End the connection and release the socket."""
        self.shutdown()
        self._sock.close()

    def _wait(self, event: int, timeout_ms: int | None) -> bool:
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        return bool(poll.poll(timeout_ms))
