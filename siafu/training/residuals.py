"""Residuals of error feedback: what rounding took from the rows and gradients of this rank, added to the next ones."""

from torch import Tensor

from siafu.graph import Block
from siafu.training.checkpoint import under
from siafu.training.optimizer import DistributedOptimizer


def residuals_of(block: Block | None, optimizer: DistributedOptimizer) -> dict[str, Tensor]:
    """The residuals of halo rows and gradients of this rank, for a checkpoint."""
    others = None if block is None else block.others
    halo = {} if others is None else others.state()
    found = {f"halo.{name}": residual for name, residual in halo.items()}
    return found | {f"sums.{name}": residual for name, residual in optimizer.sums.state().items()}


def load_residuals(block: Block | None, optimizer: DistributedOptimizer, tensors: dict[str, Tensor]) -> None:
    """Take residuals back."""
    if block is not None and block.others is not None:
        block.others.load_state(under(tensors, "halo"))
    optimizer.sums.load_state(under(tensors, "sums"))
