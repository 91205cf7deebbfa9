"""The shard of a dynamic graph that one rank reads, and how it is split into messages."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from siafu.dynamic import Chunk, DynamicGraph, Snapshots

_MAX_EVENTS = 1 << 22  # of a piece, which begins with a key frame
_MAX_NUMBERS = 1 << 24  # of a message with rows


@dataclass(frozen=True)
class LogShard:
    """The part of an event log that one rank reads.

    Attributes:
        events: the steps whose events it reads, ascending.
        features: the steps whose features it reads; None: all steps, or features that never change.
        labels: the steps whose node labels it reads; None as above.
        weighted: whether it reads weights.
        as_given: whether it reads events in their original order and direction, and their classes.
        classes: the number of classes to learn, of which it may see few; 0 if there are none.
    """

    events: tuple[int, ...]
    features: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None
    weighted: bool = False
    as_given: bool = False
    classes: int = 0


def split_steps(graph: DynamicGraph, steps: Sequence[int], *, most: int = _MAX_EVENTS) -> list[range]:
    """Group ascending steps into ranges of one step or of at most ``most`` events."""
    found: list[range] = []
    for step in steps:
        last = found[-1] if found else range(-1, -1)
        if last.stop == step and graph.count(last.start, step + 1) <= most:
            found[-1] = range(last.start, step + 1)
        else:
            found.append(range(step, step + 1))
    return found


def pack_events(graph: DynamicGraph, steps: range, *, weighted: bool) -> Chunk:
    """Pack the events of some steps; as deltas where those of the first two steps take fewer bytes."""
    view = Snapshots(graph, life=1, weighted=weighted)
    two = min(steps.start + 2, steps.stop)
    sizes = [view.pack(steps.start, two, deltas=deltas).num_bytes for deltas in (False, True)]
    return view.pack(steps.start, steps.stop, deltas=sizes[1] < sizes[0])


def array_slices(shape: Sequence[int], steps: Sequence[int] | None) -> Iterator[slice]:
    """Yield slices of the flattened array that cover some steps, or all of it if None, a bounded size each."""
    size = math.prod(shape)
    each = size if steps is None else size // shape[0]
    for begin in (0,) if steps is None else (step * each for step in steps):
        for start in range(begin, begin + each, _MAX_NUMBERS):
            yield slice(start, min(start + _MAX_NUMBERS, begin + each))
