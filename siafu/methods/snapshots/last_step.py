"""What a trained model says of the last step of a graph that changes over time. It trains nothing."""

import torch
from torch import Tensor

from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.temporal import Span, TemporalModel, span_alone

_AT_ONCE = 8  # steps


@torch.no_grad()
def last_step_embeddings(model: TemporalModel, timeline: Timeline, *, window: int) -> Tensor:
    """The rows of all nodes in the last step, which sees ``window`` steps before it, or all where that is 0: (N, H)."""
    model.eval()
    stop = timeline.graph.num_steps
    begin = max(0, stop - 1 - window) if window else 0
    state = model.begin(timeline.graph.num_nodes)
    for first in range(begin, stop, _AT_ONCE):
        out, state = model(_span(timeline, range(first, min(first + _AT_ONCE, stop)), begin), state)
    return out[-1]


def _span(timeline: Timeline, numbers: range, begin: int) -> Span:
    x, aggregated = timeline.inputs(numbers), None
    if timeline.band is None:
        aggregated = timeline.aggregated(numbers)
    return span_alone(timeline.steps(numbers), x, first=numbers.start - begin, m=aggregated)
