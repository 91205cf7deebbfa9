"""Memory in which a worker process writes its results for the graph server of the same host. It knows no torch."""

import mmap
from typing import Any

import numpy as np

from siafu.workers.shared_memory import Memory, aligned, view
from siafu.workers.task import Arrays

_MOST_SLOTS = 8  # of one worker; a result that finds none travels


class Slot:
    """Memory for the result of one task, which a worker writes and its graph server reads.

    Attributes:
        number: tells it from every other slot of the worker.
        instead_of: the number of the slot that it replaces, or -1.
        memory: in which results are written.
        taken: whether a task uses it. Set and reset by any thread.
    """

    def __init__(self, number: int, size: int, *, instead_of: int = -1) -> None:
        self.number, self.instead_of, self.taken = number, instead_of, False
        self.memory = Memory(size, read_only=False)

    def free(self) -> None:
        """Let another task use it: its arrays were read."""
        self.taken = False

    def array(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An array that a worker wrote; raises FrameError where it does not lie within the slot."""
        return view(self.memory.map, offset, dtype, shape)


class Slots:
    """The slots of one worker. As large as results of their kind have been so far."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []
        self._numbers = 0

    def take(self, size: int) -> Slot | None:
        """A slot of at least so many bytes; None where too many are in use, or nothing is known to go there."""
        free = [slot for slot in self._slots if not slot.taken]
        fits = [slot for slot in free if slot.memory.size >= size]
        if not size or not (fits or free or len(self._slots) < _MOST_SLOTS):
            return None
        slot = fits[0] if fits else self._make(size, instead_of=free[0] if free else None)
        slot.taken = True
        return slot

    def _make(self, size: int, *, instead_of: Slot | None) -> Slot:
        replaced = -1
        if instead_of is not None:
            replaced = instead_of.number
            instead_of.memory.close()
            self._slots.remove(instead_of)
        self._numbers += 1
        self._slots.append(Slot(self._numbers, size, instead_of=replaced))
        return self._slots[-1]

    def close(self) -> None:
        """The worker is gone; results in its slots may still be read."""
        for slot in self._slots:
            slot.memory.close()
        self._slots = []


def write_result(arrays: Arrays, slot: mmap.mmap) -> dict[str, Any] | None:
    """Write arrays into a slot; returns the place of each: offset, dtype, shape; None where they do not fit."""
    places: dict[str, tuple[int, str, list[int]]] = {}
    end = 0
    for name, array in arrays.items():
        places[name] = (end, array.dtype.name, list(array.shape))
        end += aligned(array.nbytes)
    if end > len(slot):
        return None
    for name, array in arrays.items():
        view(slot, places[name][0], array.dtype, array.shape)[...] = array
    return places


def laid_bytes(arrays: Arrays) -> int:
    """The size of a slot that has room for these arrays."""
    return sum(aligned(array.nbytes) for array in arrays.values())
