"""A table of rows in the fewest bytes that give it back exactly. It knows no rank.

Two things are chosen for a whole table, and said in its first bytes. *Which* numbers are written: all; or those that
are not zero, with a bit for each column of a row; or these, with the gaps between their columns. And *how*: not at
all where each is 1, once a row where they are equal in it, in 4 or 8 bits with a scale a row, as whole numbers of 8
bits, as bfloat16, as float32, or as they are. So features of words weigh a byte or two a word, and rows that were
rounded before (:func:`siafu.comm.quantization.rounded`) weigh what they were rounded to.

What comes from elsewhere is checked: bytes that are no such table are refused.
"""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from siafu.comm.config import Precision
from siafu.comm.quantization import QUANT_MAX, quantization_scales

Bytes = NDArray[np.uint8]
_DTYPES = (torch.float32, torch.float64)
_ALL, _BITS, _GAPS = range(3)
_NOTHING = np.empty(0, np.uint8)
_MOST_BYTES = 5  # of one gap, 7 bits in each


class Numbers(NamedTuple):
    """Some numbers of a table, row by row.

    Attributes:
        values: (Z,) float32 or float64.
        row: (Z,) int64, ascending.
        num_rows: R.
    """

    values: Tensor
    row: Tensor
    num_rows: int


def pack(rows: Tensor) -> Tensor:
    """Write rows down: (R, F) float32 or float64 -> (B,) uint8."""
    if rows.dim() != 2 or rows.dtype not in _DTYPES:
        raise ValueError(f"rows are {rows.dtype} {tuple(rows.shape)}; expected a table of float32 or float64")
    row, column = rows.nonzero(as_tuple=True)
    told = {_BITS: np.packbits((rows != 0).numpy()), _GAPS: _gaps(row, column, rows.shape[0])}
    which = min(told, key=lambda each: told[each].size)
    packed = _written(which, told[which], Numbers(rows[row, column], row, rows.shape[0]))
    if 2 * row.numel() > rows.numel():  # else that would be longer in any case
        every = torch.arange(rows.shape[0]).repeat_interleave(rows.shape[1])
        packed = min(
            packed, _written(_ALL, _NOTHING, Numbers(rows.reshape(-1), every, rows.shape[0])), key=len
        )
    return torch.from_numpy(packed)


def unpack(packed: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Read such rows: (B,) uint8 -> (R, F)."""
    data = _Reader(packed.numpy())
    which, how = data.take(2).tolist()
    if which > _GAPS or how >= len(_FORMS):
        raise _refused(f"say that they are of form {which}, {how}")
    row, column = _read_places(data, which, num_rows, width)
    values = _FORMS[how].read(data, row, num_rows, dtype)
    if data.left:
        raise _refused(f"are {data.left} too many")
    out = torch.zeros(num_rows, width, dtype=dtype)
    out[row, column] = values
    return out


def _written(which: int, told: Bytes, numbers: Numbers) -> Bytes:
    """All bytes of a table, its numbers in the first form that holds them exactly."""
    for how, form in enumerate(_FORMS):
        written = form.write(numbers)
        if written is not None:
            return np.concatenate([np.array([which, how], np.uint8), told, *written])
    raise AssertionError("the last form holds any number")


class _Reader:
    """Bytes that are taken one after another."""

    def __init__(self, data: Bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return self._data.size - self._at

    def take(self, count: int) -> Bytes:
        if count > self.left:
            raise _refused(f"end {count - self.left} too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(self.take(count * dtype.itemsize).copy()).view(dtype)

    def varints(self, count: int) -> NDArray[np.int64]:
        """Numbers of 7 bits a byte, the low ones first, the last byte of each below 128."""
        ends = np.nonzero(self._data[self._at : self._at + _MOST_BYTES * count] < 128)[0][:count]
        if ends.size < count:
            raise _refused("end within a number")
        data = self.take(int(ends[-1]) + 1 if count else 0).astype(np.int64)
        begins = np.concatenate([[0], ends[:-1] + 1]) if count else ends
        place = np.arange(data.size) - np.repeat(begins, ends - begins + 1)
        return np.add.reduceat((data & 127) << 7 * np.minimum(place, 8), begins) if count else data


def _varints(values: NDArray[np.int64]) -> Bytes:
    digits = values[:, None] >> 7 * np.arange(_MOST_BYTES)
    more = digits[:, 1:] > 0
    length = 1 + more.sum(1)
    data = (digits & 127).astype(np.uint8)
    data[:, :-1][more] |= 128
    return data[np.arange(_MOST_BYTES) < length[:, None]]


def _gaps(row: Tensor, column: Tensor, num_rows: int) -> Bytes:
    """How many numbers each row has, then for each how many columns lie between it and the one before."""
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    before = torch.where(first, -1, column.roll(1))
    count = torch.bincount(row, minlength=num_rows)
    return _varints(torch.cat([count, column - before - 1]).numpy())


def _read_places(data: _Reader, which: int, num_rows: int, width: int) -> tuple[Tensor, Tensor]:
    """The row and the column of each number that is written."""
    if which == _ALL:
        every = torch.arange(num_rows * width)
        return every // max(1, width), every % max(1, width)
    if which == _BITS:
        bits = np.unpackbits(data.take(ceil(num_rows * width / 8)), count=num_rows * width)
        row, column = torch.from_numpy(bits.reshape(num_rows, width)).nonzero(as_tuple=True)
        return row, column
    count = data.varints(num_rows)
    if count.size and (count.max() > width or count.min() < 0):
        raise _refused(f"say that a row of {width} has {int(count.max())} numbers")
    steps = data.varints(int(count.sum())) + 1
    ends = np.cumsum(count)
    total = np.concatenate([[0], np.cumsum(steps)])
    column = total[1:] - np.repeat(total[ends - count], count) - 1
    if column.size and (column.max() >= width or steps.min() < 1):
        raise _refused(f"name column {int(column.max())} of {width}")
    return torch.from_numpy(np.repeat(np.arange(num_rows), count)), torch.from_numpy(column)


class _Form(NamedTuple):
    """How numbers are written: arrays of bytes, or None where that would not be exact; and how they are read."""

    write: Callable[[Numbers], list[Bytes] | None]
    read: Callable[[_Reader, Tensor, int, torch.dtype], Tensor]


def _write_ones(numbers: Numbers) -> list[Bytes] | None:
    return [] if bool((numbers.values == 1).all()) else None


def _read_ones(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(row.numel(), dtype=dtype)


def _write_a_row(numbers: Numbers) -> list[Bytes] | None:
    values, row, num_rows = numbers
    each = values.new_zeros(num_rows)
    each[row] = values
    return [_raw(each)] if torch.equal(each[row], values) else None


def _read_a_row(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    return data.tensor(num_rows, dtype)[row]


def _scaled(precision: Precision, scale_dtype: torch.dtype) -> _Form:
    """Whole numbers times a scale a row; those of 4 bits two in a byte."""
    most, halves = QUANT_MAX[precision], precision == "int4"

    def write(numbers: Numbers) -> list[Bytes] | None:
        values, row, _ = numbers
        if not bool(values.isfinite().all()):
            return None
        scale = quantization_scales(_largest(numbers), precision)
        step = scale.to(values.dtype)[row]
        levels = (values / torch.where(step > 0, step, 1)).round_().clamp_(-most, most)
        if not torch.equal(levels * step, values):
            return None
        return [_raw(scale), _halved(levels) if halves else _raw(levels.to(torch.int8))]

    def read(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
        scale, count = data.tensor(num_rows, scale_dtype).to(dtype), row.numel()
        if halves:
            pairs = data.tensor((count + 1) // 2, torch.uint8)
            levels = torch.stack([pairs & 15, pairs >> 4], -1).view(-1)[:count].to(dtype) - (most + 1)
        else:
            levels = data.tensor(count, torch.int8).to(dtype)
        return levels * scale[row]

    return _Form(write, read)


def _largest(numbers: Numbers) -> Tensor:
    """The largest number of each row, by its size: (R,)."""
    values, row, num_rows = numbers
    begins = np.searchsorted(row.numpy(), np.arange(num_rows))
    there = torch.bincount(row, minlength=num_rows) > 0
    largest = values.new_zeros(num_rows)
    if row.numel():
        largest[there] = torch.from_numpy(np.maximum.reduceat(values.abs().numpy(), begins[there.numpy()]))
    return largest


def _halved(levels: Tensor) -> Bytes:
    shifted = torch.nn.functional.pad(levels + (QUANT_MAX["int4"] + 1), (0, levels.numel() % 2)).to(
        torch.uint8
    )
    return (shifted[::2] | shifted[1::2] << 4).numpy()


def _as(kind: torch.dtype | None) -> _Form:
    """Numbers in another type, or as they are."""

    def write(numbers: Numbers) -> list[Bytes] | None:
        values = numbers.values
        written = values if kind is None else values.to(kind)
        return [_raw(written)] if kind is None or torch.equal(written.to(values.dtype), values) else None

    def read(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
        return data.tensor(row.numel(), kind or dtype).to(dtype)

    return _Form(write, read)


_FORMS = (
    _Form(_write_ones, _read_ones),
    _Form(_write_a_row, _read_a_row),
    _scaled("int4", torch.bfloat16),
    _as(torch.int8),
    _scaled("int8", torch.float32),
    _as(torch.bfloat16),
    _as(torch.float32),
    _as(None),
)


def _raw(values: Tensor) -> Bytes:
    return values.contiguous().view(torch.uint8).reshape(-1).numpy()


def _refused(found: str) -> ValueError:
    return ValueError(f"the bytes of packed rows {found}; every rank must run the same siafu")
