"""The values that kernels take and return. They depend on torch alone, so that every module here may import them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

ACTIVATIONS = {"none": 0, "relu": 1, "elu": 2}  # the compiled core's numbers
MAX_HEADS = 512
State = tuple[Tensor, Tensor]  # an LSTM's h and c, each (R, H)


class Csr(NamedTuple):
    """Compressed sparse rows: the columns of row ``i`` are ``indices[indptr[i]:indptr[i + 1]]``.

    Attributes:
        indptr: (R + 1,) int64, non-decreasing from 0.
        indices: (E,) int32.
        origin: (E,) int64, the index of each edge in the arrays that the CSR was built from; None if not asked for.
    """

    indptr: Tensor
    indices: Tensor
    origin: Tensor | None = None


class Dropout(NamedTuple):
    """Counter-based dropout: an element is dropped if the hash of (key, row id, column) is below a threshold.

    Attributes:
        key: unsigned 64 bits, made of seed, step and layer.
        threshold: unsigned 32 bits; 0 drops nothing.
        scale: of the elements kept.
    """

    key: int = 0
    threshold: int = 0
    scale: float = 1.0

    @classmethod
    def of(cls, rate: float, key: int) -> "Dropout":
        """Make a dropout of a rate in [0, 1); the scale is exact for the rounded threshold."""
        threshold = min(round(rate * 2**32), 2**32 - 1)
        return cls(key & (2**64 - 1), threshold, 2**32 / (2**32 - threshold))


class Term(NamedTuple):
    """One term of a sum of products: ``x W``.

    Attributes:
        x: (R, I).
        weight: (I, O).
    """

    x: Tensor
    weight: Tensor

    @property
    def contiguous(self) -> tuple[Tensor, Tensor]:
        """Both, contiguous in memory."""
        return self.x.contiguous(), self.weight.contiguous()


class Epilogue(NamedTuple):
    """The epilogue of a product: ``dropout(activation(z + bias))``; see :func:`siafu.native.epilogue`."""

    bias: Tensor | None
    activation: str
    dropout: Dropout
    row_id: Tensor | None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The fields in the order of the compiled core's arguments."""
        drop = self.dropout
        return (
            self.bias,
            self.row_id,
            ACTIVATIONS[self.activation],
            drop.key,
            drop.threshold,
            drop.scale,
        )


class Attention(NamedTuple):
    """Parameters of an attention aggregate, beside the rows.

    Attributes:
        heads: H, at most ``MAX_HEADS``.
        slope: of the leaky ReLU below zero, 0 or more.
        dropout: of the weights, keyed by (key, id of the destination, id of the source, head).
        node_id: (S,) int64, the ids of the sources, of which the first are the destinations; None: the row.
    """

    heads: int
    slope: float = 0.2
    dropout: Dropout = Dropout()
    node_id: Tensor | None = None


class CsrPair(NamedTuple):
    """The edges of a block, by destination and by source.

    Attributes:
        csr: by destination.
        transposed: by source, with ``origin``.
    """

    csr: Csr
    transposed: Csr


class Factors(NamedTuple):
    """The factors of pair scores, float32.

    Attributes:
        a_src: (S, D), of sources.
        b_dst: (C, D), of candidates.
        weight: (D,), or None for the plain product of the two.
    """

    a_src: Tensor
    b_dst: Tensor
    weight: Tensor | None


class DistinctRows(NamedTuple):
    """The distinct rows of a table of R rows, G of them, numbered by where they occur first; all int32.

    Attributes:
        group: (R,), the distinct row that each row equals.
        first: (G,), the row where each distinct row occurs first.
        times: (G,), how often each distinct row occurs.
    """

    group: Tensor
    first: Tensor
    times: Tensor


class RankCounts(NamedTuple):
    """For each positive, the number of greater scores and of equal scores (itself included); (P,) int64.

    Attributes:
        above, same: among all pairs.
        row_above, row_same: among the pairs of its source.
    """

    above: Tensor
    same: Tensor
    row_above: Tensor
    row_same: Tensor


class LstmInputs(NamedTuple):
    """The inputs of an LSTM: ``(i, f, g, o) = sum of x_t W + h_{t-1} U + b``.

    Attributes:
        inputs: one or two; x is (T, R, I), or (R, I) if it is the same in every step; its weight is (I, 4H).
        weight_h: (H, 4H).
        bias: (4H,).
        present: (T, R) bool, or None if all rows are present. An absent row keeps its state and outputs zeros.
        before: h and c before the first step.
        num_steps: T.
    """

    inputs: Sequence[Term]
    weight_h: Tensor
    bias: Tensor
    present: Tensor | None
    before: State
    num_steps: int

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors with a gradient: x and weight of each input, U, b, h, c."""
        return [*(each for term in self.inputs for each in term), self.weight_h, self.bias, *self.before]


class LstmOutputs(NamedTuple):
    """The outputs (T, R, H) of an LSTM, its last h and c, and its gates (T, R, 4H); the latter two may be None.

    The gates serve one backward pass, which may overwrite them with gradients.
    """

    out: Tensor
    after: State | None
    gates: Tensor | None


class SampledRows(NamedTuple):
    """Edges sampled from R rows of a CSR.

    Attributes:
        indptr: (R + 1,) int64.
        source: (E,) int32, the names of the sampled columns, in the order of the edges.
        edge: (E,) int64, the positions of the edges, ascending within a row; None if not asked for.
    """

    indptr: Tensor
    source: Tensor
    edge: Tensor | None = None


class RelabelledRows(NamedTuple):
    """Edges sampled from R rows in G groups, with sources as local rows.

    Attributes:
        indptr: (R + 1,) int64.
        src_row: of each group, (E,) int32, the row of each source: rows of the group first, then new ones.
        new_nodes: of each group, (N,) int32, sources that are not rows of the group, in order; slices of one array.
        edge: (E,) int64, the positions of all edges; None if not asked for.
    """

    indptr: Tensor
    src_row: list[Tensor]
    new_nodes: list[Tensor]
    edge: Tensor | None = None


class PartCounts(NamedTuple):
    """The sizes of each part; every tensor is (parts,) int64.

    Attributes:
        nodes: nodes that the part owns.
        edges: in-edges of its nodes.
        train: its training nodes.
        inside: its edges whose source it owns too.
        halo: distinct nodes of other parts that its edges read.
    """

    nodes: Tensor
    edges: Tensor
    train: Tensor
    inside: Tensor
    halo: Tensor
