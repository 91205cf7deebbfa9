"""The protocol below Comm: point-to-point messages of tensors between ranks, failure and close of a group.

A receiver finds a message by its sender and its envelope. Comm numbers collective and direct messages. Posts
(one-sided messages) carry a tag instead, and go to the listener of their channel.
"""

import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from torch import Tensor

from siafu.comm.errors import ErrorFactory
from siafu.comm.meter import ByteMeter

PostCallback = Callable[[int, int, Tensor], None]


class MessageKind(IntEnum):
    """The kind of call that a message belongs to."""

    COLLECTIVE = 1
    DIRECT = 2
    POST = 3


class Envelope(NamedTuple):
    """The address of a message, equal at its sender and its receiver.

    Attributes:
        kind: collective, direct or post.
        channel: the channel's number, a hash of its name.
        number: the message's number among those of its kind on this channel, or the tag of a post.
        label: the phase of training, for the byte meter and for errors.
    """

    kind: MessageKind
    channel: int
    number: int
    label: str


class Transfer:
    """A send or receive under way with a peer; it finishes or fails."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.done = threading.Event()
        self.make_error: ErrorFactory | None = None
        self._lock = threading.Lock()
        self._then: Callable[[], None] | None = None

    def finish(self) -> None:
        """Mark as done: wake waiting threads and run the callback. Only the first ``finish`` or ``fail`` counts."""
        with self._lock:
            if self.done.is_set():
                return
            self.done.set()
            then = self._then
        if then is not None:
            then()

    def fail(self, make_error: ErrorFactory) -> None:
        """Mark as failed: wake waiting threads, which raise the error."""
        with self._lock:
            if not self.done.is_set():
                self.make_error = make_error
                self.done.set()

    def then(self, call: Callable[[], None]) -> None:
        """Run ``call`` once this finishes, in the thread that finishes it; at once if it already has."""
        with self._lock:
            if not self.done.is_set():
                self._then = call
                return
        if self.make_error is None:
            call()


class IncomingMessage(Transfer):
    """A message that is expected, arriving or complete.

    Attributes:
        into: the receiver's buffer, used if it fits and is known before the first bytes arrive.
        values: the message, complete once the transfer is done.
        label: the label that the sender gave it.
        expected: whether a receive was started for it.
        whole: whether all of it has arrived.
        unexpected_bytes: bytes that it counts toward its sender's limit until a receive is started.
    """

    def __init__(self, peer: int, into: Tensor | None) -> None:
        super().__init__(peer)
        self.into = into
        self.values: Tensor | None = None
        self.label = ""
        self.expected = False
        self.whole = False
        self.unexpected_bytes = 0


class Transport(Protocol):
    """Messages between the ranks of a fixed group. All methods may be called from many threads."""

    @property
    def rank(self) -> int:
        """The number of the own rank, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        ...

    @property
    def meter(self) -> ByteMeter:
        """The bytes that this rank sent."""
        ...

    @property
    def shares_labels(self) -> bool:
        """Whether labels of single nodes may be sent; not between organisations."""
        ...

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Start to send contiguous values, which must not change before the transfer is done, unless ``copy``."""
        ...

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> IncomingMessage:
        """Start to receive."""
        ...

    def wait(self, transfer: Transfer, phase: str) -> None:
        """Wait until a transfer is done; raises CommError if it fails."""

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Call ``callback(peer, tag, rows)`` for each post on a channel, one after another, in a thread of its own."""

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Record which own rows the next messages of a label hold, by rank, in transports that keep a ledger."""

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Check decoded rows, by the rank that sent them; raises CommError if the transport does not accept them."""

    def fail(self, message: str) -> None:
        """Report to every peer that this rank fails, and why."""

    def close(self) -> None:
        """Report to every peer that this rank ends, and release all resources."""
