"""Inference at the last step of a dynamic graph, by a trained model."""

import torch
from torch import Tensor

from siafu.methods.snapshots.timeline import Timeline
from siafu.nn.temporal import Span, TemporalModel, span_alone

_STEPS_AT_ONCE = 8


@torch.no_grad()
def last_step_embeddings(model: TemporalModel, timeline: Timeline, *, window: int) -> Tensor:
    """The outputs of the last step for all nodes, from ``window`` steps before it or, if 0, all: (N, H)."""
    model.eval()
    stop = timeline.graph.num_steps
    begin = max(0, stop - 1 - window) if window else 0
    state = model.begin(timeline.graph.num_nodes)
    for first in range(begin, stop, _STEPS_AT_ONCE):
        out, state = model(_span(timeline, range(first, min(first + _STEPS_AT_ONCE, stop)), begin), state)
    return out[-1]


def _span(timeline: Timeline, numbers: range, begin: int) -> Span:
    x, aggregated = timeline.inputs(numbers), None
    if timeline.band is None:
        aggregated = timeline.aggregated_inputs(numbers)
    return span_alone(timeline.steps(numbers), x, first=numbers.start - begin, m=aggregated)
