"""A random permutation that is computed from a key and never stored."""

import numpy as np
import torch
from torch import Tensor

from siafu.native.splitmix import GOLDEN_GAMMA, splitmix64

_ROUNDS = 6
_MIN_BITS = 3  # of half a number: fewer are mixed badly


class KeyedPermutation:
    """A permutation of 0 to ``count - 1``: a Feistel network over the next power of four, with cycle walking.

    Values outside the range are encrypted again until they fall inside, which keeps it a permutation.
    """

    def __init__(self, count: int, *, key: int) -> None:
        self._count = count
        self._half = np.uint64(max(_MIN_BITS, ((count - 1).bit_length() + 1) // 2))
        self._keys = np.array([key & (2**64 - 1)], dtype=np.uint64) + np.arange(_ROUNDS, dtype=np.uint64)

    def at(self, place: Tensor) -> Tensor:
        """Return the numbers at some positions: (R,) int64 -> (R,) int64."""
        value = self._encrypt(place.numpy().astype(np.uint64))
        while (outside := value >= self._count).any():
            value[outside] = self._encrypt(value[outside])
        return torch.from_numpy(value.astype(np.int64))

    def _encrypt(self, value: np.ndarray) -> np.ndarray:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = value >> self._half, value & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right, key) & mask)
        return (left << self._half) | right


def _mixed(value: np.ndarray, key: np.uint64) -> np.ndarray:
    """Hash each value with the key to 64 bits: the splitmix64 finaliser, twice."""
    return splitmix64(value * GOLDEN_GAMMA ^ splitmix64(np.array([key])))
