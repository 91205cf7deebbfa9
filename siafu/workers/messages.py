"""What a graph server and a worker say to each other, as frames: keys, tasks, results. No socket."""

from typing import Any, TypeVar

from siafu.workers.frames import DTYPES, Frame, FrameError
from siafu.workers.shared import Mapped, Placed, Segments
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


def ask(task: Task, weights: Arrays, segments: Segments | None = None) -> tuple[dict[str, Any], Arrays]:
    """The head and arrays of a task, with the weights that the worker lacks; what it can see in segments is named."""
    head = {"key": list(task.key), "version": task.version, "training": task.training}
    shared, sent = {}, dict(task.arrays)
    for name, array in task.arrays.items():
        placed = None if segments is None else segments.place(array)
        if placed is not None:
            shared[name] = [*placed, array.dtype.name, list(array.shape)]
            del sent[name]
    return head | {"shared": shared}, _named(_ROWS, sent) | _named(_WEIGHTS, weights)


def asked(frame: Frame, mapped: Mapped) -> tuple[Task, Arrays]:
    """The task of a frame, and the weights that came with it."""
    version, training = field_of(frame, "version", int), field_of(frame, "training", bool)
    rows = dict(_of(frame, _ROWS))
    for name, (segment, offset, dtype, shape) in field_of(frame, "shared", dict).items():
        if dtype not in DTYPES:
            raise FrameError(
                f"shared array {name!r} is of {dtype!r:.40}, expected one of {', '.join(DTYPES)}"
            )
        rows[name] = mapped.array(Placed(segment, offset), DTYPES[dtype], tuple(shape))
    return Task(key_of(frame), version, rows, training), _of(frame, _WEIGHTS)


def answer(task: Task, result: Result) -> tuple[dict[str, Any], Arrays]:
    """The head and arrays of a result."""
    head = {"key": list(task.key), "seconds": float(result.seconds)}
    return head, _named(_ROWS, result.arrays) | _named(_GRADS, result.grads)


def answered(frame: Frame) -> Result:
    """The result of a frame."""
    return Result(_of(frame, _ROWS), _of(frame, _GRADS), field_of(frame, "seconds", float))


def _named(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {prefix + name: array for name, array in arrays.items()}


def _of(frame: Frame, prefix: str) -> Arrays:
    return {
        name.removeprefix(prefix): array for name, array in frame.arrays.items() if name.startswith(prefix)
    }
