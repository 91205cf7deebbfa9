"""Halo rows of a block, and checks on the rows that an aggregate is given."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from siafu import native
from siafu.graph import Block, Fetch
from siafu.nn.streamed import Rows, Streamed

R = TypeVar("R", Tensor, Streamed, Rows)
_HALO_BYTES = 1 << 28  # of halo rows on all ranks that one exchange brings


def widened(rows: R) -> R:
    """Convert rows stored as bfloat16 to float32, for arithmetic."""
    return rows.float() if isinstance(rows, Tensor) and rows.dtype == torch.bfloat16 else rows


def check_rows(block: Block, x_src: Rows) -> None:
    """Refuse rows that are not one for each source."""
    if len(x_src.shape) != 2 or x_src.shape[0] != block.num_given:
        raise ValueError(
            f"x is {tuple(x_src.shape)}; expected {block.num_given} rows, one for each of the block's sources"
        )


def fetch_kind(learning: bool, *, exact: bool) -> Fetch:
    """The kind of an exchange: exact for static rows, with error feedback where gradients follow."""
    if exact:
        return "exact"
    return "learning" if learning else "passing"


def with_halo(block: Block, x_src: Tensor, *, exact: bool = False) -> Tensor:
    """Append the halo rows, which their owners send: (num_given, F) -> (S, F). ``exact`` rows are never rounded."""
    return x_src if block.others is None else _WithHalo.apply(x_src, block, exact)


def bring_halo(block: Block, x_own: Tensor, x_halo: Tensor, *, how: Fetch) -> None:
    """Fill ``x_halo`` (S - D, F), which may lie on disk, with the halo rows, some columns at a time. Collective."""
    assert block.others is not None
    everywhere = int(block.others.total(torch.tensor([x_halo.shape[0]])))
    step = max(1, _HALO_BYTES // max(1, x_halo.dtype.itemsize * everywhere))
    for begin in range(0, x_halo.shape[1], step):
        columns = slice(begin, begin + step)
        x_halo[:, columns] = block.others.start_fetch(x_own[:, columns], how)()


class _WithHalo(torch.autograd.Function):
    """Own rows, then halo rows, whose gradients go back to their owners."""

    @staticmethod
    def forward(ctx: Any, x_own: Tensor, block: Block, exact: bool) -> Tensor:
        assert block.others is not None
        ctx.block = block
        arrived = block.others.start_fetch(x_own, fetch_kind(ctx.needs_input_grad[0], exact=exact))
        x_src = native.empty_rows(block.num_src, x_own.shape[1], x_own.dtype)
        x_src[: block.num_dst] = x_own
        x_src[block.num_dst :] = arrived()
        return x_src

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad_src,) = grads
        block: Block = ctx.block
        assert block.others is not None
        add_arrived = block.others.start_give_back(grad_src[block.num_dst :].contiguous())
        grad_own = grad_src[: block.num_dst].clone()
        add_arrived(grad_own)
        return grad_own, None, None
