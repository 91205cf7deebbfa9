"""What a graph server and a worker say to each other, as frames: keys, tasks, results. No socket."""

from typing import Any, TypeVar

import numpy as np

from siafu.workers.frames import DTYPES, Frame, FrameError
from siafu.workers.shared import Mapped, Placed, Segments
from siafu.workers.slots import Desk, Slot
from siafu.workers.task import Arrays, Direction, Key, Result, Task

T = TypeVar("T")

# An array's name on the way: what it is of, then its own.
_ROWS, _WEIGHTS, _GRADS = "rows/", "weights/", "grads/"


def key_of(frame: Frame) -> Key:
    """The task that a frame is about."""
    match frame.head.get("key"):
        case [int(epoch), int(stage), int(direction), int(interval)] if direction in tuple(Direction):
            return Key(epoch, stage, Direction(direction), interval)
    raise FrameError(
        f"a {frame.kind.name} frame is about task {str(frame.head.get('key'))[:40]}, which is none"
    )


def field_of(frame: Frame, name: str, kind: type[T]) -> T:
    """One of a frame's particulars, of a given type; raises FrameError."""
    value = frame.head.get(name)
    if not isinstance(value, kind) or type(value) is not kind:
        raise FrameError(f"a {frame.kind.name} frame has {name} {value!r:.40}, expected {kind.__name__}")
    return value


def offer(task: Task) -> dict[str, Any]:
    """The head of an offer."""
    size = sum(array.nbytes for array in task.arrays.values())
    return {"key": list(task.key), "version": task.version, "bytes": size}


def ask(
    task: Task, weights: Arrays, segments: Segments | None = None, slot: Slot | None = None
) -> tuple[dict[str, Any], Arrays]:
    """The head and arrays of a task, with the weights that the worker lacks; what it can see in segments is named.

    ``slot`` is where its result may be laid.
    """
    shared, sent = {}, _named(_ROWS, task.arrays) | _named(_WEIGHTS, weights)
    for name, array in list(sent.items()):
        placed = None if segments is None else segments.place(array)
        if placed is not None:
            shared[name] = [*placed, array.dtype.name, list(array.shape)]
            del sent[name]
    head = {"key": list(task.key), "version": task.version, "training": task.training, "shared": shared}
    return head | {"into": [] if slot is None else [slot.name, slot.path, slot.size]}, sent


def asked(frame: Frame, mapped: Mapped) -> tuple[Task, Arrays]:
    """The task of a frame, and the weights that came with it."""
    version, training = field_of(frame, "version", int), field_of(frame, "training", bool)
    arrays = dict(frame.arrays)
    for name, (segment, offset, dtype, shape) in field_of(frame, "shared", dict).items():
        arrays[name] = mapped.array(Placed(segment, offset), _dtype(frame, name, dtype), tuple(shape))
    return Task(key_of(frame), version, _of(arrays, _ROWS), training), _of(arrays, _WEIGHTS)


def answer(task: Task, result: Result, desk: Desk, into: list[Any]) -> tuple[dict[str, Any], Arrays]:
    """The head and arrays of a result; it is laid into a slot where one is named and large enough."""
    head = {"key": list(task.key), "seconds": float(result.seconds)}
    arrays = _named(_ROWS, result.arrays) | _named(_GRADS, result.grads)
    laid = desk.lay(arrays, *into) if into else None
    return (head, arrays) if laid is None else (head | {"laid": laid}, {})


def answered(frame: Frame, slot: Slot | None = None) -> Result:
    """The result of a frame, or of the slot that its task had."""
    seconds = field_of(frame, "seconds", float)
    if "laid" not in frame.head:
        return Result(_of(frame.arrays, _ROWS), _of(frame.arrays, _GRADS), seconds)
    arrays = {}
    for name, place in field_of(frame, "laid", dict).items():
        arrays[name] = _laid(frame, name, place, slot)
    assert slot is not None
    grads = {name: grad.copy() for name, grad in _of(arrays, _GRADS).items()}  # they are kept for long
    return Result(_of(arrays, _ROWS), grads, seconds, spent=slot.free)


def _laid(frame: Frame, name: str, place: object, slot: Slot | None) -> np.ndarray:
    found = None
    match place:
        case [int(offset), dtype, list(shape)] if all(type(each) is int and each >= 0 for each in shape):
            found = None if slot is None else slot.array(offset, _dtype(frame, name, dtype), tuple(shape))
    if found is None:
        raise FrameError(f"array {name!r} is said to be laid at {str(place)[:60]}, where it had no room")
    return found


def _dtype(frame: Frame, name: str, dtype: object) -> np.dtype:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FrameError(
            f"array {name!r} of a {frame.kind.name} frame is of {dtype!r:.40}, expected one of {', '.join(DTYPES)}"
        )
    return DTYPES[dtype]


def _named(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {prefix + name: array for name, array in arrays.items()}


def _of(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
