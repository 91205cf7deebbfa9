"""A model without hidden layers: scores that are linear in the inputs of some hops, then smoothed over the graph."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.graph import Block
from siafu.nn.aggregates import check_rows, gcn_in, widened
from siafu.nn.product import product
from siafu.nn.streamed import Rows, Streamed

_LEAST = 1e-9  # a probability whose logarithm can be taken
_PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")


class Propagated(nn.Module):
    """Linear heads on the inputs of some hops, then personalised PageRank of what they say.

    ``z = b + sum over hops k of S^k X W_k``, rows of X scaled to length 1; ``p = softmax(t z)``; ``q_0 = p``,
    ``q_r = (1 - a) S q_(r-1) + a p`` for some rounds (https://arxiv.org/abs/1810.05997), S being GCN's normalised sum
    with the degrees of the whole graph. C numbers a node are passed on, never the inputs: ``S^k X W`` is computed as
    ``S (… S (X W))``.

    Where there are knots, weights depend on the degree of the node that is spoken of: there is a set of them for each
    knot, and a node takes the two sets between whose knots its degree lies, each by how near it is
    (:func:`shares_of_knots`). Then C numbers a knot are passed on.

    Rows are rounded before they are passed on, those that stay as those that travel; so the model says the same on one
    rank and on many, up to the rounding of sums. It knows weights and no nodes: known labels are no part of it, so what
    it says of a graph that it has not seen is computed as for the one it was fitted on.

    Attributes:
        weight: (K, F, B C), of each hop that is read; those of the first knot first.
        bias: (B C,).
        hops: (K,) int64, which hops these are, ascending.
        form: (6,) float64: temperature t, rounds, share a, the precisions of scores and of probabilities on their
            way, as places in a list, and the number of knots, B.

    Shapes:
        x_src: (N, F), rows ordered as in the block.
        returns: (N, C), ``t z``, or the logarithms of ``q`` where there are rounds.
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
        """The model whose ``state_dict`` this is."""
        wanted = {"weight", "bias", "hops", "form"}
        if state.keys() != wanted:
            raise ValueError(f"found {sorted(state)}; expected the tensors {sorted(wanted)}")
        hops, weight = state["hops"].tolist(), state["weight"]
        model = cls(dict(zip(hops, weight, strict=True)), state["bias"])
        model.load_state_dict(dict(state))
        return model

    @property
    def temperature(self) -> float:
        """What scores are multiplied by."""
        return float(self.form[0])

    @property
    def rounds(self) -> int:
        """How often probabilities are passed on."""
        return int(self.form[1])

    @property
    def share(self) -> float:
        """How much of a node's own probabilities is kept in each round."""
        return float(self.form[2])

    @property
    def knots(self) -> int:
        """B: how many sets of weights there are, by degree."""
        return int(self.form[5])

    def forward(self, block: Block, x_src: Rows) -> Tensor:
        """Scores of the destinations, in the inputs' dtype. Collective where others hold the halo."""
        check_rows(block, x_src)
        z = self.scores(block, of_unit_length(x_src))
        p = q = (self.temperature * z).softmax(1)
        for _ in range(self.rounds):
            q = smoothed(block, q, p, share=self.share, precision=self._way(4))
        return self.said(z, q)

    def said(self, z: Tensor, q: Tensor) -> Tensor:
        """The output for scores z and what smoothing made of them, q; both (N, C) float64."""
        out = q.clamp(min=_LEAST).log() if self.rounds else self.temperature * z
        return out.to(self.weight.dtype)

    def scores(self, block: Block, x_src: Rows) -> Tensor:
        """``z`` of rows of length 1: (N, F) -> (N, C) float64."""
        of_hop = dict(zip(self.hops.tolist(), self.weight, strict=True))
        z = torch.zeros(block.num_dst, self.bias.numel(), dtype=torch.float64)
        for hop in range(max(of_hop), -1, -1):
            if hop in of_hop:
                z += product(x_src, of_hop[hop]).double()
            if hop:
                z = passed_on(block, z, self._way(3))
        return by_degree(block, z + self.bias.double(), self.knots)

    def _way(self, place: int) -> Precision:
        return _PRECISIONS[int(self.form[place])]


def shares_of_knots(block: Block, knots: int) -> Tensor:
    """How much of each knot's weights a destination takes: (D, B) float64, rows of sum 1.

    Knot b stands at the degree 4^b, loop included. The two around a degree share it, by the distance of logarithms;
    the last has all beyond it.
    """
    whole = block.whole
    degree = block.in_degree + block.missing_loop if whole is None else whole.degree_src[: block.num_dst]
    place = (degree.clamp(min=1).log2() / 2).clamp(max=knots - 1)
    return (1 - (place[:, None] - torch.arange(knots)).abs()).clamp(min=0)


def by_degree(block: Block, z: Tensor, knots: int) -> Tensor:
    """What each destination takes of what all knots say of it: (D, B C) float64 -> (D, C)."""
    if knots == 1:
        return z
    return (shares_of_knots(block, knots)[:, :, None] * z.view(z.shape[0], knots, -1)).sum(1)


def smoothed(block: Block, q: Tensor, p: Tensor, *, share: float, precision: Precision) -> Tensor:
    """One round, ``(1 - share) S q + share p``: two times (N, C) float64 -> (N, C). Collective."""
    return (1 - share) * passed_on(block, q, precision) + share * p


def passed_on(block: Block, rows: Tensor, precision: Precision) -> Tensor:
    """``S rows`` of rows that are rounded first, here as elsewhere: (N, C) float64 -> (N, C). Collective."""
    out = gcn_in(block, quantize_dequantize(rows, precision))
    assert isinstance(out, Tensor)
    return out


def of_unit_length(x: Rows) -> Rows:
    """Rows scaled to length 1, but for those of zeros: (R, F) -> (R, F)."""
    if isinstance(x, Streamed):
        length = torch.cat([rows.norm(dim=1) for _, rows in x.ranges()] or [torch.empty(0)])
        inverse = torch.where(length > 0, 1 / length, 1.0)
        return replace(x, scale=inverse if x.scale is None else inverse * x.scale)
    x = widened(x)
    length = x.norm(dim=1, keepdim=True)
    return x / torch.where(length > 0, length, 1.0)
