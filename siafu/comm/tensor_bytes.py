"""Tensors as bytes on the wire, and memory for tensors that arrive."""

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


def check_sendable(values: Tensor) -> None:
    """Raise ValueError for a tensor that cannot be sent."""
    if values.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"a tensor of {values.dtype} cannot travel between ranks; expected one of {names}")
    if values.device.type != "cpu" or values.layout != torch.strided:
        raise ValueError(
            f"a {values.layout} tensor on {values.device} cannot travel; expected a dense one on the CPU"
        )
    if values.dim() > MAX_DIMS:
        raise ValueError(f"a tensor of {values.dim()} dimensions cannot travel; expected at most {MAX_DIMS}")


def allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate a tensor to be overwritten; large ones reuse pooled memory if there is some."""
    flat = empty_rows(1, prod(shape), dtype)
    out: Any = torch.empty(0, dtype=dtype)
    return out.set_(flat.untyped_storage(), 0, shape)  # not a view, so that autograd lets it be overwritten


def byte_view(values: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor, without a copy."""
    array: Any = values.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


def tensor_from_bytes(data: bytes) -> Tensor:
    """Return a uint8 tensor with a copy of the bytes, so that they can be sent."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
