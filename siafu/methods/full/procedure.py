"""Synchronous full-graph training: every epoch is one step on the whole graph. The reference for the other methods.

Each rank has its part of the nodes and all of the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from siafu.comm.config import CommConfig
from siafu.context import Context
from siafu.nn.dropout import mix, set_keys
from siafu.nn.embedded import Embedded
from siafu.nn.model import Model
from siafu.nn.streamed import Rows
from siafu.training.byte_counter import ByteCounter
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Procedure, State
from siafu.training.residuals import load_residuals, residuals_of
from siafu.training.task import Task


class FullProcedure(Procedure):
    """Trains ``model`` on the rows ``x_src`` of one block: the whole graph, or this rank's part of it."""

    def __init__(
        self,
        model: nn.Module,
        context: Context,
        x_src: Rows,
        task: Task,
        config: TrainConfig,
        *,
        seed: int,
        wire: CommConfig | None = None,
    ) -> None:
        self.model, self.task, self.comm, self.seed = model, task, task.comm, seed
        self.context, self.x_src, self.in_features = context.with_static(x_src), x_src, x_src.shape[1]
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train one epoch."""
        return [EpochStats(self.train_epoch(epochs.start))]

    def train_epoch(self, epoch: int) -> float:
        """Take one step on the whole graph; returns its loss. Collective."""
        self.model.train()
        set_keys(self.model, seed=self.seed, step=epoch)
        self.optimizer.set_lr(epoch)
        self.optimizer.zero_grad()
        with _seeded(self.model, mix(mix(self.seed) ^ epoch) >> 1):
            out = forward_whole(self.model, self.context, self.x_src, self.task, label="halo")
            loss = self.task.training_loss(out, epoch)
        return self.optimizer.learn_from(loss)

    def outputs(self) -> Tensor:
        """Compute the output of every own row."""
        return infer_whole(self.model, self.context, self.x_src, self.task)

    def state(self) -> State:
        """The residuals of this rank."""
        return State({}, residuals_of(self.context, self.optimizer))

    def load_state(self, state: State) -> None:
        """Take residuals back."""
        load_residuals(self.context, self.optimizer, state.tensors)


def forward_whole(model: nn.Module, context: Context, x_src: Rows, task: Task, *, label: str) -> Tensor:
    """Apply a model to all rows of a block, whose halo exchange counts under ``label``: (D, C). Collective."""
    context.exchange.begin(label)
    out = model(context, x_src)
    expected = (context.num_dst, task.num_outputs)
    if not isinstance(out, Tensor) or tuple(out.shape) != expected:
        found = f"{tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ValueError(f"the model returned {found}; expected {expected}: a row a node, a column an output")
    return out


@torch.no_grad()
def infer_whole(model: nn.Module, context: Context, x_src: Rows, task: Task) -> Tensor:
    """Apply a model to all rows of a block, without dropout and gradients: (D, C). Collective."""
    model.eval()
    return forward_whole(model, context, x_src, task, label="evaluate halo")


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed torch's own generator for a user's module while it lasts; siafu's own models draw nothing from it."""
    if isinstance(model, Model | Embedded):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
