"""Results that share no memory, neither with what was given nor with each other, so that anyone may write to them."""

from collections.abc import Mapping

import numpy as np


def owned(results: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results, C-contiguous; what shares memory with another array is copied, nothing else."""
    out: dict[str, np.ndarray] = {}
    for name, array in results.items():
        array = np.asarray(array, order="C")
        shared = any(np.may_share_memory(array, other) for other in (*given.values(), *out.values()))
        out[name] = array.copy() if shared else array
    return out
