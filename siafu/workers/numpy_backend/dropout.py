"""Dropout by counting: which elements fall out is a hash of (seed, epoch, place in the model, node, column).

The same hash as :mod:`siafu.native.reference` and :mod:`siafu.nn.dropout` have, element for element.
"""

from typing import NamedTuple

import numpy as np

from siafu.workers.numpy_backend.tape import Value, activated
from siafu.workers.setup import Setup
from siafu.workers.task import Task

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1
_TOGETHER = 1 << 16  # elements that are hashed at a time, so that they stay in cache


class Drop(NamedTuple):
    """One dropout: elements whose hash lies below the threshold are dropped, the others are scaled."""

    key: int
    threshold: int
    scale: float

    @classmethod
    def of(cls, rate: float, key: int) -> "Drop":
        """Dropout at a rate in [0, 1); the scale is exact for the threshold that is used."""
        threshold = min(round(rate * 2**32), 2**32 - 1)
        return cls(key, threshold, 2**32 / (2**32 - threshold))


class Dropouts:
    """The dropouts of one task, by their places in the model."""

    def __init__(self, setup: Setup, task: Task) -> None:
        self._setup, self._task = setup, task
        self._masks: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, place: int, rate: float, x: Value, activation: str = "none") -> Value:
        """Apply an activation to rows, then the dropout at a place; there is none at place -1."""
        if place < 0 or not self._task.training or not rate:
            return activated(x, activation)
        key = key_of(seed=self._setup.seed, step=self._task.key.epoch, place=place)
        drop = Drop.of(rate, key)
        return activated(x, activation, kept=self._kept(place, drop, x.array.shape[1]), scale=drop.scale)

    def _kept(self, place: int, drop: Drop, width: int) -> np.ndarray:
        """The mask; the inputs and their aggregate have the same."""
        if (place, width) not in self._masks:
            self._masks[place, width] = kept(drop, self._task.arrays["row_id"], width)
        return self._masks[place, width]


def key_of(*, seed: int, step: int, place: int) -> int:
    """The key of one step of a model's dropout, as :func:`siafu.nn.dropout.key_of`."""
    return mix(mix(mix(seed) ^ step) ^ place)


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
