"""A connection that carries frames, plain or TLS.

Reading and writing a frame are generators that yield the event they wait for. A thread runs them for one connection,
one thread reading while others write; an event loop runs them for many connections. Every wait ends.
"""

import select
import socket
import ssl
import threading
import time
from collections.abc import Generator, Mapping
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, TypeVar

from siafu.wire.frames import HEADER_BYTES, check_head
from siafu.wire.socket_stream import SocketStream
from siafu.workers.task import Arrays
from siafu.workers.task_frames import (
    MAX_FRAME_BYTES,
    Frame,
    FrameKind,
    check,
    pack,
    raw,
    unpack_head,
    unpack_header,
)

T = TypeVar("T")
IoSteps = Generator[int, None, T]  # yields selector events to wait for; returns the result
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError)
_PIECES_PER_SEND = 64
_READ_AHEAD_BYTES = 8192  # small frames are read in one call
_UNACKNOWLEDGED_MS = 10_000


class ConnectionLost(ConnectionError):
    """The peer closed the connection, broke it, or was silent for too long."""


class FrameConnection:
    """Frames over a connected socket, which it owns.

    ``send_wait_s`` is the longest time for which the peer may accept no data while a frame is sent.
    """

    def __init__(self, sock: socket.socket, *, send_wait_s: float = 30.0) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        self._stream = SocketStream(sock, tick_s=1.0)
        self._send_wait_s = send_wait_s
        self._writing = threading.Lock()
        self._buffer = bytearray(_READ_AHEAD_BYTES)
        self._ahead = memoryview(b"")  # the part of the buffer that was received and not yet read
        self._frames_in = self._frames_out = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def send(
        self, kind: FrameKind, head: Mapping[str, Any] | None = None, arrays: Arrays | None = None
    ) -> None:
        """Send a frame; raises ConnectionLost, or FrameError if it cannot be packed."""
        with self._writing:
            self._write(self.pack(kind, head, arrays))

    def pack(
        self, kind: FrameKind, head: Mapping[str, Any] | None = None, arrays: Arrays | None = None
    ) -> list[memoryview]:
        """Pack the next frame for :meth:`write_steps`. Frames must be written in the order of packing."""
        pieces = pack(kind, self._frames_out, head or {}, arrays or {})
        self._frames_out += 1
        return pieces

    def receive(
        self,
        *,
        limit_bytes: int = MAX_FRAME_BYTES,
        silence_s: float | None = None,
        until_s: float | None = None,
    ) -> Frame:
        """Receive the next frame; raises FrameError, or ConnectionLost after a silence or at ``until_s``.

        ``until_s`` is a time of ``time.monotonic``.
        """
        return self._finish(self.read_steps(limit_bytes), silence_s, until_s)

    def read_steps(self, limit_bytes: int) -> IoSteps[Frame]:
        """Receive the next frame, step by step."""
        try:
            fields = yield from self._read_bytes(HEADER_BYTES)
            header = unpack_header(fields, limit_bytes)
            text = yield from self._read_bytes(header.head_bytes)
            check_head(fields, text, sequence=self._frames_in)
            head, arrays = unpack_head(header, text)
            for array in arrays.values():
                if array.size:
                    yield from self._read(raw(array))
        except OSError as error:
            raise _lost(error) from error
        check(header, arrays)
        self._frames_in += 1
        return Frame(FrameKind(header.kind), head, arrays)

    def write_steps(self, pieces: list[memoryview]) -> IoSteps[None]:
        """Send the pieces of a frame, step by step."""
        while pieces:
            try:
                count = self._stream.send_now(pieces[:_PIECES_PER_SEND])
            except (*_WOULD_BLOCK, ssl.SSLWantWriteError) as blocked:
                yield EVENT_READ if isinstance(blocked, ssl.SSLWantReadError) else EVENT_WRITE
                continue
            except OSError as error:
                raise _lost(error) from error
            self.bytes_out += count
            while pieces and count >= pieces[0].nbytes:
                count -= pieces.pop(0).nbytes
            if count:
                pieces[0] = pieces[0][count:]

    def fileno(self) -> int:
        """Return the descriptor of the socket, for a selector."""
        return self._stream.fileno()

    def shut(self) -> None:
        """Shut the connection down: threads that read or write get an error at once."""
        self._stream.shutdown()

    def close(self) -> None:
        """Close the socket; no thread may use the connection any more."""
        self._stream.close()

    def _read_bytes(self, count: int) -> IoSteps[bytearray]:
        got = bytearray(count)
        yield from self._read(memoryview(got))
        return got

    def _read(self, into: memoryview) -> IoSteps[None]:
        while into.nbytes:
            if self._ahead.nbytes:
                count = min(into.nbytes, self._ahead.nbytes)
                into[:count], self._ahead = self._ahead[:count], self._ahead[count:]
                into = into[count:]
                continue
            few = into.nbytes < len(self._buffer)
            try:
                count = self._stream.receive_now(memoryview(self._buffer) if few else into)
            except (*_WOULD_BLOCK, ssl.SSLWantWriteError) as blocked:
                yield EVENT_WRITE if isinstance(blocked, ssl.SSLWantWriteError) else EVENT_READ
                continue
            if not count:
                raise ConnectionLost("it closed the connection")
            self.bytes_in += count
            if few:
                self._ahead = memoryview(self._buffer)[:count]
            else:
                into = into[count:]

    def _write(self, pieces: list[memoryview]) -> None:
        self._finish(self.write_steps(pieces), self._send_wait_s, None)

    def _finish(self, steps: IoSteps[T], silence_s: float | None, until_s: float | None) -> T:
        """Run all steps in this thread, and wait where they would block."""
        while True:
            try:
                event = next(steps)
            except StopIteration as end:
                found: T = end.value
                return found
            try:
                self._wait(event, silence_s, until_s)
            except OSError as error:
                raise _lost(error) from error

    def _wait(self, event: int, silence_s: float | None, until_s: float | None) -> None:
        left = [] if silence_s is None else [silence_s]
        if until_s is not None:
            left.append(max(0.0, until_s - time.monotonic()))
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN if event == EVENT_READ else select.POLLOUT)
        if not poll.poll(1000 * min(left) if left else None):
            raise ConnectionLost(f"it was silent for {min(left):.1f} s")


def _lost(error: OSError) -> ConnectionLost:
    return error if isinstance(error, ConnectionLost) else ConnectionLost(f"the connection broke: {error}")
