"""A faulty worker process: it computes tasks, but corrupts most of its results, each in another way."""

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np

from siafu.workers.lease import Lease
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.worker import CannotServe, parse_inherited, serve


def _main_array(result: Result) -> str:
    return next(iter(result.arrays))


def one_row(result: Result) -> Result:
    name = _main_array(result)
    return replace(result, arrays={**result.arrays, name: np.ones_like(result.arrays[name][:1])})


def fewer_columns(result: Result) -> Result:
    name = _main_array(result)
    return replace(result, arrays={**result.arrays, name: result.arrays[name][..., :-1].copy()})


def another_dtype(result: Result) -> Result:
    return replace(result, arrays={name: array.astype(np.float16) for name, array in result.arrays.items()})


def not_finite(result: Result) -> Result:
    return replace(
        result, arrays={name: np.full_like(array, np.nan) for name, array in result.arrays.items()}
    )


def missing(result: Result) -> Result:
    return replace(result, arrays={})


def extra(result: Result) -> Result:
    return replace(result, arrays={**result.arrays, "more": np.ones(3)})


def no_grads(result: Result) -> Result:
    return replace(result, grads={}) if result.grads else missing(result)


def extra_grad(result: Result) -> Result:
    return replace(result, grads={**result.grads, "layers.9.weight": np.ones(3, np.float32)})


CORRUPTIONS = [one_row, fewer_columns, another_dtype, not_finite, missing, extra, no_grads, extra_grad]


def corrupting(do: Callable[[Task, Arrays], Result], first: int) -> Callable[[Task, Arrays], Result]:
    """Return a compute function of which every second result is corrupt."""
    numbers = count()

    def corrupt(task: Task, weights: Arrays) -> Result:
        number, result = next(numbers), do(task, weights)
        return result if number % 2 else CORRUPTIONS[(first + number // 2) % len(CORRUPTIONS)](result)

    return corrupt


def main() -> None:
    from siafu.workers.torch_compute import TorchCompute

    def factory(setup: Setup) -> Callable[[Task, Arrays], Result]:
        return corrupting(TorchCompute(setup), lease.port + int(lease.worker.rpartition("-")[2]) * 3)

    lease = Lease.from_json(sys.stdin.read())
    try:
        serve(lease, factory, inherited=parse_inherited(sys.argv[2]))
    except CannotServe as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
