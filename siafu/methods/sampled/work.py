"""The work of an epoch of minibatches."""

from collections.abc import Sequence
from math import exp

from siafu.graph import Graph
from siafu.methods.static_work import TRAIN_PASSES, LayerWork

# In multiplications of a product that take as long, see static_work:
_SAMPLED_EDGE = 400.0  # to draw an edge
_STEP = 1e8  # one step of the optimiser, however small


def training_work(
    graph: Graph, works: Sequence[LayerWork], fanouts: Sequence[int], *, seeds: int, batches: int
) -> float:
    """The work of an epoch of so many minibatches of ``seeds`` nodes each; ``fanouts`` are in the order of layers."""
    nodes, degree = float(graph.num_nodes), graph.indptr.diff()
    total, reached = 0.0, float(min(seeds, graph.num_nodes))
    for layer, fanout in zip(reversed(works), reversed(fanouts), strict=True):
        if layer.edge:  # else the aggregate is kept, and nothing is drawn
            drawn = reached * float((degree if fanout < 0 else degree.clamp(max=fanout)).double().mean())
            total += drawn * (_SAMPLED_EDGE + TRAIN_PASSES * layer.edge)
            reached = nodes * (1 - exp(-(reached + drawn) / nodes))
        total += TRAIN_PASSES * reached * layer.node
    return batches * (_STEP + total)
