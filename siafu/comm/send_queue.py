"""What one rank has to send to one peer, and the thread that sends it.

Frames of different channels take turns, those of one channel keep their order. Beats and farewells go before data.
Payloads are sent from the memory of their tensors.
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

_AT_ONCE_BYTES = 1 << 16


class Control:
    """A frame of the connection itself: a beat, an abort, a farewell."""

    def __init__(self, kind: FrameKind, payload: bytes = b"", *, number: int = 0, label: str = "") -> None:
        self._kind, self._payload = kind, payload
        self._head = pack_control_head(number, label)

    def frame(self, sequence: int) -> bytes:
        """All of its bytes."""
        return pack(self._kind, sequence, self._head, (self._payload,)) + self._payload


class _Message(MessageSplitter):
    """A message that is being sent."""

    def __init__(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        super().__init__(envelope, values)
        self.transfer = transfer


class Broken(Exception):
    """Nothing more can be sent."""

    def __init__(self, loss: ErrorFactory) -> None:
        super().__init__()
        self.loss = loss


class Outbox:
    """Sends to one peer, in a thread of its own.

    ``stalled`` is called with the seconds for which nothing could be written, and says why that is in vain, if it is;
    ``broke`` makes the loss of an error; ``sent`` is told the bytes of each write and whether they were data.
    """

    def __init__(
        self,
        stream: SocketStream,
        *,
        tick_s: float,
        stalled: Callable[[float], ErrorFactory | None],
        broke: Callable[[OSError], ErrorFactory],
        sent: Callable[[int, bool], None],
    ) -> None:
        self._stream = stream
        self._tick_s = tick_s
        self._stalled = stalled
        self._broke = broke
        self._sent = sent
        self._changed = threading.Condition()
        self._urgent: deque[Control] = deque()
        self._beat: Control | None = None
        self._farewell: Control | None = None
        self._streams: OrderedDict[int, deque[_Message]] = OrderedDict()
        self._rest: tuple[_Message, bytes, memoryview] | None = None  # of a frame that was begun at once
        self._loss: ErrorFactory | None = None
        self._busy = False
        self._stopped = False
        self._sequence = 0

    def put(self, envelope: Envelope, values: Tensor, transfer: Transfer) -> None:
        """Queue a message; its transfer is done once it is sent."""
        message = _Message(envelope, values, transfer)
        with self._changed:
            loss = self._loss
            at_once = len(message.view) <= _AT_ONCE_BYTES and not (self._busy or self._has_work())
            if loss is None:
                self._streams.setdefault(envelope.channel, deque()).append(message)
                self._busy = self._busy or at_once
                if not at_once:
                    self._changed.notify_all()
        if loss is not None:
            transfer.fail(loss)
        elif at_once:
            self._send_at_once(message)

    def beat(self, beat: Control) -> None:
        """Send a beat; a beat that was not sent yet is replaced."""
        with self._changed:
            if self._loss is None:
                self._beat = beat
                self._changed.notify_all()

    def urge(self, control: Control) -> None:
        """Send before any data."""
        with self._changed:
            self._urgent.append(control)
            self._changed.notify_all()

    def refuse(self, loss: ErrorFactory) -> None:
        """Send no more data: what is queued and what will be queued fails. A last frame on its way is not held back."""
        with self._changed:
            self._loss = self._loss or loss
            queued = [message for stream in self._streams.values() for message in stream]
            dropped = [message for message in queued if not message.is_at_end]
            self._streams.clear()
            self._beat = None
            self._changed.notify_all()
        for message in dropped:
            message.transfer.fail(loss)

    def abandon(self, loss: ErrorFactory) -> None:
        """Refuse, and fail also what is on its way: nobody sends any more."""
        self.refuse(loss)
        with self._changed:
            rest, self._rest = self._rest, None
        if rest is not None:
            rest[0].transfer.fail(loss)

    def bid_farewell(self) -> None:
        """Send a last frame after all data."""
        with self._changed:
            self._farewell = Control(FrameKind.CLOSE)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that is queued was handed to the system."""
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
        """Send until stopped; raises Broken when the connection breaks or the peer takes nothing any more."""
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
            rest, self._rest = self._rest, None
            control, message = (None, None) if rest else self._pick()
        if rest is not None:
            self._send_rest(*rest)
        elif control is not None:
            self._send_control(control)
        elif message is not None:
            self._send_chunk(message)
        with self._changed:
            self._busy = False
            self._changed.notify_all()
        return True

    def _has_work(self) -> bool:
        return bool(self._rest or self._urgent or self._beat or self._streams or self._farewell)

    def _pick(self) -> tuple[Control | None, _Message | None]:
        if self._urgent:
            return self._urgent.popleft(), None
        if self._beat is not None:
            beat, self._beat = self._beat, None
            return beat, None
        if self._streams:
            return None, next(iter(self._streams.values()))[0]
        farewell, self._farewell = self._farewell, None
        return farewell, None

    def _send_control(self, control: Control) -> None:
        self._write(control.frame(self._sequence), memoryview(b""), is_data=False)

    def _send_chunk(self, message: _Message) -> None:
        head, chunk = message.next_frame(self._sequence)
        self._send_rest(message, head, chunk)

    def _send_rest(self, message: _Message, head: bytes, chunk: memoryview) -> None:
        try:
            self._write(head, chunk, is_data=True)
        except Broken as broken:
            message.transfer.fail(broken.loss)
            raise
        with self._changed:
            self._take_turns(message)
        if message.is_at_end:
            message.transfer.finish()

    def _send_at_once(self, message: _Message) -> None:
        """Send a small message in the thread that has it, as far as that goes without waiting."""
        head, chunk = message.next_frame(self._sequence)
        data = head + chunk
        try:
            count = self._stream.send_now([memoryview(data)])
        except OSError:  # the thread will meet it again
            count = 0
        if count:
            self._sent(count, True)
        with self._changed:
            if count < len(data):
                self._rest = (message, data[count:], memoryview(b""))
            else:
                self._sequence += 1
                self._take_turns(message)
            self._busy = False
            self._changed.notify_all()
        if count == len(data):
            message.transfer.finish()

    def _take_turns(self, message: _Message) -> None:
        """Put the next channel first; a message whose last frame was taken has had its turn."""
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
                raise Broken(self._broke(error)) from error
            if count:
                done, stalls = done + count, 0
                self._sent(count, is_data)
                continue
            stalls += 1
            loss = self._stalled(stalls * self._tick_s)
            if loss is not None:
                raise Broken(loss)
