"""Quantization of rows on the wire: bfloat16, or int8 or int4 with one scale per row. It knows no rank.

Arithmetic stays in the rows' own dtype. int8 and int4 refuse NaN and infinity, bfloat16 keeps them, fp32 leaves rows
unchanged. The scale of int8 is a float32. The scale of int4 is a bfloat16, rounded up, since a float32 would be larger
than a short row.
"""

from collections.abc import Hashable, Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.config import Precision

QUANT_MAX = {"int8": 127, "int4": 7}
_SCALE_BYTES = {"int8": 4, "int4": 2}


def encode(rows: Tensor, precision: Precision) -> Tensor:
    """Quantize rows for the wire: (R, F) -> (R, F) of their own dtype or in bfloat16, or (R, W) uint8.

    W is F + 4 in int8, and F / 2, rounded up, + 2 in int4.
    """
    match precision:
        case "fp32":
            return rows
        case "bf16":
            return rows.to(torch.bfloat16)  # to nearest, ties to even
        case "int8":
            return _encode_int8(rows)
        case "int4":
            return _encode_int4(rows)
    raise ValueError(f"precision is {precision!r}; expected fp32, bf16, int8 or int4")


def decode(wire: Tensor, precision: Precision, width: int, dtype: torch.dtype) -> Tensor:
    """Dequantize rows of a given width and dtype: the inverse of :func:`encode`."""
    _check_wire(wire, precision, width)
    if precision == "int8":
        return _decode_int8(wire, width, dtype)
    if precision == "int4":
        return _decode_int4(wire, width, dtype)
    return wire.to(dtype)


def quantize_dequantize(rows: Tensor, precision: Precision) -> Tensor:
    """Return rows as the receiver gets them: encoded and decoded. In float64 this is idempotent."""
    return decode(encode(rows, precision), precision, rows.shape[1], rows.dtype)


class ErrorFeedback:
    """Error feedback: the quantization error of each exchange is added to the next rows of the same key.

    So errors do not accumulate over epochs: the sum of the sent rows differs from that of the exact rows by one
    quantization error. A key always sends the same number of rows in the same order.
    """

    def __init__(self, precision: Precision) -> None:
        self.precision: Precision = precision
        self._residual: dict[str, Tensor] = {}

    def encode(self, key: Hashable, rows: Tensor) -> Tensor:
        """Encode rows plus the residual of this key, and keep the new residual."""
        if self.precision == "fp32":
            return encode(rows, self.precision)
        name, rows = str(key), rows.detach()
        residual = self._residual.get(name)
        if residual is not None and (residual.shape, residual.dtype) != (rows.shape, rows.dtype):
            raise ValueError(
                f"exchange {name} sends {rows.dtype} {tuple(rows.shape)} but sent {residual.dtype} "
                f"{tuple(residual.shape)} before; give each exchange a key of its own"
            )
        corrected = rows if residual is None else rows + residual
        wire = encode(corrected, self.precision)
        self._residual[name] = corrected - decode(wire, self.precision, rows.shape[1], rows.dtype)
        return wire

    def state(self) -> dict[str, Tensor]:
        """Return the residuals by the text of their keys, for a checkpoint."""
        return {name: residual.clone() for name, residual in self._residual.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore residuals."""
        self._residual = {name: residual.clone() for name, residual in state.items()}


def _encode_int8(rows: Tensor) -> Tensor:
    _check_table(rows, "int8")
    levels, scale = quantize_int8(rows)
    return torch.cat([levels.view(torch.uint8), scale[:, None].view(torch.uint8)], 1)


def _encode_int4(rows: Tensor) -> Tensor:
    """Store levels from -7 to 7 as 1 to 15, two per byte, the first in the lower half."""
    _check_table(rows, "int4")
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    scale = _row_scales(rows, "int4")
    levels = _quantize(rows, scale.to(rows.dtype), "int4").add_(QUANT_MAX["int4"] + 1)
    levels = pad(levels, (0, rows.shape[1] % 2)).to(torch.uint8)
    return torch.cat([levels[:, ::2] | levels[:, 1::2] << 4, scale[:, None].view(torch.uint8)], 1)


def _check_table(rows: Tensor, precision: Precision) -> None:
    if rows.dim() != 2 or not rows.is_floating_point():
        raise ValueError(
            f"rows are {rows.dtype} {tuple(rows.shape)}; {precision} takes a table of floating-point rows"
        )


def quantize_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row to integers from -127 to 127 and a scale: (R, F) -> (R, F) int8, (R,) float32.

    The error of each value is at most half of its row's scale.
    """
    rows = rows if rows.dtype == torch.float64 else rows.to(torch.float32)
    scale = _row_scales(rows, "int8")
    return _quantize(rows, scale.to(rows.dtype), "int8"), scale


def _quantize(rows: Tensor, scale: Tensor, precision: Precision) -> Tensor:
    """Round values to the nearest multiple of their row's scale: (R, F), (R,) -> (R, F) int8."""
    step, most = torch.where(scale > 0, scale, 1), QUANT_MAX[precision]
    return (rows / step[:, None]).round_().clamp_(-most, most).to(torch.int8)


def _row_scales(rows: Tensor, precision: Precision) -> Tensor:
    """Return the scale of each row, (R,) float32, or bfloat16 for int4; raises ValueError for NaN and infinity."""
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
    """Return scales for rows with the given largest magnitudes: (R,) -> (R,) float32, or bfloat16 for int4."""
    most = QUANT_MAX[precision]
    scale = (largest.to(torch.float64) / most).to(torch.float32)
    overflows = (
        scale.to(torch.float64) * most > torch.finfo(torch.float32).max
    )  # through the rounding of the scale
    scale = torch.where(overflows, scale.nextafter(torch.zeros(())), scale)
    return _round_up_to_bf16(scale) if precision == "int4" else scale


def _round_up_to_bf16(scale: Tensor) -> Tensor:
    """Round scales up to bfloat16, (R,), so that the largest value of a row is at most 7 levels.

    If 7 levels then overflow float32, the scale is rounded down instead.
    """
    down, up = (
        (scale.view(torch.int32) + more >> 16).to(torch.int16).view(torch.bfloat16) for more in (0, 0xFFFF)
    )
    overflows = up.to(torch.float64) * QUANT_MAX["int4"] > torch.finfo(torch.float32).max
    return torch.where(overflows, down, up)


def _decode_int8(wire: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    levels = wire[:, :width].view(torch.int8).to(wide)
    return levels.mul_(_read_scales(wire, width, torch.float32).to(wide)).to(dtype)


def _decode_int4(wire: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    pairs = wire[:, : (width + 1) // 2]
    halves = torch.stack([pairs & 15, pairs >> 4], -1).flatten(1)[:, :width]
    levels = halves.to(wide).sub_(QUANT_MAX["int4"] + 1)
    return levels.mul_(_read_scales(wire, pairs.shape[1], torch.bfloat16).to(wide)).to(dtype)


def _read_scales(wire: Tensor, begin: int, dtype: torch.dtype) -> Tensor:
    """Return the scales, which follow the levels of each row: (R, 1)."""
    return wire[:, begin:].clone(memory_format=torch.contiguous_format).view(dtype)


def _wire_width(precision: Precision, width: int) -> int:
    return {"int8": width + _SCALE_BYTES["int8"], "int4": (width + 1) // 2 + _SCALE_BYTES["int4"]}.get(
        precision, width
    )


def _check_wire(wire: Tensor, precision: Precision, width: int) -> None:
    expected = _wire_width(precision, width)
    kinds = {"int8": torch.uint8, "int4": torch.uint8, "bf16": torch.bfloat16}
    kind = kinds.get(precision, wire.dtype)
    if wire.dim() != 2 or wire.shape[1] != expected or wire.dtype != kind:
        raise ValueError(
            f"rows of {precision} came as {wire.dtype} {tuple(wire.shape)}; expected {kind} (rows, {expected})"
        )
