"""Adam. torch's own optimisers import its compiler on first use, 75 MB and a second of every process."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from siafu import native

_BETAS, _EPS = (0.9, 0.999), 1e-8


@dataclass
class Group:
    """Parameters that share a weight decay, which is added to their gradients."""

    parameters: list[nn.Parameter]
    weight_decay: float = 0.0


class Adam:
    """Adam: A Method for Stochastic Optimization (Kingma and Ba, 2015), bit for bit as ``torch.optim.Adam`` does it.

        m = b1 m + (1 - b1) g,   v = b2 v + (1 - b2) g^2,   w -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps)

    Attributes:
        lr: the learning rate of the next step.
        state: for each parameter that had a gradient, by its place: ``step`` (t), ``exp_avg`` (m), ``exp_avg_sq`` (v).
    """

    def __init__(self, groups: Iterable[Group], *, lr: float) -> None:
        self.groups, self.lr = list(groups), lr
        self.state: dict[int, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for group in self.groups:
            for parameter in group.parameters:
                parameter.grad = None

    def load_state(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Go on from such a state."""
        self.state = {
            place: {name: value.clone() for name, value in of.items()} for place, of in state.items()
        }

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient."""
        place = 0
        for group in self.groups:
            for parameter in group.parameters:
                if parameter.grad is not None:
                    self._move(place, parameter, parameter.grad, group.weight_decay)
                place += 1

    def _move(self, place: int, parameter: nn.Parameter, grad: Tensor, weight_decay: float) -> None:
        state = self.state.get(place)
        if state is None:
            rows = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            state = self.state[place] = {"step": torch.zeros(()), **rows}
        state["step"] += 1
        t, mean, square = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        decayed = parameter if weight_decay else None
        native.adam_moments(grad, decayed, mean, square, decay=weight_decay, betas=_BETAS)
        divisor, rate = (1 - _BETAS[1] ** t) ** 0.5, -self.lr / (1 - _BETAS[0] ** t)
        native.adam_move(mean, square.sqrt(), parameter, divisor=divisor, eps=_EPS, rate=rate)
