"""Dropout whose mask is a function of (seed, step, place in the model, the user's row number, column).

So the same seed drops the same elements for any number of threads and ranks and in any order of the rows, and a
resumed run drops what the undisturbed one would have dropped. No generator is read.
"""

from typing import Any

import torch
from torch import Tensor, nn

from siafu import native
from siafu.nn.streamed import Rows

_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1


class Dropout(nn.Module):
    """Drops elements at ``rate`` while training; ``key`` is set for each step by :func:`set_keys`."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"dropout is {rate}; expected a rate from 0 up to, not including, 1")
        self.rate = rate
        self.key = 0

    def now(self) -> native.Dropout:
        """The dropout of this step; none outside of training."""
        return native.Dropout.of(self.rate, self.key) if self.training and self.rate else native.Dropout()

    def forward(self, x: Rows, row_id: Tensor | None = None) -> Rows:
        """Drop elements of (R, F), whose rows are the user's rows ``row_id`` (None: 0 to R - 1)."""
        if not isinstance(x, Tensor):
            return x.dropped(self.now(), row_id)
        return epilogue(x, None, activation="none", dropout=self.now(), row_id=row_id)


def set_keys(model: nn.Module, *, seed: int, step: int) -> None:
    """Give every :class:`Dropout` of the model its key for one step."""
    for place, module in enumerate(module for module in model.modules() if isinstance(module, Dropout)):
        module.key = key_of(seed=seed, step=step, place=place)


def key_of(*, seed: int, step: int, place: int) -> int:
    """The key of one step of a model's dropout, ``place`` counting those of the model."""
    return mix(mix(mix(seed) ^ step) ^ place)


def mix(value: int) -> int:
    """Scatter 64 bits: the splitmix64 finaliser."""
    z = (value + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def epilogue(
    x: Tensor,
    bias: Tensor | None,
    *,
    activation: str,
    dropout: native.Dropout,
    row_id: Tensor | None = None,
    in_place: bool = False,
) -> Tensor:
    """``dropout(activation(x + bias))`` in one pass: (R, F) -> (R, F). ``in_place`` overwrites ``x``."""
    if bias is None and activation == "none" and not dropout.threshold:
        return x
    return _Epilogue.apply(x, bias, activation, dropout, row_id, in_place)


class _Epilogue(torch.autograd.Function):
    """The backward pass reads the output alone, so that no mask is kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        activation: str,
        dropout: native.Dropout,
        row_id: Tensor | None,
        in_place: bool,
    ) -> Tensor:
        out = x if in_place and x.is_contiguous() else None
        h = native.epilogue(x, bias=bias, activation=activation, dropout=dropout, row_id=row_id, out=out)
        if out is not None:
            ctx.mark_dirty(x)
        ctx.activation, ctx.dropout, ctx.row_id, ctx.with_bias = activation, dropout, row_id, bias is not None
        ctx.save_for_backward(h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        (h,) = ctx.saved_tensors
        grad, grad_bias = native.epilogue_backward(
            grads[0],
            h,
            activation=ctx.activation,
            dropout=ctx.dropout,
            row_id=ctx.row_id,
            with_bias=ctx.with_bias,
        )
        return grad, grad_bias, None, None, None, None
