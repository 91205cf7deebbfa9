"""Memory that a graph server shares with the worker processes it started on its host. It knows no torch.

The memory is in no folder and has no name that travels. The graph server hands each worker process the descriptors of
the memory over a Unix socket that the process inherits (:class:`Handing`, :class:`Received`). Frames name memory by
number alone, and a worker views only memory whose descriptor it was handed.
"""

import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from math import prod
from typing import NamedTuple

import numpy as np

from siafu.wire.frames import FrameError

_ALIGN_BYTES = 64
_FIXED_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_NO_NEW_WRITER = 0x10  # F_SEAL_FUTURE_WRITE, which Python 3.11 does not name
_HANDED = struct.Struct("<iii")  # use, number, the number that it replaces or -1


class Use(IntEnum):
    """The uses of memory that is handed over."""

    SEGMENT = 0  # rows and weights, which workers read
    SLOT = 1  # the result of a task, which one worker writes


class Placed(NamedTuple):
    """The place of an array: so many bytes into a segment."""

    segment: int
    offset: int


class Memory:
    """Memory with a descriptor, whose size nobody can change. Where it is ``read_only``, no other process writes to it.

    Attributes:
        size: in bytes.
        map: the memory itself.
    """

    def __init__(self, size: int, *, read_only: bool) -> None:
        self.size = size
        self.descriptor = os.memfd_create("siafu rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        self.map = mmap.mmap(self.descriptor, size)
        if read_only:
            with suppress(OSError):  # Linux before 5.1 has no such seal
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _NO_NEW_WRITER)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE | fcntl.F_SEAL_SEAL)

    def close(self) -> None:
        """Close the descriptor: it is handed to nobody any more. Arrays stay as long as they are used."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Segments:
    """Arrays in memory that worker processes of this host read where it is."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self.memories: list[Memory] = []

    def rows(self, num_rows: int, width: int, dtype: np.dtype) -> np.ndarray:
        """A new array of zeros, (num_rows, width)."""
        size = num_rows * width * dtype.itemsize
        if not size:
            return np.zeros((num_rows, width), dtype)
        memory = Memory(size, read_only=True)
        array = np.frombuffer(memory.map, dtype).reshape(num_rows, width)
        self._begins.append(array.__array_interface__["data"][0])
        self.memories.append(memory)
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
        """The place of an array; None where that is not in a segment, or not in one piece."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        at = array.__array_interface__["data"][0]
        for number, (begin, memory) in enumerate(zip(self._begins, self.memories, strict=True)):
            if begin <= at < begin + memory.size:
                return Placed(number, at - begin)
        return None

    def close(self) -> None:
        """Close the descriptors: nobody maps the segments from now on. Arrays stay as long as they are used."""
        for memory in self.memories:
            memory.close()
        self.memories, self._begins = [], []


class Handing:
    """The graph server's end of the socket by which one worker process is handed descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._handed: set[tuple[int, int]] = set()

    def hand(self, use: Use, number: int, memory: Memory, *, instead_of: int = -1) -> None:
        """Hand over memory under a number, once; raises ConnectionError where the worker takes no more."""
        if (use, number) in self._handed:
            return
        try:
            socket.send_fds(self._sock, [_HANDED.pack(use, number, instead_of)], [memory.descriptor])
        except OSError as error:
            raise ConnectionError(f"it takes no shared memory: {error.strerror}") from error
        self._handed.add((use, number))

    def close(self) -> None:
        """Hand over nothing any more."""
        self._sock.close()


class Received:
    """The memory that a worker process was handed, by use and number. One thread uses it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._maps: dict[tuple[int, int], mmap.mmap] = {}

    def segment(self, placed: Placed, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """An array in a segment; what this process writes there, nobody else sees. Raises FrameError for any other."""
        return view(self._map(Use.SEGMENT, placed.segment), placed.offset, dtype, shape)

    def slot(self, number: int) -> mmap.mmap:
        """The memory of a slot, to be written; raises FrameError where there is none of this number."""
        return self._map(Use.SLOT, number)

    def close(self) -> None:
        """Receive nothing any more."""
        self._sock.close()

    def _map(self, use: Use, number: int) -> mmap.mmap:
        if (use, number) not in self._maps:
            self._receive()  # who names memory has handed it over before
        try:
            return self._maps[use, number]
        except KeyError:
            raise FrameError(f"{use.name.lower()} {number} is named, which was not handed over") from None

    def _receive(self) -> None:
        """Map all memory that was handed over since."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._sock, _HANDED.size, 1)
            except BlockingIOError:
                return
            if not data:
                return
            try:
                self._take(data, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _take(self, data: bytes, descriptors: list[int]) -> None:
        if len(data) != _HANDED.size or len(descriptors) != 1:
            raise FrameError("shared memory was handed over in a form that no graph server uses")
        use, number, instead_of = _HANDED.unpack(data)
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
        if seals & _FIXED_SIZE != _FIXED_SIZE:
            raise FrameError("shared memory was handed over whose size could change")
        access = mmap.ACCESS_COPY if use == Use.SEGMENT else mmap.ACCESS_WRITE
        size = os.fstat(descriptors[0]).st_size
        self._maps.pop((use, instead_of), None)
        self._maps[use, number] = mmap.mmap(descriptors[0], size, access=access)


def view(memory: mmap.mmap, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array in memory; raises FrameError where it does not lie within it."""
    count = prod(shape)
    if not count:
        return np.zeros(shape, dtype)
    if offset < 0 or offset % dtype.itemsize or offset + count * dtype.itemsize > len(memory):
        raise FrameError(
            f"an array of {count} {dtype} at {offset} is named, in memory of {len(memory)} bytes"
        )
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)


def aligned(num_bytes: int) -> int:
    """As many bytes, up to where the next array may begin."""
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
