"""Tensor tasks: arrays in, arrays out. They know no torch, no rank, no graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Direction(IntEnum):
    """What is done in a stage."""

    FORWARD = 0
    BACKWARD = 1
    LEARN = 2  # the last stage: outputs, loss, and the way back, in one

    __hash__ = int.__hash__  # an enum's own is Python, and keys are looked up many times a task


class Key(NamedTuple):
    """Which task it is. A task may run several times; it counts once."""

    epoch: int
    stage: int
    direction: Direction
    interval: int


@dataclass(frozen=True, eq=False)
class Task:
    """What a worker needs to run a task, beside the weights.

    Attributes:
        key: which it is; dropout depends on its epoch.
        version: of the weights.
        arrays: rows of one interval, by name.
            ``m`` (R, Z): the aggregate of the layer before; ``x`` (R, I): the rows given to that layer, where it reads
            them (stage 0: the inputs); ``h1``, ``h2``, …: the outputs of the layers before, in the last stage of a
            model with ``jump``; ``row_id`` (R,) int64: the nodes, for dropout.
            Backward also ``grad_z``, and ``grad_h`` where something beside the aggregate reads the stage's rows.
            Learn also ``rows`` (T,) int64, those that have a label, and ``y``: (T,) int64, or (T, C) float.
        training: whether there is dropout.
    """

    key: Key
    version: int
    arrays: Arrays
    training: bool = True


@dataclass(frozen=True, eq=False)
class Result:
    """What a task gave.

    Attributes:
        arrays: forward: ``z``, what the next layer aggregates, or the model's outputs; and ``h``, the rows that it is
            given, where that is something else and is read again (see :func:`siafu.workers.stages.returns_h`).
            Backward and learn: ``grad_m``, and ``grad_x`` where ``x`` was read, unless they are of static inputs;
            ``grad_h1``, … where these were read. Learn also ``loss`` (1,) float64.
        grads: of the weights the stage reads, by their names in the model.
        seconds: of computing.
        spent: to be called once ``arrays`` were read, where they lie in memory that is used again.
    """

    arrays: Arrays
    grads: Arrays = field(default_factory=dict)
    seconds: float = 0.0
    spent: Callable[[], None] = lambda: None
