"""Matches the messages that arrive at one rank with its receives. It knows no connection and no clock."""

import threading
from collections.abc import Callable
from math import prod
from queue import SimpleQueue

import torch
from torch import Tensor

from siafu.comm.errors import CommError, ErrorFactory
from siafu.comm.tensor_bytes import allocate
from siafu.comm.transport import Envelope, IncomingMessage, MessageKind, PostCallback

_Key = tuple[int, MessageKind, int, int]
_LEAST_BYTES = 1024  # that each message counts toward limits: its bookkeeping takes memory too


class ReceiveQueue:
    """Messages by sender and envelope; a message may arrive before or after its receive is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[_Key, IncomingMessage] = {}
        self._make_error: ErrorFactory | None = None
        self._peer_errors: dict[int, ErrorFactory] = {}
        self._posts: dict[int, _Posts] = {}
        self._unexpected: dict[int, tuple[int, int]] = {}  # messages and bytes of each peer

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None) -> IncomingMessage:
        """Start to receive a message, of which all or a part may have arrived already."""
        key = _key(peer, envelope)
        with self._lock:
            arrival = self._messages.get(key)
            if arrival is None:
                arrival = self._messages[key] = IncomingMessage(peer, into)
            if arrival.unexpected_bytes:
                self._count(peer, -1, -arrival.unexpected_bytes)
            arrival.expected, arrival.into, arrival.unexpected_bytes = True, into, 0
            if arrival.whole:
                del self._messages[key]
                return arrival
            make_error = self._make_error or self._peer_errors.get(peer)
        if make_error is not None:
            arrival.fail(make_error)
        return arrival

    def begin_message(
        self, peer: int, envelope: Envelope, shape: tuple[int, ...], dtype: torch.dtype
    ) -> IncomingMessage:
        """Provide memory for a message whose first bytes arrived; raises ValueError if it arrived before."""
        arrival = IncomingMessage(peer, None)
        if envelope.kind != MessageKind.POST:
            with self._lock:
                arrival = self._messages.setdefault(_key(peer, envelope), arrival)
                if arrival.values is not None or arrival.unexpected_bytes:
                    raise ValueError(f'message {envelope.number} of "{envelope.label}" came twice')
                if not arrival.expected:
                    arrival.unexpected_bytes = message_bytes(shape, dtype)
                    self._count(peer, 1, arrival.unexpected_bytes)
        wanted = arrival.into
        fits = wanted is not None and wanted.dtype == dtype and tuple(wanted.shape) == shape
        arrival.values = wanted if fits else allocate(shape, dtype)
        arrival.label = envelope.label
        return arrival

    def unexpected(self, peer: int) -> tuple[int, int]:
        """Count the messages of a peer, whole or partial, without a started receive, and their bytes."""
        with self._lock:
            return self._unexpected.get(peer, (0, 0))

    def finish_message(self, arrival: IncomingMessage, envelope: Envelope) -> None:
        """Deliver a message that has arrived completely."""
        if envelope.kind == MessageKind.POST:
            assert arrival.values is not None
            self._posts_of(envelope.channel).put((arrival.peer, envelope.number, arrival.values))
            return
        with self._lock:
            arrival.whole = True
            if arrival.expected:
                del self._messages[_key(arrival.peer, envelope)]
        arrival.finish()

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Hand posts of a channel to a callback, including those that arrived before."""
        self._posts_of(channel).listen(callback, self.fail_all)

    def fail_all(self, make_error: ErrorFactory) -> None:
        """Fail all receives, now and later; the first reason counts."""
        with self._lock:
            self._make_error = self._make_error or make_error
            waiting = [arrival for arrival in self._messages.values() if not arrival.whole]
        for arrival in waiting:
            arrival.fail(make_error)

    def fail_peer(self, peer: int, make_error: ErrorFactory) -> None:
        """Fail all receives from one peer, now and later."""
        with self._lock:
            self._peer_errors.setdefault(peer, make_error)
            waiting = [a for a in self._messages.values() if a.peer == peer and not a.whole]
        for arrival in waiting:
            arrival.fail(make_error)

    def error_for(self, peer: int) -> ErrorFactory | None:
        """Return the error of exchanges with a peer, or None if it can be reached."""
        with self._lock:
            return self._make_error or self._peer_errors.get(peer)

    def close(self, *, timeout_s: float) -> None:
        """End the threads that run the callbacks of posts."""
        with self._lock:
            posts = list(self._posts.values())
        for channel in posts:
            channel.close(timeout_s)

    def _count(self, peer: int, messages: int, num_bytes: int) -> None:
        count, there = self._unexpected.get(peer, (0, 0))
        self._unexpected[peer] = count + messages, there + num_bytes

    def _posts_of(self, channel: int) -> "_Posts":
        with self._lock:
            return self._posts.setdefault(channel, _Posts())


class _Posts:
    """The posts of one channel, handed to its callback one after another, in a thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[int, int, Tensor] | None] = SimpleQueue()
        self._callback: PostCallback | None = None
        self._thread: threading.Thread | None = None

    def put(self, post: tuple[int, int, Tensor]) -> None:
        self._queue.put(post)

    def listen(self, callback: PostCallback, on_error: Callable[[ErrorFactory], None]) -> None:
        self._callback = callback
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(on_error,), name="siafu-comm posts", daemon=True
            )
            self._thread.start()

    def close(self, timeout_s: float) -> None:
        self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self, on_error: Callable[[ErrorFactory], None]) -> None:
        while (post := self._queue.get()) is not None:
            assert self._callback is not None
            try:
                self._callback(*post)
            except Exception as error:
                on_error(_callback_failed(post[0], error))
                return


def message_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that a message counts toward limits: those of its values, but at least 1 KiB."""
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
