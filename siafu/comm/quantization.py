"""Rows on the wire, in fewer bytes: bfloat16, or int8 or int4 with one scale a row. It knows no rank.

Arithmetic stays in the rows' own dtype. What is not a number cannot be scaled: int8 and int4 refuse NaN and infinity,
bfloat16 carries them as they are, fp32 leaves rows alone. The scale of int8 is a float32. That of int4, where it would
weigh more than a short row, is a bfloat16, rounded up.
"""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.config import Precision

LEVELS = {"int8": 127, "int4": 7}
_SCALE_BYTES = {"int8": 4, "int4": 2}


def encode(rows: Tensor, precision: Precision) -> Tensor:
    """Rows as they travel: (R, F) -> (R, F) of their own dtype or in bfloat16, or (R, W) uint8.

    W is F + 4 in int8, and F / 2, rounded up, + 2 in int4.
    """
    match precision:
        case "fp32":
            return rows
        case "bf16":
            return rows.to(torch.bfloat16)  # to nearest, ties to even
        case "int8":
            return _to_int8(rows)
        case "int4":
            return _to_int4(rows)
    raise ValueError(f"precision is {precision!r}; expected fp32, bf16, int8 or int4")


def decode(wire: Tensor, precision: Precision, width: int, dtype: torch.dtype) -> Tensor:
    """Rows of a width and dtype from what travelled."""
    _check_wire(wire, precision, width)
    if precision == "int8":
        return _from_int8(wire, width, dtype)
    if precision == "int4":
        return _from_int4(wire, width, dtype)
    return wire.to(dtype)


def quantize_dequantize(rows: Tensor, precision: Precision) -> Tensor:
    """Rows as they arrive after a journey in some precision; in float64, another journey does not change them."""
    return decode(encode(rows, precision), precision, rows.shape[1], rows.dtype)


class ErrorFeedback:
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
    _check_table(rows, "int8")
    levels, scale = quantize_int8(rows)
    return torch.cat([levels.view(torch.uint8), scale[:, None].view(torch.uint8)], 1)


def _to_int4(rows: Tensor) -> Tensor:
    """Levels from -7 to 7 as 1 to 15, two in a byte, the first in the lower half."""
    _check_table(rows, "int4")
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    scale = _scales(rows, "int4")
    levels = _levels(rows, scale.to(rows.dtype), "int4").add_(QUANT_MAX["int4"] + 1)
    levels = pad(levels, (0, rows.shape[1] % 2)).to(torch.uint8)
    return torch.cat([levels[:, ::2] | levels[:, 1::2] << 4, scale[:, None].view(torch.uint8)], 1)


def _check_table(rows: Tensor, precision: Precision) -> None:
    if rows.dim() != 2 or not rows.is_floating_point():
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)}; {precision} takes a table of floating-point rows"
        )


def quantize_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as whole numbers from -127 to 127, and what one stands for in each row: (R, F) -> (R, F) int8, (R,) float32.

    No number is off by more than half of that.
    """
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    scale = _scales(rows, "int8")
    return _levels(rows, scale.to(rows.dtype), "int8"), scale


def _levels(rows: Tensor, scale: Tensor, precision: Precision) -> Tensor:
    """The whole number nearest to each number: (R, F), (R,) -> (R, F) int8."""
    step, most = torch.where(scale > 0, scale, 1), QUANT_MAX[precision]
    return (rows / step[:, None]).round_().clamp_(-most, most).to(torch.int8)


def _scales(rows: Tensor, precision: Precision) -> Tensor:
    """What one level stands for in each row, (R,) float32, or bfloat16 for int4."""
    if rows.shape[1] == 0:
        return quantization_scales(rows.new_zeros(rows.shape[0]), precision)
    largest = rows.abs().amax(1).to(torch.float64)
    bad = ~largest.isfinite() | (largest / QUANT_MAX[precision] > torch.finfo(torch.float32).max)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"row {row} holds NaN, infinity or {float(largest[row]):g}, which {precision} cannot carry; send fp32"
        )
    return quantization_scales(largest, precision)


def quantization_scales(largest: Tensor, precision: Precision) -> Tensor:
    """What one level stands for in rows with such largest numbers: (R,) -> (R,) float32, or bfloat16 for int4."""
    most = QUANT_MAX[precision]
    scale = (largest.to(torch.float64) / most).to(torch.float32)
    overflows = scale.to(torch.float64) * most > torch.finfo(torch.float32).max  # by its own rounding
    scale = torch.where(overflows, scale.nextafter(torch.zeros(())), scale)
    return _rounded_up(scale) if precision == "int4" else scale


def _rounded_up(scale: Tensor) -> Tensor:
    """The least bfloat16 that is no less, (R,): the largest number of a row is then 7 levels, not 8.

    Where 7 levels would be more than float32 holds, it is the largest that is no more.
    """
    down, up = (
        (scale.view(torch.int32) + more >> 16).to(torch.int16).view(torch.bfloat16) for more in (0, 0xFFFF)
    )
    overflows = up.to(torch.float64) * QUANT_MAX["int4"] > torch.finfo(torch.float32).max
    return torch.where(overflows, down, up)


def _from_int8(wire: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    levels = wire[:, :width].view(torch.int8).to(wide)
    return levels.mul_(_scale_of(wire, width, torch.float32).to(wide)).to(dtype)


def _from_int4(wire: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    pairs = wire[:, : (width + 1) // 2]
    halves = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)[:, :width]
    levels = halves.to(wide).sub_(QUANT_MAX["int4"] + 1)
    return levels.mul_(_scale_of(wire, pairs.shape[1], torch.bfloat16).to(wide)).to(dtype)


def _scale_of(wire: Tensor, begin: int, dtype: torch.dtype) -> Tensor:
    """The scales that stand behind the levels, (R, 1)."""
    return wire[:, begin:].clone(memory_format=torch.contiguous_format).view(dtype)


def _wire_width(precision: Precision, width: int) -> int:
    return {"int8": width + _SCALE_BYTES["int8"], "int4": (width + 1) // 2 + _SCALE_BYTES["int4"]}.get(
        precision, width
    )


def _check_wire(wire: Tensor, precision: Precision, width: int) -> None:
    wanted = _wire_width(precision, width)
    kinds = {"int8": torch.uint8, "int4": torch.uint8, "bf16": torch.bfloat16}
    kind = kinds.get(precision, wire.dtype)
    if wire.dim() != 2 or wire.shape[1] != wanted or wire.dtype != kind:
        raise ValueError(
            f"rows of {precision} came as {wire.dtype} {tuple(wire.shape)}; expected {kind} (rows, {wanted})"
        )
