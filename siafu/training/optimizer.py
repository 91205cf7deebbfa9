"""Adam over the sum of all ranks' gradients. All ranks hold the same weights, bit for bit."""

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.comm.quantized_all_reduce import QuantizedAllReduce
from siafu.nn.embedded import Embedded
from siafu.nn.model import Model
from siafu.training.adam import Adam, Group
from siafu.training.config import TrainConfig


class DistributedOptimizer:
    """Adds up gradients over all ranks, in the order of the ranks, and takes a step of Adam.

    Attributes:
        adam: the optimiser of this rank.
        sums: the sum of gradients; it may round them, with error feedback.
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, comm: Comm, *, wire: CommConfig | None = None
    ) -> None:
        self.model, self.config, self.comm = model, config, comm
        self.adam = Adam(_groups(model, config), lr=config.lr)
        self._gradients = "fp32" if wire is None else wire.gradients
        self.sums = QuantizedAllReduce(comm, self._gradients)

    def set_lr(self, epoch: int) -> None:
        """Set the learning rate of an epoch of the schedule, counted from 1."""
        self.adam.lr = self.config.lr_at(epoch)

    def learn_from(self, loss: Tensor, *, label: str = "gradients") -> float:
        """Take a step against the gradient of all ranks' shares of a loss; returns the whole loss. Collective."""
        loss.backward()
        total = self.add_gradients(loss.detach(), label=label)
        self.step()
        return total

    def step(self) -> None:
        """Move the weights against their gradients."""
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.adam.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.adam.zero_grad()

    def add_gradients(self, loss: Tensor, *, label: str = "gradients") -> float:
        """Make every gradient the sum of those of all ranks; returns the sum of their losses. Collective.

        A parameter that no rank has used in this step keeps no gradient, so that it is not moved.
        """
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        used = loss.new_tensor([parameter.grad is not None for parameter in trained])
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        exact = torch.cat([used, loss.reshape(1)])
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        if self.sums.is_exact:  # then one all-reduce carries both
            flat, exact = self.sums.all_reduce(torch.cat([flat, exact]), label=label).split(
                [flat.numel(), exact.numel()]
            )
        else:
            exact = self.comm.all_reduce(exact, label=label)
            flat = self.sums.all_reduce(flat, label=label)
        sums = flat.split([grad.numel() for grad in grads])
        used, total = exact.split([len(grads), 1])
        for parameter, total_grad, count in zip(trained, sums, used.tolist(), strict=True):
            parameter.grad = total_grad.view_as(parameter).to(parameter.dtype) if count else None
        return float(total)

    def reset(self) -> None:
        """Forget all moments and residuals."""
        self.adam.zero_grad()
        self.adam.state.clear()
        self.sums = QuantizedAllReduce(self.comm, self._gradients)


def _groups(model: nn.Module, config: TrainConfig) -> list[Group]:
    """Group parameters by their weight decay; learned node embeddings have none, since most nodes seldom train."""
    free = {id(module.rows) for module in model.modules() if isinstance(module, Embedded)}
    parameters, dense = list(model.parameters()), _dense_parameters(model)
    of_dense = config.weight_decay if config.dense_weight_decay is None else config.dense_weight_decay
    if of_dense == config.weight_decay:
        dense = set()
    groups = [
        Group([each for each in parameters if id(each) not in free | dense], config.weight_decay),
        Group([each for each in parameters if id(each) in free]),
    ]
    return [*groups, Group([each for each in parameters if id(each) in dense], of_dense)] if dense else groups


def _dense_parameters(model: nn.Module) -> set[int]:
    """Find the parameters of layers before the first aggregate and after the last."""
    models = (module for module in model.modules() if isinstance(module, Model))
    return {id(each) for one in models for layer in one.dense_layers() for each in layer.parameters()}
