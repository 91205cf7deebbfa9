"""Halo rows of a block, and checks on the rows that an aggregate is given."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from siafu import native
from siafu.context import AnyBlock, Context, ExchangeMode
from siafu.nn.streamed import DenseRows, Rows, Streamed

R = TypeVar("R", Tensor, Streamed, DenseRows, Rows)
_HALO_BYTES = 1 << 28  # of halo rows on all ranks that one exchange brings


def widened(rows: R) -> R:
    """Convert rows stored as bfloat16 to float32, for arithmetic."""
    return rows.float() if isinstance(rows, Tensor) and rows.dtype == torch.bfloat16 else rows


def check_rows(block: AnyBlock, x_src: Rows) -> None:
    """Refuse rows that are not one for each source."""
    if len(x_src.shape) != 2 or x_src.shape[0] != block.num_given:
        raise ValueError(
            f"x is {tuple(x_src.shape)}; expected {block.num_given} rows, one for each of the block's sources"
        )


def exchange_mode(training: bool, *, exact: bool) -> ExchangeMode:
    """The mode of an exchange: exact for static rows, with error feedback where gradients follow."""
    if exact:
        return "exact"
    return "training" if training else "inference"


def with_halo(context: Context, x_src: Tensor, *, exact: bool = False) -> Tensor:
    """Append the halo rows, which their owners send: (num_given, F) -> (S, F). ``exact`` rows are never rounded."""
    return _WithHalo.apply(x_src, context, exact) if context.has_halo else x_src


def gather_halo(context: Context, x_own: Tensor, x_halo: Tensor, *, mode: ExchangeMode) -> None:
    """Fill ``x_halo`` (S - D, F), which may lie on disk, with the halo rows, some columns at a time. Collective."""
    everywhere = int(context.exchange.all_reduce(torch.tensor([x_halo.shape[0]])))
    step = max(1, _HALO_BYTES // max(1, x_halo.dtype.itemsize * everywhere))
    for begin in range(0, x_halo.shape[1], step):
        columns = slice(begin, begin + step)
        x_halo[:, columns] = context.exchange.start_gather(x_own[:, columns], mode)()


class _WithHalo(torch.autograd.Function):
    """Own rows, then halo rows, whose gradients go back to their owners."""

    @staticmethod
    def forward(ctx: Any, x_own: Tensor, context: Context, exact: bool) -> Tensor:
        ctx.context = context
        mode = exchange_mode(ctx.needs_input_grad[0], exact=exact)
        arrived = context.exchange.start_gather(x_own, mode)
        x_src = native.empty_rows(context.num_src, x_own.shape[1], x_own.dtype)
        x_src[: context.num_dst] = x_own
        x_src[context.num_dst :] = arrived()
        return x_src

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad_src,) = grads
        context: Context = ctx.context
        add_arrived = context.exchange.start_reduce(grad_src[context.num_dst :])
        grad_own = grad_src[: context.num_dst].clone()
        add_arrived(grad_own)
        return grad_own, None, None
