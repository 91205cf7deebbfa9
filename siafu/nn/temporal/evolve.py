"""EvolveGCN: a recurrence evolves the weights of a graph convolution from step to step."""

import torch
from torch import Tensor, nn

from siafu.nn.layer import first_generator, glorot
from siafu.nn.temporal.convolution import apply_activation, project_by_step
from siafu.nn.temporal.layer import MemoryPerNode, Span, State, TemporalLayer, mask_absent
from siafu.nn.temporal.step import StepRows, aggregate_steps, stack_steps
from siafu.nn.temporal.summary import summarize
from siafu.nn.temporal.temporal_comm import TemporalComm, single_rank


class EvolveGcnO(TemporalLayer):
    """EvolveGCN-O (https://arxiv.org/abs/1902.10191): ``H_t = s(A_t X_t W_t)``, ``W_t = GRU(W_{t-1}, W_{t-1})``.

    The GRU works on matrices: its weights multiply from the left, and each column of W_t is a row of an ordinary GRU.
    Weights are small, so every rank computes all of them.
    """

    spatial = "H_t = s(A_t X_t W_t)"
    temporal = "W_t = GRU(W_{t-1}, W_{t-1})"
    state_names = ("W",)

    def __init__(self, in_features: int, out_features: int, *, activation: str = "relu") -> None:
        super().__init__()
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.weight_in = nn.Parameter(torch.empty(3 * in_features, in_features))
        self.weight_state = nn.Parameter(torch.empty(3 * in_features, in_features))
        self.bias = nn.Parameter(torch.empty(3 * in_features, out_features))
        EvolveGcnO.reset(self, first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters; the weights of each gate are drawn as a matrix of their own."""
        glorot(self.weight, generator)
        for weight in (self.weight_in, self.weight_state):
            for gate in weight.data.split(self.in_features):
                glorot(gate, generator)
        nn.init.zeros_(self.bias)

    def begin(self, num_nodes: int, comm: TemporalComm = single_rank) -> State:
        """The initial weights, which are parameters."""
        return [self.weight]

    @property
    def memory_per_node(self) -> MemoryPerNode:
        """The aggregate of inputs, outputs, and gradients of both; weights are negligible."""
        return MemoryPerNode(2 * self.in_features + 2 * self.out_features, 0, 0)

    def aggregate_inputs(
        self, span: Span, state: State, comm: TemporalComm = single_rank
    ) -> tuple[Tensor, State]:
        """``A_t X_t``."""
        return aggregate_steps(span.steps, span.x), state

    def forward(self, span: Span, state: State, comm: TemporalComm = single_rank) -> tuple[Span, State]:
        """Evolve the weights of all steps, then convolve the own steps."""
        span, weights = self.evolve_weights(span, state[0], comm)
        own = torch.stack(weights[comm.own_steps])
        h = mask_absent(convolve_by_step(span, own, self.activation), span.present)
        return span._replace(x=h, x_nodes=None, m=None), [weights[-1]]

    def evolve_weights(self, span: Span, weight: Tensor, comm: TemporalComm) -> tuple[Span, list[Tensor]]:
        """The weights of every step of the segment, each (in_features, out_features), and the span to go on with."""
        weights: list[Tensor] = []
        for _ in range(span.num_steps):
            weight = self._gru(weight, weight)
            weights.append(weight)
        return span, weights

    def _gru(self, given: Tensor, weight: Tensor) -> Tensor:
        """One step of the GRU; the gates are update, reset, candidate."""
        size = self.in_features
        of_given = torch.addmm(self.bias, self.weight_in, given)
        z, r = torch.addmm(of_given[: 2 * size], self.weight_state[: 2 * size], weight).sigmoid().chunk(2)
        new = torch.addmm(of_given[2 * size :], self.weight_state[2 * size :], r * weight).tanh()
        return torch.lerp(weight, new, z)


class EvolveGcnH(EvolveGcnO):
    """EvolveGCN-H: as EvolveGCN-O, but the GRU reads a summary of each step's inputs.

    ``W_t = GRU(Z_t^T, W_{t-1})``; the rows of Z_t are the k inputs with the largest ``y = X_t p / |p|``, times
    ``tanh(y)``, in descending order; equal scores in the order of nodes. k is the number of columns of W, unless
    ``top_k`` is lower. The columns that are left are zero, as they are where fewer than k nodes are present.
    """

    spatial = "H_t = s(A_t X_t W_t), Z_t = the top k of X_t"
    temporal = "W_t = GRU(Z_t^T, W_{t-1})"

    def __init__(
        self, in_features: int, out_features: int, *, activation: str = "relu", top_k: int | None = None
    ) -> None:
        super().__init__(in_features, out_features, activation=activation)
        self.top_k = min(out_features, top_k or out_features)
        self.scorer = nn.Parameter(torch.empty(in_features))
        self.reset(first_generator())

    def reset(self, generator: torch.Generator) -> None:
        """Draw new parameters."""
        super().reset(generator)
        glorot(self.scorer.data[:, None], generator)

    def evolve_weights(self, span: Span, weight: Tensor, comm: TemporalComm) -> tuple[Span, list[Tensor]]:
        """The weights of every step of the segment, and the span to go on with."""
        x, own_rows = summarize(
            stack_steps(span.x), self.scorer, k=self.top_k, num_steps=len(span.steps), present=span.present
        )
        weights: list[Tensor] = []
        for rows in comm.all_gather_steps(own_rows).unbind():
            given = nn.functional.pad(rows.t(), (0, self.out_features - self.top_k))
            weight = self._gru(given, weight)
            weights.append(weight)
        return span._replace(x=x), weights


def convolve_by_step(span: Span, weights: Tensor, activation: str) -> Tensor:
    """``s(A_t X_t W_t)``: (T, N, F), (T, F, H) -> (T, N, H). The narrower side is aggregated."""
    if span.m is None and weights.shape[2] < weights.shape[1]:
        x = _all_steps(span.x, len(span.steps))
        return apply_activation(aggregate_steps(span.steps, project_by_step(x, weights, "none")), activation)
    m = aggregate_steps(span.steps, span.x) if span.m is None else span.m
    return project_by_step(m, weights, activation)


def _all_steps(x: StepRows, num_steps: int) -> Tensor:
    x = stack_steps(x)
    return x.expand(num_steps, *x.shape[-2:]) if x.ndim == 2 else x
