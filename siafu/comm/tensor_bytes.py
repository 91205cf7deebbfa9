"""Tensors as the bytes that travel, and memory for those that arrive."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from siafu.native import empty_rows

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
MAX_DIMS = 64


def check_travels(values: Tensor) -> None:
    """Refuse a tensor that no frame can carry."""
    if values.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"a tensor of {values.dtype} cannot travel between ranks; expected one of {names}")
    if values.device.type != "cpu" or values.layout != torch.strided:
        raise ValueError(
            f"a {values.layout} tensor on {values.device} cannot travel; expected a dense one on the CPU"
        )
    if values.dim() > MAX_DIMS:
        raise ValueError(f"a tensor of {values.dim()} dimensions cannot travel; expected at most {MAX_DIMS}")


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory to be filled; where it is large, memory that was used before if there is some."""
    flat = empty_rows(1, prod(shape), dtype)
    out: Any = torch.empty(0, dtype=dtype)
    return out.set_(flat.untyped_storage(), 0, shape)  # not a view, so that autograd lets it be overwritten


def byte_view(values: Tensor) -> memoryview:
    """The memory of a contiguous tensor, without a copy."""
    array: Any = values.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def tensor_from_bytes(data: bytes) -> Tensor:
    """Bytes as a tensor that can travel, uint8."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
