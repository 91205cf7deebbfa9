"""What a graph server and a worker say to each other, as frames: keys, tasks, results. No socket."""

import mmap
from typing import Any, TypeVar

import numpy as np

from siafu.wire.frames import FrameError
from siafu.workers.result_slots import Slot, write_result
from siafu.workers.shared_memory import Placed, Received, Segments
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.task_frames import DTYPES, MAX_DIMS, Frame

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
    head = {"key": list(task.key), "version": task.version, "training": task.training}
    head |= {"shared": shared} if shared else {}
    return head | ({} if slot is None else {"slot": slot.number}), sent


def asked(frame: Frame, received: Received | None) -> tuple[Task, Arrays]:
    """The task of a frame, and the weights that came with it; arrays that it names lie in memory that was received."""
    version, training = field_of(frame, "version", int), field_of(frame, "training", bool)
    arrays = dict(frame.arrays)
    if "shared" in frame.head:
        for name, place in field_of(frame, "shared", dict).items():
            arrays[name] = _shared(frame, name, place, received)
    return Task(key_of(frame), version, _of(arrays, _ROWS), training), _of(arrays, _WEIGHTS)


def slot_of(frame: Frame, received: Received | None) -> mmap.mmap | None:
    """The memory for the result of a task, which was received; None where its frame names none."""
    if "slot" not in frame.head:
        return None
    if received is None:
        raise FrameError("a task names shared memory for its result, which this worker has none of")
    return received.slot(field_of(frame, "slot", int))


def answer(task: Task, result: Result, slot: mmap.mmap | None) -> tuple[dict[str, Any], Arrays]:
    """The head and arrays of a result; it is written into the slot where there is one that is large enough."""
    head = {"key": list(task.key), "seconds": float(result.seconds)}
    arrays = _named(_ROWS, result.arrays) | _named(_GRADS, result.grads)
    laid = None if slot is None else write_result(arrays, slot)
    return (head, arrays) if laid is None else (head | {"laid": laid}, {})


def answered(frame: Frame, slot: Slot | None = None) -> Result:
    """The result of a frame, or of the slot that its task had."""
    seconds = seconds_of(frame)
    if "laid" not in frame.head:
        return Result(_of(frame.arrays, _ROWS), _of(frame.arrays, _GRADS), seconds)
    arrays = {}
    for name, place in field_of(frame, "laid", dict).items():
        arrays[name] = _laid(frame, name, place, slot)
    assert slot is not None
    grads = {name: grad.copy() for name, grad in _of(arrays, _GRADS).items()}  # they are kept for long
    return Result(_of(arrays, _ROWS), grads, seconds, spent=slot.free)


def seconds_of(frame: Frame) -> float:
    """The seconds of computing that a result says it took."""
    seconds = field_of(frame, "seconds", float)
    if not 0 <= seconds < 1e9:
        raise FrameError(f"a {frame.kind.name} frame has seconds {seconds}, expected 0 or more")
    return seconds


def _shared(frame: Frame, name: str, place: object, received: Received | None) -> np.ndarray:
    if received is None:
        raise FrameError(f"array {name!r:.60} is named in shared memory, which this worker has none of")
    match place:
        case [int(segment), int(offset), dtype, list(shape)] if _is_shape(shape):
            found = Placed(segment, offset)
            return received.segment(found, _dtype(frame, name, dtype), tuple(shape))
    raise FrameError(
        f"array {name!r:.60} is named at {str(place)[:60]}, expected [segment, offset, dtype, shape]"
    )


def _laid(frame: Frame, name: str, place: object, slot: Slot | None) -> np.ndarray:
    match place:
        case [int(offset), dtype, list(shape)] if slot is not None and _is_shape(shape):
            return slot.array(offset, _dtype(frame, name, dtype), tuple(shape))
    raise FrameError(f"array {name!r:.60} is said to be laid at {str(place)[:60]}, where it had no room")


def _is_shape(shape: list[object]) -> bool:
    return len(shape) <= MAX_DIMS and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)


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
