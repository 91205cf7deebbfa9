"""A model without hidden layers: linear scores of hop features, then smoothing over the graph."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.context import AnyBlock, context_of
from siafu.graph import Block
from siafu.nn.aggregates import check_rows, gcn_in, widened
from siafu.nn.product import product
from siafu.nn.streamed import DenseRows, Rows, Streamed, in_memory

_LEAST = 1e-9  # a probability whose logarithm can be taken
_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")


class Propagated(nn.Module):
    """Linear heads on hop features, then personalised PageRank of the predictions.

    ``z = b + sum over hops k of S^k X W_k``, rows of X scaled to length 1; ``p = softmax(t z)``; ``q_0 = p``,
    ``q_r = (1 - a) S q_(r-1) + a p`` for some rounds (https://arxiv.org/abs/1810.05997), S being GCN's normalised sum
    with the degrees of the whole graph. Each node propagates C values, never its inputs: ``S^k X W`` is computed as
    ``S (… S (X W))``.

    With several knots, the weights depend on a node's degree. There is one set of weights per knot; a node interpolates
    between the two sets whose knots are next to its degree (:func:`shares_of_knots`). Then each node propagates C
    values per knot.

    Rows are rounded before propagation, also where they stay on their rank. So the output on one rank and on several is
    the same, up to the rounding of sums. The model holds weights and no labels or nodes, so it applies to unseen graphs
    unchanged.

    Attributes:
        weight: (K, F, B C), the weights of each hop; those of the first knot first.
        bias: (B C,).
        hops: (K,) int64, the hops, ascending.
        form: (6,) float64: temperature t, rounds, share a, the precisions of propagated scores and probabilities as
            indices into a list, and the number of knots, B.

    Shapes:
        x_src: (N, F), rows ordered as in the block.
        returns: (N, C), ``t z``, or the logarithms of ``q`` if there are rounds.
    """

    weight: nn.Parameter
    bias: nn.Parameter
    hops: Tensor
    form: Tensor

    def __init__(
        self,
        weights: Mapping[int, Tensor],
        bias: Tensor,
        *,
        temperature: float = 1.0,
        rounds: int = 0,
        share: float = 0.1,
        scores: Precision = "fp32",
        probabilities: Precision = "fp32",
        knots: int = 1,
    ) -> None:
        super().__init__()
        hops = sorted(weights)
        self.weight = nn.Parameter(torch.stack([weights[hop] for hop in hops]), requires_grad=False)
        self.bias = nn.Parameter(bias.clone(), requires_grad=False)
        self.register_buffer("hops", torch.tensor(hops))
        ways = [float(_PRECISIONS.index(precision)) for precision in (scores, probabilities)]
        form = [temperature, rounds, share, *ways, knots]
        self.register_buffer("form", torch.tensor(form, dtype=torch.float64))

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> "Propagated":
        """Build the model of a ``state_dict``."""
        wanted = {"weight", "bias", "hops", "form"}
        if state.keys() != wanted:
            raise ValueError(f"found {sorted(state)}; expected the tensors {sorted(wanted)}")
        hops, weight = state["hops"].tolist(), state["weight"]
        model = cls(dict(zip(hops, weight, strict=True)), state["bias"])
        model.load_state_dict(dict(state))
        return model

    @property
    def temperature(self) -> float:
        """The factor of the scores before softmax."""
        return float(self.form[0])

    @property
    def rounds(self) -> int:
        """The number of propagation rounds."""
        return int(self.form[1])

    @property
    def share(self) -> float:
        """The weight of a node's own probabilities in each round (PageRank's alpha)."""
        return float(self.form[2])

    @property
    def knots(self) -> int:
        """B, the number of degree knots, each with a set of weights."""
        return int(self.form[5])

    def forward(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """Compute the output for the destinations, in the inputs' dtype. Collective if the block has a halo."""
        check_rows(block, x_src)
        z = self.scores(block, of_unit_length(x_src))
        p = q = (self.temperature * z).softmax(1)
        for _ in range(self.rounds):
            q = smoothed(block, q, p, share=self.share, precision=self._way(4))
        return self.said(z, q)

    def said(self, z: Tensor, q: Tensor) -> Tensor:
        """Compute the output from scores z and smoothed probabilities q; both (N, C) float64."""
        out = q.clamp(min=_LEAST).log() if self.rounds else self.temperature * z
        return out.to(self.weight.dtype)

    def scores(self, block: AnyBlock, x_src: Rows) -> Tensor:
        """Compute ``z`` of rows of length 1: (N, F) -> (N, C) float64."""
        of_hop = dict(zip(self.hops.tolist(), self.weight, strict=True))
        z = torch.zeros(block.num_dst, self.bias.numel(), dtype=torch.float64)
        for hop in range(max(of_hop), -1, -1):
            if hop in of_hop:
                z += product(x_src, of_hop[hop]).double()
            if hop:
                z = passed_on(block, z, self._way(3))
        return by_degree(context_of(block).block, z + self.bias.double(), self.knots)

    def _way(self, place: int) -> Precision:
        return _PRECISIONS[int(self.form[place])]


def shares_of_knots(block: Block, knots: int) -> Tensor:
    """Compute the share of each knot's weights for each destination: (D, B) float64, rows of sum 1.

    Knot b is at degree 4^b, self-loop included. Shares are interpolated linearly in the logarithm of the degree between
    the two nearest knots; beyond the last knot its share is 1.
    """
    whole = block.whole
    degree = block.in_degree + block.missing_loop if whole is None else whole.degree_src[: block.num_dst]
    place = (degree.clamp(min=1).log2() / 2).clamp(max=knots - 1)
    return (1 - (place[:, None] - torch.arange(knots)).abs()).clamp(min=0)


def by_degree(block: Block, z: Tensor, knots: int) -> Tensor:
    """Combine the scores of all knots by their shares: (D, B C) float64 -> (D, C)."""
    if knots == 1:
        return z
    return (shares_of_knots(block, knots)[:, :, None] * z.view(z.shape[0], knots, -1)).sum(1)


def smoothed(block: AnyBlock, q: Tensor, p: Tensor, *, share: float, precision: Precision) -> Tensor:
    """Compute one round, ``(1 - share) S q + share p``: twice (N, C) float64 -> (N, C). Collective."""
    return (1 - share) * passed_on(block, q, precision) + share * p


def passed_on(block: AnyBlock, rows: Tensor, precision: Precision) -> Tensor:
    """Round all rows, own and remote, and compute ``S rows``: (N, C) float64 -> (N, C). Collective."""
    out = gcn_in(block, quantize_dequantize(rows, precision))
    assert isinstance(out, Tensor)
    return out


def of_unit_length(x: Rows) -> DenseRows:
    """Scale rows to length 1; rows of zeros stay: (R, F) -> (R, F)."""
    if isinstance(x, Streamed):
        length = torch.cat([rows.norm(dim=1) for _, rows in x.ranges()] or [torch.empty(0)])
        inverse = torch.where(length > 0, 1 / length, 1.0)
        return replace(x, scale=inverse if x.scale is None else inverse * x.scale)
    x = widened(in_memory(x))
    length = x.norm(dim=1, keepdim=True)
    return x / torch.where(length > 0, length, 1.0)
