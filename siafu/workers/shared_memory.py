"""Memory that a graph server shares with the worker processes it started on its host. It knows no torch.

The memory has no name in the file system. The graph server hands each worker process the file descriptors over a Unix
socket that the process inherits (:class:`DescriptorSender`, :class:`DescriptorReceiver`). Frames name memory by number
alone, and a worker maps only memory whose descriptor it was handed.
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
_MESSAGE = struct.Struct("<iii")  # use, number, the number that it replaces or -1


class MemoryUse(IntEnum):
    """The uses of memory that is handed over."""

    SEGMENT = 0  # rows and weights, which workers read
    SLOT = 1  # the result of a task, which one worker writes


class ArrayLocation(NamedTuple):
    """The location of an array: a segment, and an offset in bytes."""

    segment: int
    offset: int


class SealedMemory:
    """Memory with a file descriptor and a fixed size. If it is ``read_only``, no other process can write to it.

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
        """Close the descriptor, so that it is handed to nobody any more. Arrays stay valid while they are used."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Segments:
    """Allocates arrays in memory that worker processes of this host can read."""

    def __init__(self) -> None:
        self._addresses: list[int] = []  # of the first byte of each segment
        self.memories: list[SealedMemory] = []

    def rows(self, num_rows: int, width: int, dtype: np.dtype) -> np.ndarray:
        """Allocate an array of zeros, (num_rows, width)."""
        size = num_rows * width * dtype.itemsize
        if not size:
            return np.zeros((num_rows, width), dtype)
        memory = SealedMemory(size, read_only=True)
        array = np.frombuffer(memory.map, dtype).reshape(num_rows, width)
        self._addresses.append(array.__array_interface__["data"][0])
        self.memories.append(memory)
        return array

    def copies(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Allocate arrays of zeros with the shapes and dtypes of these, all in one segment."""
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

    def locate(self, array: np.ndarray) -> ArrayLocation | None:
        """Return the location of an array; None if it is not in a segment, or not contiguous."""
        if not array.flags.c_contiguous or not array.nbytes:
            return None
        address = array.__array_interface__["data"][0]
        for number, (begin, memory) in enumerate(zip(self._addresses, self.memories, strict=True)):
            if begin <= address < begin + memory.size:
                return ArrayLocation(number, address - begin)
        return None

    def close(self) -> None:
        """Close the descriptors, so that nobody maps the segments any more. Arrays stay valid while they are used."""
        for memory in self.memories:
            memory.close()
        self.memories, self._addresses = [], []


class DescriptorSender:
    """The graph server's end of the socket over which one worker process is handed file descriptors."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._sent: set[tuple[int, int]] = set()

    def send(self, use: MemoryUse, number: int, memory: SealedMemory, *, replaces: int = -1) -> None:
        """Hand over memory under a number, once; raises ConnectionError if the worker cannot receive it."""
        if (use, number) in self._sent:
            return
        try:
            socket.send_fds(self._sock, [_MESSAGE.pack(use, number, replaces)], [memory.descriptor])
        except OSError as error:
            raise ConnectionError(f"it takes no shared memory: {error.strerror}") from error
        self._sent.add((use, number))

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


class DescriptorReceiver:
    """The worker's end: maps the memory that it was handed, by use and number. One thread uses it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._maps: dict[tuple[int, int], mmap.mmap] = {}

    def array(self, location: ArrayLocation, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """View an array in a segment; raises FrameError for unknown memory. Writes of this process stay private."""
        return view(self._map(MemoryUse.SEGMENT, location.segment), location.offset, dtype, shape)

    def slot(self, number: int) -> mmap.mmap:
        """Return the memory of a slot, for writing; raises FrameError for an unknown number."""
        return self._map(MemoryUse.SLOT, number)

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _map(self, use: MemoryUse, number: int) -> mmap.mmap:
        if (use, number) not in self._maps:
            self._receive()  # a server hands memory over before it names it
        try:
            return self._maps[use, number]
        except KeyError:
            raise FrameError(f"{use.name.lower()} {number} is named, which was not handed over") from None

    def _receive(self) -> None:
        """Map all memory that was handed over since the last call."""
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._sock, _MESSAGE.size, 1)
            except BlockingIOError:
                return
            if not data:
                return
            try:
                self._add(data, descriptors)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def _add(self, data: bytes, descriptors: list[int]) -> None:
        if len(data) != _MESSAGE.size or len(descriptors) != 1:
            raise FrameError("shared memory was handed over in a form that no graph server uses")
        use, number, replaces = _MESSAGE.unpack(data)
        seals = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS)
        if seals & _FIXED_SIZE != _FIXED_SIZE:
            raise FrameError("shared memory was handed over whose size could change")
        access = mmap.ACCESS_COPY if use == MemoryUse.SEGMENT else mmap.ACCESS_WRITE
        size = os.fstat(descriptors[0]).st_size
        self._maps.pop((use, replaces), None)
        self._maps[use, number] = mmap.mmap(descriptors[0], size, access=access)


def view(memory: mmap.mmap, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """View an array in memory; raises FrameError if it is not within it."""
    count = prod(shape)
    if not count:
        return np.zeros(shape, dtype)
    if offset < 0 or offset % dtype.itemsize or offset + count * dtype.itemsize > len(memory):
        raise FrameError(
            f"an array of {count} {dtype} at {offset} is named, in memory of {len(memory)} bytes"
        )
    return np.frombuffer(memory, dtype, count, offset).reshape(shape)


def aligned(num_bytes: int) -> int:
    """Round a number of bytes up to the alignment of arrays."""
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
