"""The worker cache: weights and rows that never change, so that they are sent once and not with every task."""

from collections import OrderedDict

from siafu.workers.task import Arrays

CACHE_BYTES = 256 << 20


class LruCache:
    """Arrays that were used most recently, up to a number of bytes. The newest entry is always kept.

    Keys are tuples of numbers: of weights their version and stage, of rows the tasks that read them.
    """

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._arrays: OrderedDict[tuple[int, ...], Arrays] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[int, ...]) -> Arrays | None:
        """Return the arrays of a key, or None if they are not cached."""
        found = self._arrays.get(key)
        if found is not None:
            self._arrays.move_to_end(key)
        return found

    def put(self, key: tuple[int, ...], arrays: Arrays) -> None:
        """Store arrays, and evict those that were not used for longest."""
        if key in self._arrays:
            self._bytes -= _num_bytes(self._arrays.pop(key))
        self._arrays[key] = arrays
        self._bytes += _num_bytes(arrays)
        while self._bytes > self._limit_bytes and len(self._arrays) > 1:
            self._bytes -= _num_bytes(self._arrays.popitem(last=False)[1])


def _num_bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
