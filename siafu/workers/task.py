"""Tensor tasks: arrays in, arrays out. They know no torch, no rank, no graph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

Arrays = Mapping[str, np.ndarray]


class Direction(IntEnum):
    """The pass that a task makes through its stage."""

    FORWARD = 0
    BACKWARD = 1
    LEARN = 2  # the last stage: outputs, loss and backward pass in one task

    __hash__ = int.__hash__  # an enum's own is Python, and keys are looked up many times a task


class Key(NamedTuple):
    """The identity of a task. A task may run several times; one result is committed."""

    epoch: int
    stage: int
    direction: Direction
    interval: int


@dataclass(frozen=True, eq=False)
class Task:
    """The inputs of a task, beside the weights.

    Attributes:
        key: its identity; dropout depends on its epoch.
        version: of the weights.
        arrays: rows of one interval, by name.
            ``m`` (R, Z): the aggregate of the layer before; ``x`` (R, I): the inputs of that layer, if its update reads
            them (stage 0: the inputs of the model); ``h1``, ``h2``, …: the outputs of the layers before, in the last
            stage of a model with ``jump``; ``row_id`` (R,) int64: the nodes, for dropout.
            Backward also ``grad_z``, and ``grad_h`` if something beside the aggregate reads the stage's rows.
            Learn also ``rows`` (T,) int64, the labelled rows, and ``y``: (T,) int64, or (T, C) float.
        training: whether dropout is on.
    """

    key: Key
    version: int
    arrays: Arrays
    training: bool = True


@dataclass(frozen=True, eq=False)
class Result:
    """The outputs of a task.

    Attributes:
        arrays: forward: ``z``, which the next layer aggregates, or the model's outputs; and ``h``, the next layer's
            inputs, if they differ from ``z`` and are read again (see :func:`siafu.workers.stages.returns_h`).
            Backward and learn: ``grad_m``, and ``grad_x`` if ``x`` was read, unless they are of static inputs;
            ``grad_h1``, … if these were read. Learn also ``loss`` (1,) float64.
        grads: of the weights that the stage reads, by their names in the model.
        seconds: of computing.
        release: to be called once ``arrays`` were read, if they lie in memory that is reused.
    """

    arrays: Arrays
    grads: Arrays = field(default_factory=dict)
    seconds: float = 0.0
    release: Callable[[], None] = lambda: None


ComputeFn = Callable[[Task, Arrays], Result]  # computes a task with the weights that its stage reads
