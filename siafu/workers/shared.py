"""Memory of a graph server that worker processes of the same host read where it is. It knows no torch."""

import mmap
import os
import secrets
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_PROOF_BYTES = 16
_ALIGN_BYTES = 64


class Placed(NamedTuple):
    """Where an array lies: so many bytes into a segment."""

    segment: int
    offset: int


class Segments:
    """Arrays in memory that has a file descriptor, by which another process of the same user can map it.

    The memory is in no folder, and goes with the last process that maps it. A worker that can read ``proof`` from the
    first segment sees the others too.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._sizes: list[int] = []
        self._maps: list[mmap.mmap] = []
        self.paths: list[str] = []
        self.proof = secrets.token_hex(_PROOF_BYTES)
        self.rows(1, _PROOF_BYTES, np.dtype(np.uint8))[:] = np.frombuffer(bytes.fromhex(self.proof), np.uint8)

    def rows(self, num_rows: int, width: int, dtype: np.dtype) -> np.ndarray:
        """A new array of zeros, (num_rows, width)."""
        size = num_rows * width * dtype.itemsize
        if not size:
            return np.zeros((num_rows, width), dtype)
        path, memory = new_memory(size)
        array = np.frombuffer(memory, dtype).reshape(num_rows, width)
        self._begins.append(array.__array_interface__["data"][0])
        self._sizes.append(size)
        self._maps.append(memory)
        self.paths.append(path)
        return array

    def copies(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """New arrays like these, all in one segment."""
        ends, end = {}, 0
        for name, array in arrays.items():
            end += aligned(array.nbytes)
            ends[name] = end
        memory = self.rows(1, end, np.dtype(np.uint8))[0]
        found = {}
        for name, array in arrays.items():
            begin = ends[name] - aligned(array.nbytes)
            found[name] = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        return found

    def place(self, array: np.ndarray) -> Placed | None:
        """Where an array lies; None where that is not in a segment, or not in one piece."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        at = array.__array_interface__["data"][0]
        for number, (begin, size) in enumerate(zip(self._begins, self._sizes, strict=True)):
            if begin <= at < begin + size:
                return Placed(number, at - begin)
        return None

    def close(self) -> None:
        """Close the descriptors: nobody maps the segments from now on. Arrays stay as long as they are used."""
        for path in self.paths:
            close_memory(path)
        self.paths, self._begins, self._sizes, self._maps = [], [], [], []


class Mapped:
    """The segments of a graph server, seen by a worker. What it writes there nobody else sees."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._maps: dict[int, np.ndarray] = {}

    def proof(self) -> str:
        """What stands in the first segment; nothing where it cannot be read, as on another host."""
        try:
            with open(self._paths[0], "rb") as file:  # noqa: PTH123 (pathlib is slow to import)
                return file.read(_PROOF_BYTES).hex()
        except (OSError, IndexError):
            return ""

    def array(self, placed: Placed, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An array that lies in a segment."""
        if placed.segment not in self._maps:
            self._maps[placed.segment] = np.memmap(self._paths[placed.segment], np.uint8, mode="c")
        size = dtype.itemsize * int(np.prod(shape))
        return self._maps[placed.segment][placed.offset : placed.offset + size].view(dtype).reshape(shape)


def aligned(num_bytes: int) -> int:
    """As many bytes, up to where the next array may begin."""
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def new_memory(size: int) -> tuple[str, mmap.mmap]:
    """Memory in no folder, and the path by which another process of the same user maps it."""
    file = os.memfd_create("siafu rows", os.MFD_CLOEXEC)
    os.ftruncate(file, size)
    return f"/proc/{os.getpid()}/fd/{file}", mmap.mmap(file, size)


def close_memory(path: str) -> None:
    """Nobody maps it from now on; who does keeps it."""
    os.close(int(path.rpartition("/")[2]))
