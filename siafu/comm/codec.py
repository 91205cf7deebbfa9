"""Rows on the wire, in fewer bytes: bfloat16, or int8 with one scale a row. It knows no rank.

Arithmetic stays in the rows' own dtype. What is not a number cannot be scaled: int8 refuses NaN and infinity, bfloat16
carries them as they are, fp32 leaves rows alone.
"""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor

from siafu.comm.config import Precision

_LEVELS = 127
_SCALE_BYTES = 4


def encode(rows: Tensor, precision: Precision) -> Tensor:
    """Rows as they travel: (R, F) -> (R, F) of their own dtype, (R, F) bfloat16, or (R, F + 4) uint8."""
    match precision:
        case "fp32":
            return rows
        case "bf16":
            return rows.to(torch.bfloat16)  # to nearest, ties to even
        case "int8":
            return _to_int8(rows)
    raise ValueError(f"precision is {precision!r}; expected fp32, bf16 or int8")


def decode(wire: Tensor, precision: Precision, width: int, dtype: torch.dtype) -> Tensor:
    """Rows of a width and dtype from what travelled."""
    _check_wire(wire, precision, width)
    if precision == "int8":
        return _from_int8(wire, width, dtype)
    return wire.to(dtype)


class Feedback:
    """Remembers what rounding lost at each place, and adds it to what is sent next from there.

    So errors don't add up over epochs: what was sent so far differs from what should have been sent by one rounding.
    A place (a key) always sends the same number of rows in the same order.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision: Precision = precision
        self._lost: dict[str, Tensor] = {}

    def encode(self, key: Hashable, rows: Tensor) -> Tensor:
        """Encode rows with what was lost before at this place."""
        if self.precision == "fp32":
            return encode(rows, self.precision)
        place, rows = str(key), rows.detach()
        lost = self._lost.get(place)
        if lost is not None and (lost.shape, lost.dtype) != (rows.shape, rows.dtype):
            raise ValueError(
                f"place {place} sends {rows.dtype} {tuple(rows.shape)} but sent {lost.dtype} {tuple(lost.shape)} "
                "before; give each place a key of its own"
            )
        wanted = rows if lost is None else rows + lost
        wire = encode(wanted, self.precision)
        self._lost[place] = wanted - decode(wire, self.precision, rows.shape[1], rows.dtype)
        return wire

    def state(self) -> dict[str, Tensor]:
        """What was lost at each place, by the text of its key; for a checkpoint."""
        return {place: lost.clone() for place, lost in self._lost.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        self._lost = {place: lost.clone() for place, lost in state.items()}


def _to_int8(rows: Tensor) -> Tensor:
    if rows.dim() != 2 or not rows.is_floating_point():
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)}; int8 takes a table of floating-point rows"
        )
    levels, scale = to_levels(rows)
    wire = torch.empty(rows.shape[0], rows.shape[1] + _SCALE_BYTES, dtype=torch.uint8)
    wire[:, : rows.shape[1]] = levels.view(torch.uint8)
    wire[:, rows.shape[1] :] = scale[:, None].view(torch.uint8)
    return wire


def to_levels(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as whole numbers from -127 to 127, and what one stands for in each row: (R, F) -> (R, F) int8, (R,) float32.

    No number is off by more than half of that.
    """
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    scale = _scales(rows)
    step = torch.where(scale > 0, scale, 1).to(rows.dtype)
    return (rows / step[:, None]).round_().clamp_(-_LEVELS, _LEVELS).to(torch.int8), scale


def _scales(rows: Tensor) -> Tensor:
    """What one level stands for in each row, (R,) float32."""
    if rows.shape[1] == 0:
        return rows.new_zeros(rows.shape[0], dtype=torch.float32)
    largest = rows.abs().amax(1).to(torch.float64)
    bad = ~largest.isfinite() | (largest / _LEVELS > torch.finfo(torch.float32).max)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"row {row} holds NaN, infinity or {float(largest[row]):g}, which int8 cannot carry; send fp32"
        )
    scale = (largest / _LEVELS).to(torch.float32)
    overflows = scale.to(torch.float64) * _LEVELS > torch.finfo(torch.float32).max  # by its own rounding
    return torch.where(overflows, scale.nextafter(torch.zeros(())), scale)


def _from_int8(wire: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    levels = wire[:, :width].view(torch.int8).to(wide)
    scale = (
        wire[:, width:].clone(memory_format=torch.contiguous_format).view(torch.float32).to(wide)
    )  # (R, 1)
    return levels.mul_(scale).to(dtype)


def _check_wire(wire: Tensor, precision: Precision, width: int) -> None:
    wanted = width + _SCALE_BYTES if precision == "int8" else width
    kind = {"int8": torch.uint8, "bf16": torch.bfloat16}.get(precision, wire.dtype)
    if wire.dim() != 2 or wire.shape[1] != wanted or wire.dtype != kind:
        raise ValueError(
            f"rows of {precision} came as {wire.dtype} {tuple(wire.shape)}; expected {kind} (rows, {wanted})"
        )
