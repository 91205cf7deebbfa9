"""Kernels on dense rows: picking rows, and the epilogue of a layer (bias, activation, dropout) with its gradient."""

import torch
from torch import Tensor

from siafu.native import core, reference
from siafu.native.memory import empty_rows, plain_dtype
from siafu.native.values import ACTIVATIONS, Dropout


def epilogue(
    x: Tensor,
    *,
    bias: Tensor | None,
    activation: str,
    dropout: Dropout,
    row_id: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``dropout(activation(x + bias))`` in one pass: (R, F) -> (R, F). ``out`` may be ``x`` itself."""
    if core.kernels is None:
        return reference.epilogue(
            x, bias=bias, activation=activation, dropout=dropout, row_id=row_id, out=out
        )
    x = x.contiguous()
    out = empty_rows(x.shape[0], x.shape[1], x.dtype) if out is None else out
    act = ACTIVATIONS[activation]
    core.kernels.epilogue(x, bias, row_id, act, dropout.key, dropout.threshold, dropout.scale, out)
    return out


def epilogue_backward(
    grad: Tensor, output: Tensor, *, activation: str, dropout: Dropout, row_id: Tensor | None, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of :func:`epilogue`'s input and bias, computed from its output alone."""
    if core.kernels is None:
        return reference.epilogue_backward(
            grad, output, activation=activation, dropout=dropout, row_id=row_id, with_bias=with_bias
        )
    grad = grad.contiguous()
    out = empty_rows(grad.shape[0], grad.shape[1], grad.dtype)
    parts = grad.new_empty(core.kernels.bias_parts, grad.shape[1]) if with_bias else None
    act = ACTIVATIONS[activation]
    core.kernels.epilogue_backward(
        grad, output, row_id, act, dropout.key, dropout.threshold, dropout.scale, out, parts
    )
    return out, None if parts is None else parts.sum(0)


def gather(rows: Tensor, index: Tensor, *, widen: bool = False, more: Tensor | None = None) -> Tensor:
    """Pick rows by number, (N, ...) and (R,) integers -> (R, ...); ``widen`` converts bfloat16 and int8 to float32.

    ``more`` are further rows that follow the first ones, in a separate array.
    """
    if core.kernels is None:
        return reference.gather(rows, index, widen=widen, more=more)
    rows, index = rows.contiguous(), index.long().contiguous()
    widen = widen and rows.dtype in reference.STORAGE_DTYPES
    if widen and more is not None:
        return gather(rows, index, more=more).float()
    dtype, width = torch.float32 if widen else rows.dtype, rows.shape[1:].numel()
    out = empty_rows(index.numel(), width, dtype).view(index.numel(), *rows.shape[1:])
    if widen:
        core.kernels.gather_widen(plain_dtype(rows), index, out)
    else:
        core.kernels.gather(
            plain_dtype(rows),
            None if more is None else plain_dtype(more.contiguous()),
            index,
            plain_dtype(out),
        )
    return out


def argmax_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the column of the largest number of picked rows, of equal ones the first: (R, C), (K,) int64 -> (K,)."""
    if core.kernels is None or x.dtype != torch.float32:
        return reference.argmax_rows(x, index)
    out = torch.empty(index.numel(), dtype=torch.int64)
    core.kernels.argmax_rows(x.contiguous(), index.contiguous(), out)
    return out
