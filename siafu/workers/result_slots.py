"""Slots: shared memory in which a worker process writes results for the graph server of its host. It knows no torch."""

import mmap
from typing import Any

import numpy as np

from siafu.workers.shared_memory import SealedMemory, aligned, view
from siafu.workers.task import Arrays

_MAX_SLOTS = 8  # of one worker; without a free slot a result is sent


class ResultSlot:
    """Memory for the result of one task, which a worker writes and its graph server reads.

    Attributes:
        number: identifies the slot among all slots of the worker.
        replaces: the number of the slot that it replaces, or -1.
        memory: in which results are written.
        in_use: whether a task uses it. Set and reset by any thread.
    """

    def __init__(self, number: int, size: int, *, replaces: int = -1) -> None:
        self.number, self.replaces, self.in_use = number, replaces, False
        self.memory = SealedMemory(size, read_only=False)

    def free(self) -> None:
        """Let another task use the slot: its arrays were read."""
        self.in_use = False

    def array(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """View an array that a worker wrote; raises FrameError if it is not within the slot."""
        return view(self.memory.map, offset, dtype, shape)


class ResultSlots:
    """The slots of one worker."""

    def __init__(self) -> None:
        self._slots: list[ResultSlot] = []
        self._last_number = 0

    def take(self, size: int) -> ResultSlot | None:
        """Take a slot of at least ``size`` bytes; None if too many are in use, or the size is 0."""
        free = [slot for slot in self._slots if not slot.in_use]
        fits = [slot for slot in free if slot.memory.size >= size]
        if not size or not (fits or free or len(self._slots) < _MAX_SLOTS):
            return None
        slot = fits[0] if fits else self._make(size, replaced=free[0] if free else None)
        slot.in_use = True
        return slot

    def _make(self, size: int, *, replaced: ResultSlot | None) -> ResultSlot:
        number = -1
        if replaced is not None:
            number = replaced.number
            replaced.memory.close()
            self._slots.remove(replaced)
        self._last_number += 1
        self._slots.append(ResultSlot(self._last_number, size, replaces=number))
        return self._slots[-1]

    def close(self) -> None:
        """Release the slots of a worker that left; results in them may still be read."""
        for slot in self._slots:
            slot.memory.close()
        self._slots = []


def write_to_slot(arrays: Arrays, slot: mmap.mmap) -> dict[str, Any] | None:
    """Write arrays into a slot; returns offset, dtype and shape of each, or None if they do not fit."""
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


def slot_bytes(arrays: Arrays) -> int:
    """Return the size of a slot that has room for these arrays."""
    return sum(aligned(array.nbytes) for array in arrays.values())
