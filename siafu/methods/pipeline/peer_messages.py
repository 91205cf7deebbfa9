"""What ranks of the pipeline post to each other: which message it is, in 64 bits."""

from enum import IntEnum
from typing import NamedTuple

_INTERVAL_BITS, _LAYER_BITS, _EPOCH_BITS = 22, 8, 30


class Kind(IntEnum):
    """What a message holds."""

    ROWS = 1  # rows of an interval that a layer aggregates
    GRADS = 2  # gradients of rows that were read
    SHARE = 3  # a rank's share of some weights' gradients, for the rank that adds them up
    SUM = 4  # their sum
    WAITING = 5  # nothing: a sign of life from a rank that waits for its workers


class Message(NamedTuple):
    """Which message it is."""

    kind: Kind
    epoch: int
    layer: int = 0
    interval: int = 0

    @property
    def tag(self) -> int:
        """As a number."""
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
    def of(cls, tag: int) -> "Message":
        """The message that has a tag."""
        fields = []
        for bits in (_INTERVAL_BITS, _LAYER_BITS, _EPOCH_BITS):
            fields.append(tag & ((1 << bits) - 1))
            tag >>= bits
        interval, layer, epoch = fields
        return cls(Kind(tag), epoch, layer, interval)
