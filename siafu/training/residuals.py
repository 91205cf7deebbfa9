"""Residuals of error feedback: what rounding took from the rows and gradients of this rank, added to the next ones."""

from torch import Tensor

from siafu.context import Context
from siafu.training.checkpoint import under
from siafu.training.optimizer import DistributedOptimizer


def residuals_of(context: Context | None, optimizer: DistributedOptimizer) -> dict[str, Tensor]:
    """The residuals of halo rows and gradients of this rank, for a checkpoint."""
    halo = {} if context is None else context.exchange.state()
    found = {f"halo.{name}": residual for name, residual in halo.items()}
    return found | {f"sums.{name}": residual for name, residual in optimizer.sums.state().items()}


def load_residuals(
    context: Context | None, optimizer: DistributedOptimizer, tensors: dict[str, Tensor]
) -> None:
    """Take residuals back."""
    if context is not None:
        context.exchange.load_state(under(tensors, "halo"))
    optimizer.sums.load_state(under(tensors, "sums"))
