"""What a worker keeps, so that it travels once and not with every task: weights, and rows that never change."""

from collections import OrderedDict

from siafu.workers.task import Arrays

KEPT_BYTES = 256 << 20


class Kept:
    """The arrays that were used last, up to a number of bytes; the newest always.

    They go by numbers: of weights their version and stage, of rows the tasks that read them.
    """

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._arrays: OrderedDict[tuple[int, ...], Arrays] = OrderedDict()
        self._bytes = 0

    def get(self, numbers: tuple[int, ...]) -> Arrays | None:
        """The arrays, or None where they are not kept."""
        found = self._arrays.get(numbers)
        if found is not None:
            self._arrays.move_to_end(numbers)
        return found

    def put(self, numbers: tuple[int, ...], arrays: Arrays) -> None:
        """Keep these, and forget those that were not used for longest."""
        if numbers in self._arrays:
            self._bytes -= _size(self._arrays.pop(numbers))
        self._arrays[numbers] = arrays
        self._bytes += _size(arrays)
        while self._bytes > self._limit_bytes and len(self._arrays) > 1:
            self._bytes -= _size(self._arrays.popitem(last=False)[1])


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())
