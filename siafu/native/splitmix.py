"""The splitmix64 hash in NumPy: 64 bits that depend on their inputs alone."""

import numpy as np
from numpy.typing import NDArray

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each value to 64 bits: splitmix64 (Steele, Lea, Flood 2014)."""
    z = z + GOLDEN_GAMMA  # wraps, as all that follows
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
