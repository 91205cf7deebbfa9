"""Random numbers that are the same for the same seed on every machine and with every NumPy.

NumPy guarantees the bits of a bit generator, but not the output of :class:`numpy.random.Generator`, and logarithms
differ between machines. So everything here is made of raw bits, by integer and exactly rounded arithmetic.
"""

import numpy as np
from numpy.typing import NDArray

_LOW = np.uint64(0x0000FFFF0000FFFF)
_HALF = np.uint64(32)


class RandomStream:
    """A stream of random numbers, named by a seed and a purpose."""

    def __init__(self, seed: int, purpose: str) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed}; expected 0 or more")
        self._bits = np.random.PCG64([seed, *purpose.encode()])

    def raw(self, count: int) -> NDArray[np.uint64]:
        """Draw (count,) random 64-bit words."""
        return self._bits.random_raw(count)

    def below(self, high: int, count: int) -> NDArray[np.int32]:
        """Draw (count,) integers in ``[0, high)``, ``high`` at most 2**31."""
        assert 0 < high <= 2**31
        high_word = (self.raw(count) >> _HALF) * np.uint64(high)
        return (high_word >> _HALF).astype(np.int32)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Draw (count,) numbers in ``(0, 1]``."""
        return ((self.raw(count) >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53

    def chance(self, share: float, count: int) -> NDArray[np.bool_]:
        """Draw (count,) booleans, each True with probability ``share``."""
        return self.uniform(count) <= share

    def noise(self, rows: int, columns: int) -> NDArray[np.float32]:
        """Draw (rows, columns) numbers of mean 0 and variance 1: each the sum of four 16-bit uniform numbers."""
        word = self.raw(rows * columns)
        pair = (word & _LOW) + ((word >> np.uint64(16)) & _LOW)
        total = (pair & np.uint64(0xFFFFFFFF)) + (pair >> _HALF)
        scale = np.float32(3**0.5 / 2**16)
        return ((total.astype(np.float32) - np.float32(131070)) * scale).reshape(rows, columns)

    def order(self, count: int) -> NDArray[np.int64]:
        """Draw a permutation of ``count``."""
        return np.argsort(self.raw(count), kind="stable")
