"""The messages that one rank sends to one peer, and the thread that sends them.

Channels take turns frame by frame; frames of one channel keep their order. Heartbeats and aborts go before data.
Payloads are sent from the memory of their tensors, without a copy.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from torch import Tensor

from siafu.comm.chunks import MessageSplitter
from siafu.comm.errors import ErrorFactory
from siafu.comm.message_frames import FrameKind, pack_control_head
from siafu.comm.transport import Envelope, Transfer
from siafu.wire.frames import pack
from siafu.wire.socket_stream import SocketStream

_INLINE_BYTES = 1 << 16


class ControlFrame:
    """A frame of the connection itself: a heartbeat, an abort, a close or its acknowledgement."""

    def __init__(self, kind: FrameKind, payload: bytes = b"", *, number: int = 0, label: str = "") -> None:
        self._kind, self._payload = kind, payload
        self._head = pack_control_head(number, label)

    def frame(self, sequence: int) -> bytes:
        """Return all bytes of the frame."""
        return pack(self._kind, sequence, self._head, (self._payload,)) + self._payload


class _Message(MessageSplitter):
    """A message that is being sent."""

    def __init__(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        super().__init__(envelope, values)
        self.transfer = transfer


class ConnectionBroken(Exception):
    """The connection is broken, or the peer takes no more data."""

    def __init__(self, make_error: ErrorFactory) -> None:
        super().__init__()
        self.make_error = make_error


class SendQueue:
    """Sends messages to one peer, in a thread of its own.

    ``check_stalled(seconds)`` is called while the peer takes nothing; it returns an error to give up.
    ``connection_error`` translates an OSError. ``on_sent(count, is_data)`` is called after each write.
    """

    def __init__(
        self,
        stream: SocketStream,
        *,
        tick_s: float,
        check_stalled: Callable[[float], ErrorFactory | None],
        connection_error: Callable[[OSError], ErrorFactory],
        on_sent: Callable[[int, bool], None],
    ) -> None:
        self._stream = stream
        self._tick_s = tick_s
        self._check_stalled = check_stalled
        self._connection_error = connection_error
        self._on_sent = on_sent
        self._changed = threading.Condition()
        self._urgent: deque[ControlFrame] = deque()
        self._beat: ControlFrame | None = None
        self._close_frame: ControlFrame | None = None
        self._streams: OrderedDict[int, deque[_Message]] = OrderedDict()
        self._unsent: tuple[_Message, bytes, memoryview] | None = (
            None  # the rest of a frame that was begun inline
        )
        self._make_error: ErrorFactory | None = None
        self._busy = False
        self._stopped = False
        self._sequence = 0

    def put(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        """Queue a message; its transfer is done once it is sent."""
        message = _Message(envelope, values, transfer)
        with self._changed:
            make_error = self._make_error
            inline = len(message.view) <= _INLINE_BYTES and not (self._busy or self._has_work())
            if make_error is None:
                self._streams.setdefault(envelope.channel, deque()).append(message)
                self._busy = self._busy or inline
                if not inline:
                    self._changed.notify_all()
        if make_error is not None:
            transfer.fail(make_error)
        elif inline:
            self._send_inline(message)

    def beat(self, beat: ControlFrame) -> None:
        """Queue a heartbeat; it replaces an older one that was not sent yet."""
        with self._changed:
            if self._make_error is None:
                self._beat = beat
                self._changed.notify_all()

    def put_urgent(self, control: ControlFrame) -> None:
        """Queue a control frame to be sent before any data."""
        with self._changed:
            self._urgent.append(control)
            self._changed.notify_all()

    def fail_queued(self, make_error: ErrorFactory) -> None:
        """Send no more data: messages that are queued now or later fail. A frame that was begun is still finished."""
        with self._changed:
            self._make_error = self._make_error or make_error
            queued = [message for stream in self._streams.values() for message in stream]
            dropped = [message for message in queued if not message.is_at_end]
            self._streams.clear()
            self._beat = None
            self._changed.notify_all()
        for message in dropped:
            message.transfer.fail(make_error)

    def fail_all(self, make_error: ErrorFactory) -> None:
        """Fail the queued messages and also the one that is being sent; the thread does not run any more."""
        self.fail_queued(make_error)
        with self._changed:
            rest, self._unsent = self._unsent, None
        if rest is not None:
            rest[0].transfer.fail(make_error)

    def send_close(self) -> None:
        """Send a CLOSE frame after all data."""
        with self._changed:
            self._close_frame = ControlFrame(FrameKind.CLOSE)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued frames are handed to the operating system."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._stopped or not (self._busy or self._has_work()), timeout_s
            )

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def run(self) -> None:
        """Send until stopped; raises ConnectionBroken if the connection breaks or the peer takes no more data."""
        try:
            while self._send_next():
                pass
        finally:
            self.stop()

    def _send_next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (self._has_work() and not self._busy))
            if self._stopped:
                return False
            self._busy = True
            rest, self._unsent = self._unsent, None
            control, message = (None, None) if rest else self._next_item()
        if rest is not None:
            self._send_unsent(*rest)
        elif control is not None:
            self._send_control(control)
        elif message is not None:
            self._send_chunk(message)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def _has_work(self) -> bool:
        return bool(self._unsent or self._urgent or self._beat or self._streams or self._close_frame)

    def _next_item(self) -> tuple[ControlFrame | None, _Message | None]:
        if self._urgent:
            return self._urgent.popleft(), None
        if self._beat is not None:
            beat, self._beat = self._beat, None
            return beat, None
        if self._streams:
            return None, next(iter(self._streams.values()))[0]
        farewell, self._close_frame = self._close_frame, None
        return farewell, None

    def _send_control(self, control: ControlFrame) -> None:
        self._write(control.frame(self._sequence), memoryview(b""), is_data=False)

    def _send_chunk(self, message: _Message) -> None:
        head, chunk = message.next_frame(self._sequence)
        self._send_unsent(message, head, chunk)

    def _send_unsent(self, message: _Message, head: bytes, chunk: memoryview) -> None:
        try:
            self._write(head, chunk, is_data=True)
        except ConnectionBroken as broken:
            message.transfer.fail(broken.make_error)
            raise
        with self._changed:
            self._rotate_channels(message)
        if message.is_at_end:
            message.transfer.finish()

    def _send_inline(self, message: _Message) -> None:
        """Send a small message in the calling thread, as far as possible without waiting."""
        head, chunk = message.next_frame(self._sequence)
        data = head + chunk
        try:
            count = self._stream.send_now([memoryview(data)])
        except OSError:  # the thread will get the same error
            count = 0
        if count:
            self._on_sent(count, True)
        with self._changed:
            if count < len(data):
                self._unsent = (message, data[count:], memoryview(b""))
            else:
                self._sequence += 1
                self._rotate_channels(message)
            self._busy = False
            self._changed.notify_all()
        if count == len(data):
            message.transfer.finish()

    def _rotate_channels(self, message: _Message) -> None:
        """Move to the next channel (round robin); drop a message whose last frame was taken."""
        channel = message.envelope.channel
        stream = self._streams.get(channel)
        if stream is None or stream[0] is not message:
            return
        if message.is_at_end:
            stream.popleft()
        if stream:
            self._streams.move_to_end(channel)
        else:
            del self._streams[channel]

    def _write(self, head: bytes, payload: memoryview, *, is_data: bool) -> None:
        self._sequence += 1
        done, stalls = 0, 0
        while done < len(head) + len(payload):
            parts = [memoryview(head)[done:], payload[max(0, done - len(head)) :]]
            try:
                count = self._stream.send(parts)
            except OSError as error:
                raise ConnectionBroken(self._connection_error(error)) from error
            if count:
                done, stalls = done + count, 0
                self._on_sent(count, is_data)
                continue
            stalls += 1
            make_error = self._check_stalled(stalls * self._tick_s)
            if make_error is not None:
                raise ConnectionBroken(make_error)
