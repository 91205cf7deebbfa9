"""Weights that a worker keeps, so that they travel once and not with every task."""

from collections import OrderedDict

from siafu.workers.task import Arrays

KEPT_BYTES = 256 << 20


class Kept:
    """The weights that were used last, by version and stage, up to a number of bytes; the newest always."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._weights: OrderedDict[tuple[int, int], Arrays] = OrderedDict()
        self._bytes = 0

    def get(self, version: int, stage: int) -> Arrays | None:
        """The weights, or None where they are not kept."""
        found = self._weights.get((version, stage))
        if found is not None:
            self._weights.move_to_end((version, stage))
        return found

    def put(self, version: int, stage: int, weights: Arrays) -> None:
        """Keep these, and forget those that were not used for longest."""
        if (version, stage) in self._weights:
            self._bytes -= _size(self._weights.pop((version, stage)))
        self._weights[version, stage] = weights
        self._bytes += _size(weights)
        while self._bytes > self._limit_bytes and len(self._weights) > 1:
            self._bytes -= _size(self._weights.popitem(last=False)[1])


def _size(weights: Arrays) -> int:
    return sum(array.nbytes for array in weights.values())
