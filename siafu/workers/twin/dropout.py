"""Dropout by counting: which elements fall out is a hash of (seed, epoch, place in the model, node, column).

The same hash as :mod:`siafu.native.reference` and :mod:`siafu.nn.dropout` have, element for element.
"""

from typing import NamedTuple

import numpy as np

from siafu.workers.setup import Setup
from siafu.workers.task import Task
from siafu.workers.twin.tape import Value, activated

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1
_TOGETHER = 1 << 16  # elements that are hashed at a time, so that they stay in cache


class Drop(NamedTuple):
    """What falls out: elements whose hash lies below the threshold; the others are scaled."""

    key: int
    threshold: int
    scale: float

    @classmethod
    def of(cls, rate: float, key: int) -> "Drop":
        """Dropout at a rate in [0, 1); the scale is exact for the threshold that is used."""
        threshold = min(round(rate * 2**32), 2**32 - 1)
        return cls(key, threshold, 2**32 / (2**32 - threshold))


class Drops:
    """The dropout of one task: number 0 is that of the inputs, number ``k`` that of what layer ``k - 1`` gave."""

    def __init__(self, setup: Setup, task: Task) -> None:
        self._setup, self._task = setup, task
        self._masks: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, number: int, x: Value, activation: str = "none") -> Value:
        """An activation of rows, then their dropout."""
        drop = self._drop(number)
        if not drop.threshold:
            return activated(x, activation)
        return activated(x, activation, kept=self._kept(number, drop, x.array.shape[1]), scale=drop.scale)

    def _drop(self, number: int) -> Drop:
        model, rate = self._setup.model, self._setup.model["dropout"]
        if number == 0 and model["input_dropout"] is not None:
            rate = model["input_dropout"]
        if not self._task.training:
            rate = 0.0
        return Drop.of(rate, key_of(self._setup, epoch=self._task.key.epoch, number=number))

    def _kept(self, number: int, drop: Drop, width: int) -> np.ndarray:
        """The mask; the inputs and their aggregate have the same."""
        if (number, width) not in self._masks:
            self._masks[number, width] = kept(drop, self._task.arrays["row_id"], width)
        return self._masks[number, width]


def key_of(setup: Setup, *, epoch: int, number: int) -> int:
    """The key of a dropout; those of attention, one a layer, stand before all others in the model."""
    before = setup.num_layers if setup.model["kind"] in ("gat", "gatv2") else 0
    return mix(mix(mix(setup.seed) ^ epoch) ^ (before + number))


def mix(value: int) -> int:
    """Scatter 64 bits: the splitmix64 finaliser."""
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def kept(drop: Drop, row_id: np.ndarray, width: int) -> np.ndarray:
    """Which elements stay: (R,) int64 -> (R, F) bool."""
    state = _row_state(drop.key, row_id)[:, None]
    columns = np.arange(width, dtype=np.uint32) * np.uint32(_GOLDEN >> 32)
    stays = np.empty((len(row_id), width), bool)
    step = max(1, _TOGETHER // max(1, width))
    hashed, shifted = np.empty((2, min(step, len(row_id)), width), np.uint32)
    for begin in range(0, len(row_id), step):
        some = slice(begin, begin + step)
        out = stays[some]
        h, shift = hashed[: len(out)], shifted[: len(out)]
        np.add(state[some], columns, out=h)
        _scatter(h, shift)
        np.greater_equal(h, np.uint32(drop.threshold), out=out)
    return stays


def _scatter(h: np.ndarray, shift: np.ndarray) -> None:
    """Scatter 32 bits where they are; ``shift`` is room of the same shape."""
    for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        h ^= np.right_shift(h, np.uint32(bits), out=shift)
        h *= np.uint32(factor)
    h ^= np.right_shift(h, np.uint32(16), out=shift)


def _row_state(key: int, row_id: np.ndarray) -> np.ndarray:
    """The 32 bits that a row begins with: (R,) int64 -> (R,) uint32."""
    z = np.uint64(key) + row_id.astype(np.uint64) * np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).astype(np.uint32)
