"""How to cut time into blocks: what a pass over them takes at its peak, and the cut that fits."""

from collections.abc import Sequence
from typing import NamedTuple

from siafu.nn.temporal.model import TemporalModel


class Need(NamedTuple):
    """What a model needs while it goes back, in bytes.

    Attributes:
        step: for each step of the block that is being passed.
        state: for each state that is kept between blocks.
        more: in any block: for the loss of a step, and for the state after it where nobody reads it.
    """

    step: int
    state: int
    more: int

    def of_block(self, place: int, length: int, *, last: bool) -> int:
        """What a block takes while it goes back: states before it, and gradients of the one after it, if any."""
        return self.step * length + self.state * (place + (not last)) + self.more

    def of_blocks(self, lengths: Sequence[int]) -> list[int]:
        """What each of some blocks takes."""
        last = len(lengths) - 1
        return [self.of_block(place, length, last=place == last) for place, length in enumerate(lengths)]

    def peak(self, lengths: Sequence[int]) -> int:
        """The most that blocks of so many steps take."""
        return max(self.of_blocks(lengths))


def estimate_memory(
    model: TemporalModel, num_nodes: int, *, own_nodes: int | None = None, itemsize: int = 4
) -> Need:
    """What a model needs for so many nodes, of which some are computed here; by the layers' own reckoning."""
    own = num_nodes if own_nodes is None else own_nodes
    numbers = [layer.numbers for layer in model.temporal_layers]
    unread, of_loss = sum(each.unread for each in numbers) * own, model.out_features * num_nodes
    return Need(
        sum(each.step for each in numbers) * num_nodes * itemsize,
        max(1, sum(each.state for each in numbers)) * own * itemsize,
        (unread + of_loss) * itemsize,
    )


def cut_time(num_steps: int, need: Need, *, budget: int | None = None) -> list[int]:
    """How many steps each block has: as few blocks as fit a budget in bytes, or those that take least.

    The earlier a block, the fewer states are kept while it goes back, and the more steps it may have: with that the
    least is about ``2 sqrt(step state T)`` bytes with steps and states in balance, where equal blocks take
    ``sqrt(2)`` times as much. The last block, which alone is not passed twice, is as long as fits. Where nothing fits
    the budget, the cut that takes least is given.
    """
    if budget is not None:
        lengths = _filled(num_steps, need, budget)
        if lengths:
            return lengths
    low, high = need.step, need.peak([num_steps])  # the least lies between: one step, all at once
    while high - low > max(1, need.step // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if _filled(num_steps, need, middle) else (middle, high)
    return _filled(num_steps, need, high)


def _filled(num_steps: int, need: Need, budget: int) -> list[int]:
    """As few blocks as fit, each as long as fits, but what is too much; empty where time does not end before that."""
    lengths: list[int] = []

    def fits(*, last: bool) -> int:
        return (budget - need.of_block(len(lengths), 0, last=last)) // need.step

    while sum(lengths) + fits(last=True) < num_steps:
        if fits(last=False) < 1:
            return []
        lengths.append(fits(last=False))
    lengths.append(min(num_steps, fits(last=True)))
    for _ in range(sum(lengths) - num_steps):
        lengths[lengths.index(max(lengths[:-1]))] -= 1
    return lengths
