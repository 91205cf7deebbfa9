"""A connection that carries frames, plain or TLS.

Reading and writing a frame are steps that say what they wait for. Threads take them for one connection, one reading
while others write; or a loop does for many at once. Every wait ends.
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
    Kind,
    check,
    pack,
    raw,
    unpack_head,
    unpack_header,
)

T = TypeVar("T")
Steps = Generator[int, None, T]  # what it waits for, again and again; what comes of it
_AGAIN = (BlockingIOError, ssl.SSLWantReadError)
_PIECES = 64  # of a frame that the kernel is given at once
_AHEAD_BYTES = 8192  # small frames are read in one go
_UNACKNOWLEDGED_MS = 10_000


class LinkLost(ConnectionError):
    """The other side closed the connection, broke it, or was silent for too long."""


class Link:
    """Frames over a connected socket, which it owns.

    ``send_wait_s`` is how long the other side may take nothing of what is sent.
    """

    def __init__(self, sock: socket.socket, *, send_wait_s: float = 30.0) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        self._stream = SocketStream(sock, tick_s=1.0)
        self._send_wait_s = send_wait_s
        self._writing = threading.Lock()
        self._buffer = bytearray(_AHEAD_BYTES)
        self._ahead = memoryview(b"")  # what of the buffer was received and not yet read
        self._frames_in = self._frames_out = 0
        self.bytes_in = 0
        self.bytes_out = 0

    def send(self, kind: Kind, head: Mapping[str, Any] | None = None, arrays: Arrays | None = None) -> None:
        """Send a frame; raises LinkLost, or FrameError for what cannot be sent."""
        with self._writing:
            self._write(self.pack(kind, head, arrays))

    def pack(
        self, kind: Kind, head: Mapping[str, Any] | None = None, arrays: Arrays | None = None
    ) -> list[memoryview]:
        """The pieces of the next frame, for :meth:`writing`; they must be written in the order of packing."""
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
        """The next frame; raises LinkLost after a silence or at a time of ``time.monotonic``, or FrameError."""
        return self._finish(self.receiving(limit_bytes), silence_s, until_s)

    def receiving(self, limit_bytes: int) -> Steps[Frame]:
        """The steps of receiving the next frame."""
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
        return Frame(Kind(header.kind), head, arrays)

    def writing(self, pieces: list[memoryview]) -> Steps[None]:
        """The steps of sending the pieces of a frame."""
        while pieces:
            try:
                count = self._stream.send_now(pieces[:_PIECES])
            except (*_AGAIN, ssl.SSLWantWriteError) as again:
                yield EVENT_READ if isinstance(again, ssl.SSLWantReadError) else EVENT_WRITE
                continue
            except OSError as error:
                raise _lost(error) from error
            self.bytes_out += count
            while pieces and count >= pieces[0].nbytes:
                count -= pieces.pop(0).nbytes
            if count:
                pieces[0] = pieces[0][count:]

    def fileno(self) -> int:
        """The descriptor of the connection, to wait for."""
        return self._stream.fileno()

    def shut(self) -> None:
        """End the connection: whoever reads or writes learns it at once."""
        self._stream.shutdown()

    def close(self) -> None:
        """End the connection and free it; nobody may use it any more."""
        self._stream.close()

    def _read_bytes(self, count: int) -> Steps[bytearray]:
        got = bytearray(count)
        yield from self._read(memoryview(got))
        return got

    def _read(self, into: memoryview) -> Steps[None]:
        while into.nbytes:
            if self._ahead.nbytes:
                count = min(into.nbytes, self._ahead.nbytes)
                into[:count], self._ahead = self._ahead[:count], self._ahead[count:]
                into = into[count:]
                continue
            few = into.nbytes < len(self._buffer)
            try:
                count = self._stream.receive_now(memoryview(self._buffer) if few else into)
            except (*_AGAIN, ssl.SSLWantWriteError) as again:
                yield EVENT_WRITE if isinstance(again, ssl.SSLWantWriteError) else EVENT_READ
                continue
            if not count:
                raise LinkLost("it closed the connection")
            self.bytes_in += count
            if few:
                self._ahead = memoryview(self._buffer)[:count]
            else:
                into = into[count:]

    def _write(self, pieces: list[memoryview]) -> None:
        self._finish(self.writing(pieces), self._send_wait_s, None)

    def _finish(self, steps: Steps[T], silence_s: float | None, until_s: float | None) -> T:
        """Take all steps, and wait where they do."""
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
            raise LinkLost(f"it was silent for {min(left):.1f} s")


def _lost(error: OSError) -> LinkLost:
    return error if isinstance(error, LinkLost) else LinkLost(f"the connection broke: {error}")
