"""An epoch with remote workers: a process, and the packaged function in AWS's runtime."""

import queue
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from emulators import emulators, listening
from staged import VERSION, Staged, model_of, setup_of, weights_of
from stub_tasks import LONG_S

from siafu.nn import Model
from siafu.workers.aws_lambda import LambdaPlatform
from siafu.workers.lambda_package import write_package
from siafu.workers.lease import Backend
from siafu.workers.listener import WorkerListener
from siafu.workers.numpy_backend import compute as compute_numpy
from siafu.workers.setup import Setup
from siafu.workers.supervisor import LeaseSupervisor, WorkerPlatform
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_outcome import CompletedTask, FailedTask
from siafu.workers.task_queue import TaskQueue
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker_processes import ProcessPlatform


@contextmanager
def remote(
    setup: Setup, model: Model, platform: WorkerPlatform, backend: Backend
) -> Iterator[Callable[[Task, Arrays], Result]]:
    """A compute function that has a worker of the platform compute each task."""
    outcomes: queue.SimpleQueue[CompletedTask | FailedTask] = queue.SimpleQueue()
    tasks = TaskQueue(outcomes.put)
    tasks.publish(VERSION, weights_of(model))

    def compute(task: Task, _: Arrays) -> Result:
        tasks.put(task, (0,))
        done = outcomes.get(timeout=LONG_S)
        assert isinstance(done, CompletedTask), str(done)
        assert done.task is task
        return done.result

    with WorkerListener(tasks, setup) as listener, LeaseSupervisor(platform) as supervisor:
        supervisor.set_target(lambda: listener.issue_lease(seconds=60, backend=backend), 1)
        yield compute
        listener.close()
    tasks.close()


def assert_same_epoch(platform: WorkerPlatform, backend: Backend = "numpy") -> None:
    """Check that an epoch by the platform's workers has the same bits as in this process."""
    model = model_of("sage")
    setup = setup_of(model)
    by_torch = TorchCompute(setup)

    def here(task: Task, weights: Arrays) -> Result:
        return compute_numpy(setup, task, weights) if backend == "numpy" else by_torch(task, weights)

    with remote(setup, model, platform, backend) as there:

        def both(task: Task, weights: Arrays) -> Result:
            found, wanted = there(task, weights), here(task, weights)
            for some, others in ((found.arrays, wanted.arrays), (found.grads, wanted.grads)):
                assert some.keys() == others.keys()
                for name, array in others.items():
                    np.testing.assert_array_equal(some[name], array, strict=True)
            return found

        Staged(both, model, setup, training=True).run()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_epoch_by_worker_processes_is_the_same_to_the_bit(backend: Backend) -> None:
    assert_same_epoch(ProcessPlatform(), backend)


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
        assert_same_epoch(LambdaPlatform("function", key=key, endpoint_urls=listening(places)))
