"""Delta and varint coding of ascending numbers and pairs: each as its distance from the last, seven bits a byte."""

import torch
from torch import Tensor

from siafu.native import core


def pack_ascending(values: Tensor) -> Tensor:
    """Encode ascending numbers, (n,) int64, none negative, as bytes, (B,) uint8."""
    values = values.contiguous()
    if core.kernels is None:
        return _packed(values)
    out = torch.empty(core.kernels.ascending_bytes(values), dtype=torch.uint8)
    core.kernels.pack_ascending(values, out)
    return out


def unpack_ascending(data: Tensor, count: int, *, limit: int) -> Tensor:
    """Decode ``count`` numbers, (n,) int64; refuse bytes that hold anything else, or a number from ``limit`` on."""
    data = data.contiguous()
    if core.kernels is None:
        return _unpacked(data, count, limit)
    values = torch.empty(count, dtype=torch.int64)
    if not core.kernels.unpack_ascending(data, limit, values):
        raise ValueError(_damaged(count, limit))
    return values


def pack_pairs(row: Tensor, col: Tensor, *, num_cols: int) -> Tensor:
    """Encode pairs, (n,) int32 each, that ascend by row and then by column, as bytes, (B,) uint8."""
    row, col = row.contiguous(), col.contiguous()
    if core.kernels is None:
        return _packed(row.long() * num_cols + col)
    out = torch.empty(core.kernels.pairs_bytes(row, col, num_cols), dtype=torch.uint8)
    core.kernels.pack_pairs(row, col, num_cols, out)
    return out


def unpack_pairs(data: Tensor, count: int, *, num_rows: int, num_cols: int) -> tuple[Tensor, Tensor]:
    """Decode ``count`` pairs to rows and columns, (n,) int32; refuse bytes that hold anything else."""
    data = data.contiguous()
    if core.kernels is None:
        values = _unpacked(data, count, num_rows * num_cols)
        return (values // num_cols).int(), (values % num_cols).int()
    row, col = torch.empty(count, dtype=torch.int32), torch.empty(count, dtype=torch.int32)
    if not core.kernels.unpack_pairs(data, num_rows, num_cols, row, col):
        raise ValueError(_damaged(count, num_rows * num_cols))
    return row, col


def _packed(values: Tensor) -> Tensor:
    """Encode in plain Python."""
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
