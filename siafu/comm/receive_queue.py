"""What came for one rank, and what it waits for. It knows no connection and no clock."""

import threading
from collections.abc import Callable
from math import prod
from queue import SimpleQueue

import torch
from torch import Tensor

from siafu.comm.errors import CommError, ErrorFactory
from siafu.comm.tensor_bytes import fresh
from siafu.comm.transport import Envelope, IncomingMessage, MessageKind, PostCallback

_Key = tuple[int, MessageKind, int, int]
_LEAST_BYTES = 1024  # that a message counts, however few it has: it takes room itself


class ReceiveQueue:
    """Messages by sender and envelope, whether the message comes first or the one who wants it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrivals: dict[_Key, IncomingMessage] = {}
        self._broken: ErrorFactory | None = None
        self._ended: dict[int, ErrorFactory] = {}
        self._posts: dict[int, _Posts] = {}
        self._unasked: dict[int, tuple[int, int]] = {}  # messages and bytes of each peer

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None) -> IncomingMessage:
        """The arrival of a message, of which all or a part may be here already."""
        key = _key(peer, envelope)
        with self._lock:
            arrival = self._arrivals.get(key)
            if arrival is None:
                arrival = self._arrivals[key] = IncomingMessage(peer, into)
            if arrival.unasked_bytes:
                self._count(peer, -1, -arrival.unasked_bytes)
            arrival.expected, arrival.into, arrival.unasked_bytes = True, into, 0
            if arrival.whole:
                del self._arrivals[key]
                return arrival
            loss = self._broken or self._ended.get(peer)
        if loss is not None:
            arrival.fail(loss)
        return arrival

    def begin_message(
        self, peer: int, envelope: Envelope, shape: tuple[int, ...], dtype: torch.dtype
    ) -> IncomingMessage:
        """Memory for a message whose first bytes are here; raises ValueError for one that came before."""
        arrival = IncomingMessage(peer, None)
        if envelope.kind != MessageKind.POST:
            with self._lock:
                arrival = self._arrivals.setdefault(_key(peer, envelope), arrival)
                if arrival.values is not None or arrival.unasked_bytes:
                    raise ValueError(f'message {envelope.number} of "{envelope.label}" came twice')
                if not arrival.expected:
                    arrival.unasked_bytes = message_bytes(shape, dtype)
                    self._count(peer, 1, arrival.unasked_bytes)
        wanted = arrival.into
        fits = wanted is not None and wanted.dtype == dtype and tuple(wanted.shape) == shape
        arrival.values = wanted if fits else fresh(shape, dtype)
        arrival.label = envelope.label
        return arrival

    def unexpected(self, peer: int) -> tuple[int, int]:
        """Messages of a peer, whole or in part, that nobody has asked for yet, and the bytes that they count."""
        with self._lock:
            return self._unasked.get(peer, (0, 0))

    def finish_message(self, arrival: IncomingMessage, envelope: Envelope) -> None:
        """A message is whole."""
        if envelope.kind == MessageKind.POST:
            assert arrival.values is not None
            self._posts_of(envelope.channel).put((arrival.peer, envelope.number, arrival.values))
            return
        with self._lock:
            arrival.whole = True
            if arrival.expected:
                del self._arrivals[_key(arrival.peer, envelope)]
        arrival.finish()

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Hand posts of a channel to a callback, also those that came before."""
        self._posts_of(channel).listen(callback, self.fail_all)

    def fail_all(self, loss: ErrorFactory) -> None:
        """No message will come any more; the first reason is kept."""
        with self._lock:
            self._broken = self._broken or loss
            waiting = [arrival for arrival in self._arrivals.values() if not arrival.whole]
        for arrival in waiting:
            arrival.fail(loss)

    def end(self, peer: int, loss: ErrorFactory) -> None:
        """No message will come any more from one peer."""
        with self._lock:
            self._ended.setdefault(peer, loss)
            waiting = [a for a in self._arrivals.values() if a.peer == peer and not a.whole]
        for arrival in waiting:
            arrival.fail(loss)

    def loss_of(self, peer: int) -> ErrorFactory | None:
        """Why nothing is exchanged with a peer any more, None where all is well."""
        with self._lock:
            return self._broken or self._ended.get(peer)

    def close(self, *, timeout_s: float) -> None:
        """End the threads that hand over posts."""
        with self._lock:
            posts = list(self._posts.values())
        for channel in posts:
            channel.close(timeout_s)

    def _count(self, peer: int, messages: int, num_bytes: int) -> None:
        count, there = self._unasked.get(peer, (0, 0))
        self._unasked[peer] = count + messages, there + num_bytes

    def _posts_of(self, channel: int) -> "_Posts":
        with self._lock:
            return self._posts.setdefault(channel, _Posts())


class _Posts:
    """The posts of one channel, handed one after another to who listens."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, int, Tensor] | None] = SimpleQueue()
        self._callback: PostCallback | None = None
        self._thread: threading.Thread | None = None

    def put(self, post: tuple[int, int, Tensor]) -> None:
        self._queue.put(post)

    def listen(self, callback: PostCallback, broken: Callable[[ErrorFactory], None]) -> None:
        self._callback = callback
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(broken,), name="siafu-comm posts", daemon=True
            )
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self, broken: Callable[[ErrorFactory], None]) -> None:
        while (post := self._queue.get()) is not None:
            assert self._callback is not None
            try:
                self._callback(*post)
            except Exception as error:
                broken(_callback_failed(post[0], error))
                return


def message_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The bytes that a message counts toward limits: those of its values, and not below a least number."""
    return max(_LEAST_BYTES, prod(shape) * dtype.itemsize)


def _callback_failed(peer: int, cause: Exception) -> ErrorFactory:
    def error(phase: str) -> CommError:
        text = f'what handles posts failed on one from rank {peer}, so "{phase}" cannot go on: {cause!r}'
        raised = CommError(text, peer=peer, host="", phase=phase)
        raised.__cause__ = cause
        return raised

    return error


def _key(peer: int, envelope: Envelope) -> _Key:
    return peer, envelope.kind, envelope.channel, envelope.number
