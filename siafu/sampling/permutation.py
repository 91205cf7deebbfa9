"""An order of many numbers that is made by a key and never written down."""

import numpy as np
import torch
from torch import Tensor

from siafu.native.splitmix import GOLDEN_GAMMA, splitmix64

_ROUNDS = 6
_LEAST_BITS = 3  # of half a number: fewer are mixed badly


class KeyedPermutation:
    """The numbers 0 to ``count - 1`` in another order: a Feistel network over the next power of four.

    What falls outside is sent through again until it falls inside, which keeps it a permutation.
    """

    def __init__(self, count: int, *, key: int) -> None:
        self._count = count
        self._half = np.uint64(max(_LEAST_BITS, ((count - 1).bit_length() + 1) // 2))
        self._keys = np.array([key & (2**64 - 1)], dtype=np.uint64) + np.arange(_ROUNDS, dtype=np.uint64)

    def at(self, place: Tensor) -> Tensor:
        """The numbers at some places: (R,) int64 -> (R,) int64."""
        value = self._through(place.numpy().astype(np.uint64))
        while (outside := value >= self._count).any():
            value[outside] = self._through(value[outside])
        return torch.from_numpy(value.astype(np.int64))

    def _through(self, value: np.ndarray) -> np.ndarray:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = value >> self._half, value & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right, key) & mask)
        return (left << self._half) | right


def _mixed(value: np.ndarray, key: np.uint64) -> np.ndarray:
    """64 bits of each value and the key: the splitmix64 finaliser, twice."""
    return splitmix64(value * GOLDEN_GAMMA ^ splitmix64(np.array([key])))
