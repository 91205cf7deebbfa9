"""What a Comm asks of what carries it: messages of tensors between two ranks, and the end of a group.

A message is found by who sent it and by its envelope. Collectives and direct messages are numbered by Comm; posts carry
a tag and go to whoever listens on their channel.
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
    """What a message belongs to."""

    COLLECTIVE = 1
    DIRECT = 2
    POST = 3


class Envelope(NamedTuple):
    """Where a message belongs: the same on the side that sends and on the side that receives.

    Attributes:
        kind: collective, direct or post.
        channel: the channel's number, a hash of its name.
        number: which message of its kind on this channel, or the tag of a post.
        label: the phase it belongs to, for the meter and for errors.
    """

    kind: MessageKind
    channel: int
    number: int
    label: str


class Transfer:
    """Something under way with a peer; it is finished, or it fails."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.done = threading.Event()
        self.loss: ErrorFactory | None = None
        self._lock = threading.Lock()
        self._then: Callable[[], None] | None = None

    def finish(self) -> None:
        """It is done: wake who waits, run what comes next. Only the first of ``finish`` and ``fail`` counts."""
        with self._lock:
            if self.done.is_set():
                return
            self.done.set()
            then = self._then
        if then is not None:
            then()

    def fail(self, loss: ErrorFactory) -> None:
        """It will never be done: wake who waits."""
        with self._lock:
            if not self.done.is_set():
                self.loss = loss
                self.done.set()

    def then(self, call: Callable[[], None]) -> None:
        """Run ``call`` once it is finished, in the thread that finishes it; now where it already is."""
        with self._lock:
            if not self.done.is_set():
                self._then = call
                return
        if self.loss is None:
            call()


class IncomingMessage(Transfer):
    """A message that is expected, arriving or there.

    Attributes:
        into: where the receiver would like it, taken if it fits and nothing had arrived yet.
        values: the message, whole once the transfer is done.
        label: the label that the sender gave it.
        expected: whether somebody asked for it.
        whole: whether all of it is here.
        unasked_bytes: that it counts toward its sender's limit, as long as nobody asked for it.
    """

    def __init__(self, peer: int, into: Tensor | None) -> None:
        super().__init__(peer)
        self.into = into
        self.values: Tensor | None = None
        self.label = ""
        self.expected = False
        self.whole = False
        self.unasked_bytes = 0


class Transport(Protocol):
    """Messages between the ranks of a fixed group. Safe to use from many threads."""

    @property
    def rank(self) -> int:
        """Which rank this is."""
        ...

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        ...

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        ...

    @property
    def meter(self) -> ByteMeter:
        """What this rank sent."""
        ...

    def send(self, peer: int, envelope: Envelope, values: Tensor, *, copy: bool = False) -> Transfer:
        """Start to send; contiguous values must not change before the transfer is done, unless ``copy`` is asked for."""
        ...

    def start_receive(self, peer: int, envelope: Envelope, into: Tensor | None = None) -> IncomingMessage:
        """Start to receive."""
        ...

    def wait(self, transfer: Transfer, phase: str) -> None:
        """Wait until a transfer is done; raises CommError when it never will be."""

    def listen(self, channel: int, callback: PostCallback) -> None:
        """Call ``callback(peer, tag, rows)`` for each post on a channel, one after another, in a thread of its own."""

    def record_sent_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Be told which own rows the next messages of a label hold, by rank; for who keeps a ledger."""

    def check_rows(self, label: str, rows: Sequence[Tensor]) -> None:
        """Be shown decoded rows by the rank they came from; raises CommError where it takes no such numbers."""

    def fail(self, message: str) -> None:
        """Tell every peer that this rank fails, and why."""

    def close(self) -> None:
        """Tell every peer that this rank ends, and end."""
