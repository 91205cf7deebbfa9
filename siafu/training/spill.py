"""Arrays that lie on disk, for what does not fit into memory: the system writes their pages and takes them back."""

import mmap
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from siafu.machine import usable_memory_bytes
from siafu.nn.streamed import Spill


def spill_to(folder: Path) -> Spill:
    """A maker of arrays of zeros, (rows, width) float32, in files without a name below ``folder``.

    A file is gone when its array is. Its room is taken at once, so that a full disk is an error here.
    """

    def spill(rows: int, width: int) -> Tensor:
        num_bytes = 4 * rows * width
        if num_bytes == 0:
            return torch.zeros(rows, width)
        with tempfile.TemporaryFile(dir=folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            except OSError as error:
                error.filename = str(folder)
                raise
            mapped = mmap.mmap(file.fileno(), num_bytes)
        return torch.from_numpy(np.frombuffer(mapped, dtype=np.float32).reshape(rows, width))

    return spill


def tables_in(folder: Path, *, count: int, rows: int, width: int) -> Spill:
    """A maker of arrays (rows, width) float32, on disk where ``count`` of them take more than half of the memory."""
    if 4 * count * rows * width > usable_memory_bytes() / 2:
        return spill_to(folder)
    return torch.empty
