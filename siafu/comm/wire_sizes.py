"""What rows and updates weigh on the wire: the lengths that ``packed`` and ``codec`` give them, for all at once."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.config import Precision
from siafu.comm.quantization import QUANT_MAX, quantization_scales, quantize_dequantize

_HEAD = 2  # bytes that say how a table is written


class UpdateWire(NamedTuple):
    """How the numbers of an update travel.

    Attributes:
        precision: of each.
        width: how many share a scale, where they are rounded to whole numbers.
    """

    precision: Precision = "fp32"
    width: int = 256

    def num_bytes(self, count: int) -> int:
        """The bytes of so many numbers."""
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

    def arrived(self, values: Tensor) -> Tensor:
        """Numbers as they arrive, each row by itself: (R, N) -> (R, N)."""
        if self.precision == "fp32":
            return values
        padded = pad(values, (0, -values.shape[1] % self.width))
        rows = quantize_dequantize(padded.reshape(-1, self.width), self.precision)
        return rows.view_as(padded)[:, : values.shape[1]]


EXACT = UpdateWire()


def row_bytes(rows: Tensor) -> Tensor:
    """The bytes of each row of (R, F), packed as a table of one row: (R,) int64."""
    width, there = rows.shape[1], rows != 0
    count = there.sum(1)
    told = _gap_bytes(there, count).clamp(max=-(-width // 8))
    some = told + _value_bytes(rows, there, count)
    every = _value_bytes(rows, torch.ones_like(there), torch.full_like(count, width))
    return _HEAD + torch.where(2 * count > width, torch.minimum(some, every), some)


def _gap_bytes(there: Tensor, count: Tensor) -> Tensor:
    """Of the number of a row's values and the gaps between their columns, 7 bits a byte."""
    row, column = there.nonzero(as_tuple=True)
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    gap = column - torch.where(first, -1, column.roll(1)) - 1
    return _varint_bytes(count).index_add(0, row, _varint_bytes(gap))


def _varint_bytes(values: Tensor) -> Tensor:
    longer = [values >= 1 << 7 * more for more in range(1, 5)]
    return 1 + torch.stack(longer).sum(0)


def _value_bytes(rows: Tensor, written: Tensor, count: Tensor) -> Tensor:
    """Of the values that are written, in the first form that holds all of a row exactly: (R,) int64."""
    out = count * rows.dtype.itemsize
    for holds, size in reversed(_forms(rows, written, count)):
        out = torch.where(holds, size, out)
    return out


def _forms(rows: Tensor, written: Tensor, count: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each form whether it holds the values of each row, and the bytes that it takes."""
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
    """Whether whole numbers times a scale give each row back, (R,) bool; what is zero stays so."""
    most = QUANT_MAX[precision]
    largest = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    step = quantization_scales(largest, precision).to(rows.dtype)[:, None]
    levels = (rows / torch.where(step > 0, step, 1)).round_().clamp_(-most, most)
    return (levels * step == rows).all(1)
