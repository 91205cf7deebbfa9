"""The messages between a graph server and a worker: task keys, tasks and results as frames. It knows no socket."""

import mmap
from typing import Any, TypeVar

import numpy as np

from siafu.wire.frames import FrameError
from siafu.workers.result_slots import ResultSlot, write_to_slot
from siafu.workers.shared_memory import ArrayLocation, DescriptorReceiver, Segments
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.task_frames import DTYPES, MAX_DIMS, Frame

T = TypeVar("T")

# An array's name in a frame: a prefix for its use, then its own name.
_ROWS, _WEIGHTS, _GRADS = "rows/", "weights/", "grads/"


def read_key(frame: Frame) -> Key:
    """Read the key of the task that a frame is about."""
    match frame.head.get("key"):
        case [int(epoch), int(stage), int(direction), int(interval)] if direction in tuple(Direction):
            return Key(epoch, stage, Direction(direction), interval)
    raise FrameError(
        f"a {frame.kind.name} frame is about task {str(frame.head.get('key'))[:40]}, which is none"
    )


def read_field(frame: Frame, name: str, kind: type[T]) -> T:
    """Read a field of a frame's head, of a given type; raises FrameError."""
    value = frame.head.get(name)
    if not isinstance(value, kind) or type(value) is not kind:
        raise FrameError(f"a {frame.kind.name} frame has {name} {value!r:.40}, expected {kind.__name__}")
    return value


def pack_offer(task: Task) -> dict[str, Any]:
    """Return the head of an OFFER frame."""
    size = sum(array.nbytes for array in task.arrays.values())
    return {"key": list(task.key), "version": task.version, "bytes": size}


def pack_task(
    task: Task, weights: Arrays, segments: Segments | None = None, slot: ResultSlot | None = None
) -> tuple[dict[str, Any], Arrays]:
    """Return the head and arrays of a TASK frame, with the weights that the worker lacks.

    Arrays that lie in ``segments`` are named by location instead of sent. ``slot`` is memory for the result.
    """
    shared, sent = {}, _with_prefix(_ROWS, task.arrays) | _with_prefix(_WEIGHTS, weights)
    for name, array in list(sent.items()):
        location = None if segments is None else segments.locate(array)
        if location is not None:
            shared[name] = [*location, array.dtype.name, list(array.shape)]
            del sent[name]
    head = {"key": list(task.key), "version": task.version, "training": task.training}
    head |= {"shared": shared} if shared else {}
    return head | ({} if slot is None else {"slot": slot.number}), sent


def unpack_task(frame: Frame, receiver: DescriptorReceiver | None) -> tuple[Task, Arrays]:
    """Return the task of a TASK frame, and the weights that came with it. ``receiver`` maps shared arrays."""
    version, training = read_field(frame, "version", int), read_field(frame, "training", bool)
    arrays = dict(frame.arrays)
    if "shared" in frame.head:
        for name, place in read_field(frame, "shared", dict).items():
            arrays[name] = _shared_array(frame, name, place, receiver)
    return Task(read_key(frame), version, _with_use(arrays, _ROWS), training), _with_use(arrays, _WEIGHTS)


def read_slot(frame: Frame, receiver: DescriptorReceiver | None) -> mmap.mmap | None:
    """Return the shared memory for the result of a task; None if its frame names no slot."""
    if "slot" not in frame.head:
        return None
    if receiver is None:
        raise FrameError("a task names shared memory for its result, which this worker has none of")
    return receiver.slot(read_field(frame, "slot", int))


def pack_result(task: Task, result: Result, slot: mmap.mmap | None) -> tuple[dict[str, Any], Arrays]:
    """Return the head and arrays of a RESULT frame. The arrays are written into the slot if they fit."""
    head = {"key": list(task.key), "seconds": float(result.seconds)}
    arrays = _with_prefix(_ROWS, result.arrays) | _with_prefix(_GRADS, result.grads)
    locations = None if slot is None else write_to_slot(arrays, slot)
    return (head, arrays) if locations is None else (head | {"in_slot": locations}, {})


def unpack_result(frame: Frame, slot: ResultSlot | None = None) -> Result:
    """Return the result of a RESULT frame, whose arrays are in the frame or in the slot of its task."""
    seconds = read_seconds(frame)
    if "in_slot" not in frame.head:
        return Result(_with_use(frame.arrays, _ROWS), _with_use(frame.arrays, _GRADS), seconds)
    arrays = {}
    for name, place in read_field(frame, "in_slot", dict).items():
        arrays[name] = _slot_array(frame, name, place, slot)
    assert slot is not None
    # Gradients are copied: they are needed after the slot is reused.
    grads = {name: grad.copy() for name, grad in _with_use(arrays, _GRADS).items()}
    return Result(_with_use(arrays, _ROWS), grads, seconds, release=slot.free)


def read_seconds(frame: Frame) -> float:
    """Read the seconds of computing that a RESULT frame reports."""
    seconds = read_field(frame, "seconds", float)
    if not 0 <= seconds < 1e9:
        raise FrameError(f"a {frame.kind.name} frame has seconds {seconds}, expected 0 or more")
    return seconds


def _shared_array(frame: Frame, name: str, place: object, receiver: DescriptorReceiver | None) -> np.ndarray:
    if receiver is None:
        raise FrameError(f"array {name!r:.60} is named in shared memory, which this worker has none of")
    match place:
        case [int(segment), int(offset), dtype, list(shape)] if _is_shape(shape):
            location = ArrayLocation(segment, offset)
            return receiver.array(location, _dtype(frame, name, dtype), tuple(shape))
    raise FrameError(
        f"array {name!r:.60} is named at {str(place)[:60]}, expected [segment, offset, dtype, shape]"
    )


def _slot_array(frame: Frame, name: str, place: object, slot: ResultSlot | None) -> np.ndarray:
    match place:
        case [int(offset), dtype, list(shape)] if slot is not None and _is_shape(shape):
            return slot.array(offset, _dtype(frame, name, dtype), tuple(shape))
    raise FrameError(f"array {name!r:.60} is said to be at {str(place)[:60]} of a slot, where it had no room")


def _is_shape(shape: list[object]) -> bool:
    return len(shape) <= MAX_DIMS and all(type(size) is int and 0 <= size < 1 << 48 for size in shape)


def _dtype(frame: Frame, name: str, dtype: object) -> np.dtype:
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FrameError(
            f"array {name!r} of a {frame.kind.name} frame is of {dtype!r:.40}, expected one of {', '.join(DTYPES)}"
        )
    return DTYPES[dtype]


def _with_prefix(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {prefix + name: array for name, array in arrays.items()}


def _with_use(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
