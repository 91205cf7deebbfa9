"""Lossless compression of tables of rows. It knows no rank.

Two choices are made per table and stored in its first two bytes:

- the layout: all values; or the nonzero values with a bitmap of their columns; or the nonzero values with the gaps
  between their columns as varints;
- the encoding of the values: nothing if all are 1, one value per row if the row's are equal, 4 or 8 bits with a scale
  per row, int8, bfloat16, float32, or the table's own dtype.

So bag-of-words features take one or two bytes per word, and rows that were quantized before
(:func:`siafu.comm.quantization.quantize_dequantize`) take their quantized size.

Received bytes are checked: bytes that are not a valid table are refused.
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
_ALL, _BITS, _GAPS = range(3)  # layouts
_NO_BYTES = np.empty(0, np.uint8)
_MAX_VARINT_BYTES = 5  # of one gap: 7 bits per byte


class _RowValues(NamedTuple):
    """The values of a table that are written, row by row.

    Attributes:
        values: (Z,) float32 or float64.
        row: (Z,) int64, ascending.
        num_rows: R.
    """

    values: Tensor
    row: Tensor
    num_rows: int


def compress_rows(rows: Tensor) -> Tensor:
    """Compress rows: (R, F) float32 or float64 -> (B,) uint8."""
    if rows.dim() != 2 or rows.dtype not in _DTYPES:
        raise ValueError(f"rows are {rows.dtype} {tuple(rows.shape)}; expected a table of float32 or float64")
    row, column = rows.nonzero(as_tuple=True)
    positions = {_BITS: np.packbits((rows != 0).numpy()), _GAPS: _encode_gaps(row, column, rows.shape[0])}
    layout = min(positions, key=lambda each: positions[each].size)
    packed = _encode_table(layout, positions[layout], _RowValues(rows[row, column], row, rows.shape[0]))
    if 2 * row.numel() > rows.numel():  # else the layout with all values is never shorter
        every = torch.arange(rows.shape[0]).repeat_interleave(rows.shape[1])
        packed = min(
            packed,
            _encode_table(_ALL, _NO_BYTES, _RowValues(rows.reshape(-1), every, rows.shape[0])),
            key=len,
        )
    return torch.from_numpy(packed)


def decompress_rows(packed: Tensor, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Decompress rows: (B,) uint8 -> (R, F). Raises ValueError for bytes that are not a valid table."""
    data = _Reader(packed.numpy())
    layout, encoding = data.take(2).tolist()
    if layout > _GAPS or encoding >= len(_ENCODINGS):
        raise _bad_table(f"say that they are of form {layout}, {encoding}")
    row, column = _read_positions(data, layout, num_rows, width)
    values = _ENCODINGS[encoding].read(data, row, num_rows, dtype)
    if data.left:
        raise _bad_table(f"are {data.left} too many")
    out = torch.zeros(num_rows, width, dtype=dtype)
    out[row, column] = values
    return out


def _encode_table(layout: int, positions: Bytes, numbers: _RowValues) -> Bytes:
    """Encode a table, with the first encoding that holds its values exactly."""
    for encoding, form in enumerate(_ENCODINGS):
        written = form.write(numbers)
        if written is not None:
            return np.concatenate([np.array([layout, encoding], np.uint8), positions, *written])
    raise AssertionError("the last form holds any number")


class _Reader:
    """Reads bytes one after another, with bounds checks."""

    def __init__(self, data: Bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        return self._data.size - self._at

    def take(self, count: int) -> Bytes:
        if count > self.left:
            raise _bad_table(f"end {count - self.left} too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def tensor(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(self.take(count * dtype.itemsize).copy()).view(dtype)

    def varints(self, count: int) -> NDArray[np.int64]:
        """Read varints: 7 bits per byte, low bits first; the last byte of each is below 128."""
        ends = np.nonzero(self._data[self._at : self._at + _MAX_VARINT_BYTES * count] < 128)[0][:count]
        if ends.size < count:
            raise _bad_table("end within a number")
        data = self.take(int(ends[-1]) + 1 if count else 0).astype(np.int64)
        begins = np.concatenate([[0], ends[:-1] + 1]) if count else ends
        place = np.arange(data.size) - np.repeat(begins, ends - begins + 1)
        return np.add.reduceat((data & 127) << 7 * np.minimum(place, 8), begins) if count else data


def _encode_varints(values: NDArray[np.int64]) -> Bytes:
    digits = values[:, None] >> 7 * np.arange(_MAX_VARINT_BYTES)
    more = digits[:, 1:] > 0
    length = 1 + more.sum(1)
    data = (digits & 127).astype(np.uint8)
    data[:, :-1][more] |= 128
    return data[np.arange(_MAX_VARINT_BYTES) < length[:, None]]


def _encode_gaps(row: Tensor, column: Tensor, num_rows: int) -> Bytes:
    """Encode the number of values of each row, then for each value the columns skipped since the one before."""
    first = torch.ones_like(row, dtype=torch.bool)
    first[1:] = row[1:] != row[:-1]
    before = torch.where(first, -1, column.roll(1))
    count = torch.bincount(row, minlength=num_rows)
    return _encode_varints(torch.cat([count, column - before - 1]).numpy())


def _read_positions(data: _Reader, layout: int, num_rows: int, width: int) -> tuple[Tensor, Tensor]:
    """Read the row and the column of each value that is written."""
    if layout == _ALL:
        every = torch.arange(num_rows * width)
        return every // max(1, width), every % max(1, width)
    if layout == _BITS:
        bits = np.unpackbits(data.take(ceil(num_rows * width / 8)), count=num_rows * width)
        row, column = torch.from_numpy(bits.reshape(num_rows, width)).nonzero(as_tuple=True)
        return row, column
    count = data.varints(num_rows)
    if count.size and (count.max() > width or count.min() < 0):
        raise _bad_table(f"say that a row of {width} has {int(count.max())} numbers")
    steps = data.varints(int(count.sum())) + 1
    ends = np.cumsum(count)
    total = np.concatenate([[0], np.cumsum(steps)])
    column = total[1:] - np.repeat(total[ends - count], count) - 1
    if column.size and (column.max() >= width or steps.min() < 1):
        raise _bad_table(f"name column {int(column.max())} of {width}")
    return torch.from_numpy(np.repeat(np.arange(num_rows), count)), torch.from_numpy(column)


class _Encoding(NamedTuple):
    """An encoding of values: ``write`` returns arrays of bytes, or None if inexact; ``read`` inverts it."""

    write: Callable[[_RowValues], list[Bytes] | None]
    read: Callable[[_Reader, Tensor, int, torch.dtype], Tensor]


def _write_ones(numbers: _RowValues) -> list[Bytes] | None:
    return [] if bool((numbers.values == 1).all()) else None


def _read_ones(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(row.numel(), dtype=dtype)


def _write_one_per_row(numbers: _RowValues) -> list[Bytes] | None:
    values, row, num_rows = numbers
    each = values.new_zeros(num_rows)
    each[row] = values
    return [_raw_bytes(each)] if torch.equal(each[row], values) else None


def _read_one_per_row(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
    return data.tensor(num_rows, dtype)[row]


def _scaled_encoding(precision: Precision, scale_dtype: torch.dtype) -> _Encoding:
    """Make the encoding by integer levels times a scale per row; 4-bit levels are stored two per byte."""
    max_level, is_int4 = QUANT_MAX[precision], precision == "int4"

    def write(numbers: _RowValues) -> list[Bytes] | None:
        values, row, _ = numbers
        if not bool(values.isfinite().all()):
            return None
        scale = quantization_scales(_largest_by_row(numbers), precision)
        step = scale.to(values.dtype)[row]
        levels = (values / torch.where(step > 0, step, 1)).round_().clamp_(-max_level, max_level)
        if not torch.equal(levels * step, values):
            return None
        return [_raw_bytes(scale), _pack_nibbles(levels) if is_int4 else _raw_bytes(levels.to(torch.int8))]

    def read(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
        scale, count = data.tensor(num_rows, scale_dtype).to(dtype), row.numel()
        if is_int4:
            pairs = data.tensor((count + 1) // 2, torch.uint8)
            levels = torch.stack([pairs & 15, pairs >> 4], -1).view(-1)[:count].to(dtype) - (max_level + 1)
        else:
            levels = data.tensor(count, torch.int8).to(dtype)
        return levels * scale[row]

    return _Encoding(write, read)


def _largest_by_row(numbers: _RowValues) -> Tensor:
    """Return the largest magnitude of each row: (R,)."""
    values, row, num_rows = numbers
    begins = np.searchsorted(row.numpy(), np.arange(num_rows))
    there = torch.bincount(row, minlength=num_rows) > 0
    largest = values.new_zeros(num_rows)
    if row.numel():
        largest[there] = torch.from_numpy(np.maximum.reduceat(values.abs().numpy(), begins[there.numpy()]))
    return largest


def _pack_nibbles(levels: Tensor) -> Bytes:
    shifted = torch.nn.functional.pad(levels + (QUANT_MAX["int4"] + 1), (0, levels.numel() % 2)).to(
        torch.uint8
    )
    return (shifted[::2] | shifted[1::2] << 4).numpy()


def _dtype_encoding(kind: torch.dtype | None) -> _Encoding:
    """Make the encoding in another dtype, or in the table's own for None."""

    def write(numbers: _RowValues) -> list[Bytes] | None:
        values = numbers.values
        written = values if kind is None else values.to(kind)
        return (
            [_raw_bytes(written)] if kind is None or torch.equal(written.to(values.dtype), values) else None
        )

    def read(data: _Reader, row: Tensor, num_rows: int, dtype: torch.dtype) -> Tensor:
        return data.tensor(row.numel(), kind or dtype).to(dtype)

    return _Encoding(write, read)


_ENCODINGS = (
    _Encoding(_write_ones, _read_ones),
    _Encoding(_write_one_per_row, _read_one_per_row),
    _scaled_encoding("int4", torch.bfloat16),
    _dtype_encoding(torch.int8),
    _scaled_encoding("int8", torch.float32),
    _dtype_encoding(torch.bfloat16),
    _dtype_encoding(torch.float32),
    _dtype_encoding(None),
)


def _raw_bytes(values: Tensor) -> Bytes:
    return values.contiguous().view(torch.uint8).reshape(-1).numpy()


def _bad_table(found: str) -> ValueError:
    return ValueError(f"the bytes of packed rows {found}; every rank must run the same siafu")
