"""What one rank reads of a graph that changes over time, and how that is cut into messages."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siafu.dynamic import Chunk, DynamicGraph, Snapshots

_MOST_EVENTS = 1 << 22  # of a piece, which begins with a key frame
_MOST_NUMBERS = 1 << 24  # of a message with rows


@dataclass(frozen=True)
class LogShard:
    """What one rank reads of a graph that changes over time.

    Attributes:
        events: the steps whose events it reads, ascending.
        features: the steps whose features it reads; None: all that there are, or those of all time.
        labels: the same of the labels of nodes.
        weighted: whether it reads weights.
        as_given: whether it reads events in the order and direction that they were given in, and their classes.
        classes: how many classes there are to learn, of which it may see few; 0 where there are none.
    """

    events: tuple[int, ...]
    features: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None
    weighted: bool = False
    as_given: bool = False
    classes: int = 0


def split_steps(graph: DynamicGraph, steps: Sequence[int], *, most: int = _MOST_EVENTS) -> list[range]:
    """Some ascending steps as ranges, each of one step or of few events."""
    found: list[range] = []
    for step in steps:
        last = found[-1] if found else range(-1, -1)
        if last.stop == step and graph.count(last.start, step + 1) <= most:
            found[-1] = range(last.start, step + 1)
        else:
            found.append(range(step, step + 1))
    return found


def pack_events(graph: DynamicGraph, steps: range, *, weighted: bool) -> Chunk:
    """The events of some steps in few bytes: as differences where those of the first two steps take less."""
    view = Snapshots(graph, life=1, weighted=weighted)
    two = min(steps.start + 2, steps.stop)
    sizes = [view.pack(steps.start, two, deltas=deltas).num_bytes for deltas in (False, True)]
    return view.pack(steps.start, steps.stop, deltas=sizes[1] < sizes[0])


def array_slices(shape: Sequence[int], steps: Sequence[int] | None) -> Iterator[slice]:
    """Where the numbers of some steps of an array stand in it, or all of them where None: some at a time."""
    size = math.prod(shape)
    each = size if steps is None else size // shape[0]
    for begin in (0,) if steps is None else (step * each for step in steps):
        for start in range(begin, begin + each, _MOST_NUMBERS):
            yield slice(start, min(start + _MOST_NUMBERS, begin + each))
