"""Memory in which a worker process lays its results for the graph server of the same host. It knows no torch."""

import mmap
from math import prod
from typing import Any

import numpy as np

from siafu.workers.shared import aligned, close_memory, new_memory
from siafu.workers.task import Arrays

_MOST_SLOTS = 8  # of one worker; what finds none travels


class Slot:
    """Memory for the result of one task, which a worker writes and its graph server reads.

    Attributes:
        name: tells it from every other slot of the worker.
        path, size: where to map it, and how many bytes it has.
        taken: whether a task uses it. Set and reset by any thread.
    """

    def __init__(self, name: int, size: int) -> None:
        self.name, self.size, self.taken = name, size, False
        self.path, self._memory = new_memory(size)

    def free(self) -> None:
        """What stands there was read."""
        self.taken = False

    def array(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray | None:
        """An array that a worker wrote there; None where it does not lie within the slot."""
        count = prod(shape)
        if not count:
            return np.zeros(shape, dtype)
        if offset < 0 or offset % dtype.itemsize or offset + count * dtype.itemsize > self.size:
            return None
        return np.frombuffer(self._memory, dtype, count, offset).reshape(shape)

    def close(self) -> None:
        """Nobody maps it from now on."""
        close_memory(self.path)


class Slots:
    """The slots of one worker. As large as results of their kind have been so far."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._names = 0

    def take(self, size: int) -> Slot | None:
        """A slot of at least so many bytes; None where too many are in use, or nothing is known to go there."""
        free = [slot for slot in self._slots if not slot.taken]
        fits = [slot for slot in free if slot.size >= size]
        if not size or not (fits or free or len(self._slots) < _MOST_SLOTS):
            return None
        slot = fits[0] if fits else self._make(size, instead_of=free[0] if free else None)
        slot.taken = True
        return slot

    def _make(self, size: int, *, instead_of: Slot | None) -> Slot:
        if instead_of is not None:
            instead_of.close()
            self._slots.remove(instead_of)
        self._names += 1
        self._slots.append(Slot(self._names, size))
        return self._slots[-1]

    def close(self) -> None:
        """The worker is gone; what it wrote may still be read."""
        for slot in self._slots:
            slot.close()
        self._slots = []


class Desk:
    """The slots of a worker, on its own side."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def lay(self, arrays: Arrays, name: int, path: str, size: int) -> dict[str, Any] | None:
        """Write arrays into a slot, and say where each lies: offset, dtype, shape; None where they do not fit."""
        places: dict[str, tuple[int, str, list[int]]] = {}
        end = 0
        for each, array in arrays.items():
            places[each] = (end, array.dtype.name, list(array.shape))
            end += aligned(array.nbytes)
        if end > size:
            return None
        if name not in self._maps:
            if len(self._maps) > _MOST_SLOTS:
                self._maps.clear()
            with open(path, "r+b") as file:  # noqa: PTH123 (pathlib is slow to import)
                self._maps[name] = mmap.mmap(file.fileno(), size)
        for each, array in arrays.items():
            if array.size:
                into = np.frombuffer(self._maps[name], array.dtype, array.size, places[each][0])
                into.reshape(array.shape)[...] = array
        return places


def laid_bytes(arrays: Arrays) -> int:
    """How large a slot would have to be for these."""
    return sum(aligned(array.nbytes) for array in arrays.values())
