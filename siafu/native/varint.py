"""Ascending numbers and pairs as bytes: each as its distance from the one before, seven bits a byte."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

_core: Any
try:
    _core = import_module("siafu.native._core")
except ImportError:  # a source tree that was never built
    _core = None


def pack_ascending(values: Tensor) -> Tensor:
    """Ascending numbers, (n,) int64, none negative, as bytes, (B,) uint8."""
    values = values.contiguous()
    if _core is None:
        return _packed(values)
    out = torch.empty(_core.ascending_bytes(values), dtype=torch.uint8)
    _core.pack_ascending(values, out)
    return out


def unpack_ascending(data: Tensor, count: int, *, limit: int) -> Tensor:
    """The ``count`` numbers that were packed, (n,) int64; bytes of others, or of one from ``limit`` on, are refused."""
    data = data.contiguous()
    if _core is None:
        return _unpacked(data, count, limit)
    values = torch.empty(count, dtype=torch.int64)
    if not _core.unpack_ascending(data, limit, values):
        raise ValueError(_damaged(count, limit))
    return values


def pack_pairs(row: Tensor, col: Tensor, *, num_cols: int) -> Tensor:
    """Pairs, (n,) int32 each, that ascend by row and then by column, as bytes, (B,) uint8."""
    row, col = row.contiguous(), col.contiguous()
    if _core is None:
        return _packed(row.long() * num_cols + col)
    out = torch.empty(_core.pairs_bytes(row, col, num_cols), dtype=torch.uint8)
    _core.pack_pairs(row, col, num_cols, out)
    return out


def unpack_pairs(data: Tensor, count: int, *, num_rows: int, num_cols: int) -> tuple[Tensor, Tensor]:
    """The ``count`` pairs that were packed: rows and columns, (n,) int32; bytes that hold anything else are refused."""
    data = data.contiguous()
    if _core is None:
        values = _unpacked(data, count, num_rows * num_cols)
        return (values // num_cols).int(), (values % num_cols).int()
    row, col = torch.empty(count, dtype=torch.int32), torch.empty(count, dtype=torch.int32)
    if not _core.unpack_pairs(data, num_rows, num_cols, row, col):
        raise ValueError(_damaged(count, num_rows * num_cols))
    return row, col


def _packed(values: Tensor) -> Tensor:
    """The same in plain Python."""
    out, before = bytearray(), 0
    for value in values.tolist():
        gap, before = value - before, value
        while gap >= 128:
            out.append(gap & 127 | 128)
            gap >>= 7
        out.append(gap)
    return torch.tensor(list(out), dtype=torch.uint8)


def _unpacked(data: Tensor, count: int, limit: int) -> Tensor:
    values, now, gap, shift = [], 0, 0, 0
    for byte in data.tolist():
        gap |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            now, gap, shift = now + gap, 0, 0
            values.append(now)
    if len(values) != count or shift or now >= limit:
        raise ValueError(_damaged(count, limit))
    return torch.tensor(values, dtype=torch.int64)


def _damaged(count: int, limit: int) -> str:
    return f"packed numbers: the bytes are not {count} numbers below {limit}; they were cut off or changed"
