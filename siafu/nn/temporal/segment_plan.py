"""Plan the segments of gradient checkpointing: estimate the peak memory of a plan, and choose one that fits."""

from collections.abc import Sequence
from typing import NamedTuple

from siafu.nn.temporal.model import TemporalModel


class MemoryEstimate(NamedTuple):
    """The memory that a model needs during the backward pass, in bytes.

    Attributes:
        step: for each step of the segment that is differentiated.
        state: for each state that is stored between segments.
        extra: in any segment: for the loss of a step, and for the final state where a layer computes it unread.
    """

    step: int
    state: int
    extra: int

    def of_segment(self, place: int, length: int, *, last: bool) -> int:
        """Memory while a segment is differentiated: states before it, and the gradients of the state after it."""
        return self.step * length + self.state * (place + (not last)) + self.extra

    def of_segments(self, lengths: Sequence[int]) -> list[int]:
        """The memory of each segment, given the number of steps of each."""
        last = len(lengths) - 1
        return [self.of_segment(place, length, last=place == last) for place, length in enumerate(lengths)]

    def peak(self, lengths: Sequence[int]) -> int:
        """The peak memory over segments of so many steps."""
        return max(self.of_segments(lengths))


def estimate_memory(
    model: TemporalModel, num_nodes: int, *, own_nodes: int | None = None, itemsize: int = 4
) -> MemoryEstimate:
    """Estimate the memory of a model on N nodes, ``own_nodes`` of which are owned here."""
    own = num_nodes if own_nodes is None else own_nodes
    figures = [layer.memory_per_node for layer in model.temporal_layers]
    unread, of_loss = sum(each.unread_state for each in figures) * own, model.out_features * num_nodes
    return MemoryEstimate(
        sum(each.step for each in figures) * num_nodes * itemsize,
        max(1, sum(each.state for each in figures)) * own * itemsize,
        (unread + of_loss) * itemsize,
    )


def plan_segments(num_steps: int, memory: MemoryEstimate, *, budget: int | None = None) -> list[int]:
    """Choose the number of steps of each segment: as few segments as fit a budget in bytes, or the least memory.

    Fewer states are stored while an earlier segment is differentiated, so earlier segments may have more steps. The
    least peak is then about ``2 sqrt(step state T)`` bytes, with steps and states in balance; equal segments take
    ``sqrt(2)`` times as much. The last segment, which runs only once, is as long as fits. If nothing fits the budget,
    the plan of the least memory is returned.
    """
    if budget is not None:
        lengths = _fill(num_steps, memory, budget)
        if lengths:
            return lengths
    # The least peak lies between the memory of one step and that of all steps at once.
    low, high = memory.step, memory.peak([num_steps])
    while high - low > max(1, memory.step // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if _fill(num_steps, memory, middle) else (middle, high)
    return _fill(num_steps, memory, high)


def _fill(num_steps: int, memory: MemoryEstimate, budget: int) -> list[int]:
    """The fewest segments that fit, each as long as fits, shortened to ``num_steps`` in all; empty where none fit."""
    lengths: list[int] = []

    def fits(*, last: bool) -> int:
        return (budget - memory.of_segment(len(lengths), 0, last=last)) // memory.step

    while sum(lengths) + fits(last=True) < num_steps:
        if fits(last=False) < 1:
            return []
        lengths.append(fits(last=False))
    lengths.append(min(num_steps, fits(last=True)))
    for _ in range(sum(lengths) - num_steps):
        lengths[lengths.index(max(lengths[:-1]))] -= 1
    return lengths
