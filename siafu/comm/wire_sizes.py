"""Sizes of rows and updates on the wire, vectorised: those that compression and quantisation of siafu.comm produce."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.config import Precision
from siafu.comm.quantization import QUANT_MAX, quantization_scales, quantize_dequantize

_HEAD = 2  # bytes of the format of a compressed table


class UpdateEncoding(NamedTuple):
    """The wire encoding of an update.

    Attributes:
        precision: the precision of each value.
        width: the number of values that share a scale, for integer precisions.
    """

    precision: Precision = "fp32"
    width: int = 256

    def num_bytes(self, count: int) -> int:
        """Count the bytes of ``count`` values."""
        rows = -(-count // self.width)
        match self.precision:
            case "fp32":
                return 4 * count
            case "bf16":
                return 2 * count
            case "int8":
                return rows * (self.width + 4)
            case "int4":
                return rows * (-(-self.width // 2) + 2)

    def quantize_rows(self, values: Tensor) -> Tensor:
        """Quantise and dequantise each row separately, as the receiver gets it: (R, N) -> (R, N)."""
        if self.precision == "fp32":
            return values
        padded = pad(values, (0, -values.shape[1] % self.width))
        rows = quantize_dequantize(padded.reshape(-1, self.width), self.precision)
        return rows.view_as(padded)[:, : values.shape[1]]


EXACT = UpdateEncoding()


def packed_row_bytes(rows: Tensor) -> Tensor:
    """Count the bytes of each row of (R, F), compressed as a table of one row: (R,) int64."""
    width, there = rows.shape[1], rows != 0
    count = there.sum(1)
    index_bytes = _gap_bytes(there, count).clamp(max=-(-width // 8))
    some = index_bytes + _value_bytes(rows, there, count)
    every = _value_bytes(rows, torch.ones_like(there), torch.full_like(count, width))
    return _HEAD + torch.where(2 * count > width, torch.minimum(some, every), some)


def _gap_bytes(there: Tensor, count: Tensor) -> Tensor:
    """Count the bytes of each row's number of values and of the gaps between their columns, as varints."""
    row, column = there.nonzero(as_tuple=True)
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    gap = column - torch.where(first, -1, column.roll(1)) - 1
    return _varint_bytes(count).index_add(0, row, _varint_bytes(gap))


def _varint_bytes(values: Tensor) -> Tensor:
    longer = [values >= 1 << 7 * more for more in range(1, 5)]
    return 1 + torch.stack(longer).sum(0)


def _value_bytes(rows: Tensor, written: Tensor, count: Tensor) -> Tensor:
    """Count the bytes of the written values in the first format that holds the whole row exactly: (R,) int64."""
    out = count * rows.dtype.itemsize
    for holds, size in reversed(_forms(rows, written, count)):
        out = torch.where(holds, size, out)
    return out


def _forms(rows: Tensor, written: Tensor, count: Tensor) -> list[tuple[Tensor, Tensor]]:
    """List the formats: for each, which rows it holds exactly, (R,) bool, and its bytes, (R,)."""
    first = (
        rows.gather(1, written.int().argmax(1, keepdim=True))
        if rows.shape[1]
        else rows.new_zeros(len(rows), 1)
    )

    def all_of(holds: Tensor) -> Tensor:
        return (holds | ~written).all(1)

    def stays(dtype: torch.dtype) -> Tensor:
        return all_of(rows.to(dtype).to(rows.dtype) == rows)

    each = torch.ones_like(count)
    return [
        (all_of(rows == 1), 0 * count),
        (all_of(rows == first), each * rows.dtype.itemsize),
        (_scaled(rows, "int4"), 2 + (count + 1) // 2),
        (stays(torch.int8), count),
        (_scaled(rows, "int8"), 4 + count),
        (stays(torch.bfloat16), 2 * count),
        (stays(torch.float32), 4 * count),
    ]


def _scaled(rows: Tensor, precision: Precision) -> Tensor:
    """Return which rows are exact multiples of a scale, (R,) bool; zeros stay zero."""
    most = QUANT_MAX[precision]
    largest = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    step = quantization_scales(largest, precision).to(rows.dtype)[:, None]
    levels = (rows / torch.where(step > 0, step, 1)).round_().clamp_(-most, most)
    return (levels * step == rows).all(1)
