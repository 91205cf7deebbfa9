"""The messages that ranks of the pipeline post to each other, each identified by a 64-bit tag."""

from enum import IntEnum
from typing import NamedTuple

_INTERVAL_BITS, _LAYER_BITS, _EPOCH_BITS = 22, 8, 30


class MessageKind(IntEnum):
    """The content of a message."""

    ROWS = 1  # rows of an interval that a layer aggregates
    GRADS = 2  # gradients of halo rows, for their owner
    SHARE = 3  # a rank's gradients of some weights, for the rank that sums them
    SUM = 4  # the sum of these gradients over the ranks
    WAITING = 5  # nothing: a heartbeat from a rank that waits for its workers


class Message(NamedTuple):
    """The identity of a message."""

    kind: MessageKind
    epoch: int
    layer: int = 0
    interval: int = 0

    @property
    def tag(self) -> int:
        """The message as a number."""
        number = int(self.kind)
        for value, bits in (
            (self.epoch, _EPOCH_BITS),
            (self.layer, _LAYER_BITS),
            (self.interval, _INTERVAL_BITS),
        ):
            assert 0 <= value < 1 << bits
            number = number << bits | value
        return number

    @classmethod
    def from_tag(cls, tag: int) -> "Message":
        """Return the message with a tag."""
        fields = []
        for bits in (_INTERVAL_BITS, _LAYER_BITS, _EPOCH_BITS):
            fields.append(tag & ((1 << bits) - 1))
            tag >>= bits
        interval, layer, epoch = fields
        return cls(MessageKind(tag), epoch, layer, interval)
