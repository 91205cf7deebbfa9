"""A tiny dynamic graph, and every temporal model as a reference: dense, one node and one step at a time."""

import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.nn.temporal import Span, Step, TemporalLayer, span_alone
from siafu.nn.temporal.evolve import EvolveGcnH, EvolveGcnO
from siafu.nn.temporal.mingru import MinGru
from siafu.nn.temporal.recurrent import CdGcn, GcnGru
from siafu.nn.temporal.tmgcn import TmGcn

NUM_NODES, NUM_STEPS, IN = 6, 7, 3
# Edges go one way; 0 -> 1 occurs twice in step 0, 2 has an edge to itself, step 3 has none, 5 no edge ever.
EDGES: list[list[tuple[int, int]]] = [
    [(0, 1), (0, 1), (2, 2), (3, 0)],
    [(1, 0), (2, 4)],
    [(4, 3), (3, 4), (0, 2)],
    [],
    [(0, 1), (1, 2), (2, 3), (3, 4)],
    [(4, 0)],
    [(2, 2), (1, 3)],
]


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def steps(*, undirected: bool = False) -> list[Step]:
    made = []
    for place, edges in enumerate(EDGES):
        both = edges + [(d, s) for s, d in edges if undirected]
        index = torch.tensor(both).t() if both else torch.empty(2, 0, dtype=torch.int64)
        graph = Graph.from_edges(index, num_nodes=NUM_NODES)
        made.append(Step(graph.block, float(1 + place % 3), undirected))
    return made


def dense(step: Step) -> Tensor:
    """``D^-1/2 (A + c I) D^-1/2``."""
    block = step.block
    a = step.loop * torch.eye(NUM_NODES, dtype=torch.float64)
    for row in range(NUM_NODES):
        for edge in range(int(block.indptr[row]), int(block.indptr[row + 1])):
            a[row, block.indices[edge]] += 1
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


def presence() -> Tensor:
    """Nodes come and go; node 4 is never there, node 1 only in the middle."""
    present = torch.ones(NUM_STEPS, NUM_NODES, dtype=torch.bool)
    present[:, 4] = False
    present[:2, 1] = False
    present[5:, 1] = False
    present[3, 0] = False
    return present


def cut(span: Span, begin: int, end: int) -> Span:
    """Some steps of a span."""
    x = span.x[begin:end] if span.x.ndim == 3 else span.x
    m = None if span.m is None else span.m[begin:end]
    present = None if span.present is None else span.present[begin:end]
    return span_alone(span.steps[begin:end], x, first=begin, m=m, present=present)


def plain(layer: TemporalLayer, given: list[Step], x: Tensor, present: Tensor | None = None) -> Tensor:
    """The output of a layer by its formulas: (T, N, F) -> (T, N, H)."""
    there = torch.ones(x.shape[:2], dtype=torch.bool) if present is None else present
    a = [dense(step) for step in given]
    match layer:
        case EvolveGcnO():
            out = _evolve(layer, a, x, there)
        case TmGcn():
            out = _smooth(layer, a, x)
        case CdGcn() | GcnGru() | MinGru():
            out = _recur(layer, a, x, there)
    return torch.where(there[..., None], out, 0.0)


def _recur(layer: CdGcn | GcnGru | MinGru, a: list[Tensor], x: Tensor, there: Tensor) -> Tensor:
    y = torch.stack([(a_t @ x_t @ layer.weight).relu() for a_t, x_t in zip(a, x, strict=True)])
    size = layer.out_features
    of_node = []
    for node in range(x.shape[1]):
        h = c = torch.zeros(size, dtype=x.dtype)
        outputs = []
        for t in range(len(x)):
            if there[t, node]:
                h, c = _cell(layer, y[t, node], x[t, node], h, c)
            outputs.append(h)
        of_node.append(torch.stack(outputs))
    return torch.stack(of_node, 1)


def _cell(
    layer: CdGcn | GcnGru | MinGru, y: Tensor, x: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    def gate(number: int, weight: Tensor) -> Tensor:
        return weight[:, number * layer.out_features : (number + 1) * layer.out_features]

    def bias(number: int) -> Tensor:
        return gate(number, layer.bias[None])[0]

    if isinstance(layer, MinGru):
        z = torch.sigmoid(y @ gate(0, layer.weight_y) + bias(0))
        return (1 - z) * h + z * (y @ gate(1, layer.weight_y) + bias(1)), c
    if isinstance(layer, GcnGru):
        z, r = (
            torch.sigmoid(y @ gate(n, layer.weight_y) + h @ gate(n, layer.weight_h) + bias(n)) for n in (0, 1)
        )
        new = torch.tanh(y @ gate(2, layer.weight_y) + (r * h) @ gate(2, layer.weight_h) + bias(2))
        return (1 - z) * h + z * new, c
    assert layer.weight_x is not None
    both, weight = torch.cat([y, x, h]), torch.cat([layer.weight_y, layer.weight_x, layer.weight_h])
    i, f, g, o = (both @ gate(n, weight) + bias(n) for n in range(4))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _smooth(layer: TmGcn, a: list[Tensor], x: Tensor) -> Tensor:
    out = []
    for t in range(len(x)):
        last = range(max(0, t - layer.band + 1), t + 1)
        mean = sum(x[k] / min(t + 1, layer.band) for k in last)
        out.append((a[t] @ mean @ layer.weight).relu())
    return torch.stack(out)


def _evolve(layer: EvolveGcnO, a: list[Tensor], x: Tensor, there: Tensor) -> Tensor:
    weight, out = layer.weight, []
    for t in range(len(x)):
        given = weight
        if isinstance(layer, EvolveGcnH):
            y = x[t] @ layer.scorer / layer.scorer.norm()
            order = [n for n in sorted(range(len(y)), key=(-y.detach()).tolist().__getitem__) if there[t, n]]
            picked = [x[t, n] * torch.tanh(y[n]) for n in order[: layer.top_k]]
            zero = torch.zeros_like(x[t, 0])
            given = torch.stack([*picked, *[zero] * (layer.out_features - len(picked))], 1)
        weight = _matrix_gru(layer, given, weight)
        out.append((a[t] @ x[t] @ weight).relu())
    return torch.stack(out)


def _matrix_gru(layer: EvolveGcnO, given: Tensor, weight: Tensor) -> Tensor:
    (w_z, w_r, w_n), (u_z, u_r, u_n), (b_z, b_r, b_n) = (
        each.chunk(3) for each in (layer.weight_in, layer.weight_state, layer.bias)
    )
    z = torch.sigmoid(w_z @ given + u_z @ weight + b_z)
    r = torch.sigmoid(w_r @ given + u_r @ weight + b_r)
    new = torch.tanh(w_n @ given + u_n @ (r * weight) + b_n)
    return (1 - z) * weight + z * new
