"""An epoch whose tensor work is done by the worker as it is shipped: a process, and a function in AWS's runtime."""

import queue
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from emulators import emulators, listening
from known_tasks import LONG_S
from staged import VERSION, Staged, model_of, setup_of, weights_of

from siafu.nn import Model
from siafu.workers.aws_lambda import Functions
from siafu.workers.lambda_package import write_package
from siafu.workers.lease import Compute
from siafu.workers.listener import Pool
from siafu.workers.numpy_backend import compute as twin
from siafu.workers.setup import Setup
from siafu.workers.supervisor import Holder, Launcher
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_queue import Done, Failed, Tasks
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker_processes import Processes


@contextmanager
def remote(
    setup: Setup, model: Model, holder: Holder, how: Compute
) -> Iterator[Callable[[Task, Arrays], Result]]:
    """A compute that has a worker at that place do each task."""
    outcomes: queue.SimpleQueue[Done | Failed] = queue.SimpleQueue()
    tasks = Tasks(outcomes.put)
    tasks.publish(VERSION, weights_of(model))

    def do(task: Task, _: Arrays) -> Result:
        tasks.put(task, (0,))
        done = outcomes.get(timeout=LONG_S)
        assert isinstance(done, Done), str(done)
        assert done.task is task
        return done.result

    with Pool(tasks, setup) as pool, Launcher(holder) as launcher:
        launcher.start(lambda: pool.lease(seconds=60, compute=how), 1)
        yield do
        pool.close()
    tasks.close()


def assert_same_epoch(holder: Holder, how: Compute = "twin") -> None:
    """An epoch by workers there is the same to the bit as here."""
    model = model_of("sage")
    setup = setup_of(model)
    by_torch = TorchCompute(setup)

    def here(task: Task, weights: Arrays) -> Result:
        return twin(setup, task, weights) if how == "twin" else by_torch(task, weights)

    with remote(setup, model, holder, how) as there:

        def both(task: Task, weights: Arrays) -> Result:
            found, wanted = there(task, weights), here(task, weights)
            for some, others in ((found.arrays, wanted.arrays), (found.grads, wanted.grads)):
                assert some.keys() == others.keys()
                for name, array in others.items():
                    np.testing.assert_array_equal(some[name], array, strict=True)
            return found

        Staged(both, model, setup, training=True).run()


@pytest.mark.parametrize("how", ["twin", "torch"])
def test_an_epoch_by_worker_processes_is_the_same_to_the_bit(how: Compute) -> None:
    assert_same_epoch(Processes(), how)


@pytest.mark.usefixtures("_emulator")
def test_an_epoch_by_the_lambda_package_in_its_real_runtime_is_the_same_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: bytes
) -> None:
    pytest.importorskip("boto3", reason="boto3 is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "nobody")
    write_package(tmp_path / "worker.zip")
    with zipfile.ZipFile(tmp_path / "worker.zip") as package:
        package.extractall(tmp_path / "task")
    with emulators(1, tmp_path / "task", handler="siafu.workers.handler.handler") as places:
        assert_same_epoch(Functions("function", key=key, endpoint_urls=listening(places)))
