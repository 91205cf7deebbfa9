"""The worker pool of one rank: starts workers of any kind, and resizes and closes the pool."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from siafu.cost import Invocation, Meter, Rates
from siafu.workers.lease import Backend
from siafu.workers.listener import WorkerListener, is_loopback
from siafu.workers.local_worker import run_tasks, start_fallback_thread
from siafu.workers.numpy_backend import compute as compute_twin
from siafu.workers.result_check import ResultChecker
from siafu.workers.session import WorkerUsage
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Segments
from siafu.workers.signing import BILLED_KINDS, lease_key
from siafu.workers.supervisor import LeaseEnd, LeaseSupervisor, WorkerPlatform
from siafu.workers.task import ComputeFn
from siafu.workers.task_queue import TaskQueue
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker_processes import ProcessPlatform

LEASE_S = 840.0  # a function may run for 15 minutes
MANUAL_LEASE_S = 30 * 86_400.0  # of a lease for workers that people start
MAX_LEASES = 2000  # of functions at a time


@dataclass(frozen=True)
class WorkerSpec:
    """The workers that a rank wants.

    Attributes:
        kind: inline, threads, processes, lambda, http or ray.
        count: how many; none are started for ``inline``.
        run: the run's name.
        host: the address on which the rank listens for workers.
        address: the address in leases, if it is not ``host``.
        function: the name of the function (lambda), or its URL (http).
        endpoint: the URL of the Lambda API, or several with commas; empty for AWS itself.
        key_file: holds the key that leases of functions are signed with; empty: the environment names it.
    """

    kind: str
    count: int
    run: str = "run"
    host: str = "127.0.0.1"
    address: str = ""
    function: str = ""
    endpoint: str = ""
    key_file: str = ""


class WorkerPool:
    """The workers of one rank. Each takes tasks from the queue until the pool is closed."""

    def __init__(
        self,
        spec: WorkerSpec,
        tasks: TaskQueue,
        setup: Setup,
        *,
        segments: Segments | None = None,
        say: Callable[[str], None],
    ) -> None:
        self.spec, self._tasks, self._setup, self._say = spec, tasks, setup, say
        self._segments = segments
        self._threads: list[threading.Thread] = []
        self._listener: WorkerListener | None = None
        self._supervisor: LeaseSupervisor | None = None
        self._inline: ComputeFn | None = None
        self._lock = threading.Lock()
        self._stand_in: str | None = (
            None  # the thread of this process that computes tasks for want of workers
        )
        self._num_stand_ins = 0
        self._first_threads = list[str]()  # threads of this process that compute tasks while workers start
        self._closing = False
        self.gave_up = False  # no more workers are started
        match spec.kind:
            case "inline":
                self._inline = TorchCompute(setup)
            case "threads":
                self._start_threads()
            case _:
                self._start_listener()

    @property
    def inline(self) -> bool:
        """Whether tasks are computed by :meth:`run_one` alone."""
        return self._inline is not None

    def run_one(self) -> bool:
        """Compute the next task in this thread; returns whether there was one."""
        assert self._inline is not None
        task = self._tasks.take("inline", wait_s=0)
        if task is not None:
            self._tasks.commit(task.key, "inline", self._inline(task, self._tasks.weights(task.version)))
        return task is not None

    @property
    def usage(self) -> list[WorkerUsage]:
        """The usage of connected workers so far."""
        return [] if self._listener is None else self._listener.usage

    def meter(self, rates: Rates, memory_mb: int) -> Meter:
        """Meter the billed use so far: bytes to and from workers, and the time of functions."""
        usage = self.usage
        meter = Meter(within_zone_bytes=sum(each.bytes_out + each.bytes_in for each in usage))
        if self.spec.kind not in BILLED_KINDS:
            return meter
        for each in usage:
            init_s = float(each.report.get("init_s", 0.0))
            ended_s = time.time() if each.left_s is None else each.left_s
            invocation = Invocation(ended_s - each.came_s, init_s=init_s, memory_mb=memory_mb)
            meter = meter.with_invocation(invocation, rates.function)
        return meter

    def close(self) -> None:
        """End all workers, and close the queue."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        if self._supervisor is not None:
            self._supervisor.close()
        self._tasks.close()
        for thread in self._threads:
            thread.join()

    def _start_threads(self) -> None:
        self._run_torch_threads([f"thread {number}" for number in range(self.spec.count)])
        self._threads.append(start_fallback_thread(self._tasks, TorchCompute(self._setup)))

    def _run_torch_threads(self, names: Sequence[str]) -> None:
        """Compute tasks in threads of this process, each with one thread of torch."""
        before = torch.get_num_threads()  # a new thread takes over the number that was set last
        for name in names:
            target = partial(_run_torch_thread, self._tasks, name, self._setup)
            thread = threading.Thread(target=target, name=f"siafu {name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        torch.set_num_threads(before)

    def _start_listener(self) -> None:
        spec = self.spec
        self._listener = WorkerListener(
            self._tasks,
            self._setup,
            run=spec.run,
            host=spec.host,
            address=spec.address or None,
            segments=self._segments,
            checker=ResultChecker(self._make_compute()),
            say=self._say,
        )
        self._threads.append(start_fallback_thread(self._tasks, self._make_compute()))
        self._supervisor = LeaseSupervisor(_platform(spec, self._listener), on_end=self._on_lease_end)
        self.resize(spec.count)
        if spec.kind == "processes":
            self._compute_until_ready()

    def _compute_until_ready(self) -> None:
        """Compute tasks in as many threads of this process as there are workers; each ends when a worker is ready."""
        self._first_threads = [f"start {number}" for number in range(self.spec.count)]
        self._run_torch_threads(self._first_threads)
        thread = threading.Thread(target=self._hand_over, name="siafu-hand-over", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _hand_over(self) -> None:
        assert self._listener is not None
        for count in range(1, self.spec.count + 1):
            self._listener.wait_ready(count=count)
            self._tasks.dismiss(self._first_threads.pop())

    def resize(self, count: int) -> None:
        """Have ``count`` workers from now on; with none, this process computes the tasks."""
        assert self._listener is not None
        assert self._supervisor is not None
        count = 0 if self.gave_up else count
        listener, backend, surplus = self._listener, self._backend, self._supervisor.target - count
        self._supervisor.set_target(lambda: listener.issue_lease(seconds=LEASE_S, backend=backend), count)
        if surplus > 0:
            listener.dismiss(surplus)
        self._set_stand_in(on=count == 0)

    def wait_for_worker(self, seconds: float) -> None:
        """Wait until a worker is ready or this process computes tasks itself, for at most ``seconds``."""
        if self._listener is not None and self._stand_in is None and not self._first_threads:
            self._listener.wait_ready(seconds, or_else=lambda: self._stand_in is not None)

    def ensure_progress(self) -> None:
        """Have this process compute tasks if some wait and no worker is connected. Called after a while of silence."""
        if self._listener is None or self._stand_in is not None or self._first_threads:
            return
        if self._listener.num_ready or not self._tasks.backlog:
            return
        self._say("no worker is there: this process does their tasks itself")
        self._set_stand_in(on=True)

    def write_lease(self, path: Path) -> bool:
        """Write a lease for workers that people start, readable by its owner alone; False if the kind has none."""
        if self._listener is None:
            return False
        lease = self._listener.issue_lease(seconds=MANUAL_LEASE_S, backend=self._backend)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(lease.to_json())
        return True

    def _set_stand_in(self, *, on: bool) -> None:
        """Start or stop computing tasks in a thread of this process."""
        with self._lock:
            if on and self._stand_in is None:
                self._num_stand_ins += 1
                self._stand_in = f"here {self._num_stand_ins}"
                target = partial(run_tasks, self._tasks, self._stand_in, self._make_compute())
                self._threads.append(threading.Thread(target=target, name="siafu-here", daemon=True))
                self._threads[-1].start()
            elif not on and self._stand_in is not None:
                self._tasks.dismiss(self._stand_in)
                self._stand_in = None

    def _make_compute(self) -> ComputeFn:
        return TorchCompute(self._setup) if self._backend == "torch" else partial(compute_twin, self._setup)

    @property
    def _backend(self) -> Backend:
        return "torch" if self.spec.kind == "processes" else "numpy"

    def _on_lease_end(self, end: LeaseEnd) -> None:
        if not end.reason or self._closing:
            return
        self._say(f"{end.worker}: {end.reason}")
        if end.fatal:
            self._say("no more workers are tried: this process does their tasks itself")
            self.gave_up = True
            self._set_stand_in(on=True)
            assert self._listener is not None
            self._listener.notify()


def _run_torch_thread(tasks: TaskQueue, name: str, setup: Setup) -> None:
    torch.set_num_threads(1)
    run_tasks(tasks, name, TorchCompute(setup))


def _platform(spec: WorkerSpec, listener: WorkerListener) -> WorkerPlatform:
    match spec.kind:
        case "processes":
            return ProcessPlatform(adopt=listener.adopt)
        case "lambda":
            from siafu.workers.aws_lambda import LambdaPlatform

            if not spec.function:
                raise ValueError(
                    "pipeline.workers is lambda, but pipeline.function names none; give its name"
                )
            if not spec.endpoint and is_loopback(spec.host):
                raise ValueError(
                    f"pipeline.host is {spec.host}, which no function at AWS can reach; set it to 0.0.0.0, and "
                    "pipeline.address to an address of this machine that functions reach"
                )
            urls = [url.strip() for url in spec.endpoint.split(",") if url.strip()]
            key, max_leases = lease_key(os.environ, spec.key_file), max(1, len(urls) or MAX_LEASES)
            return LambdaPlatform(spec.function, key=key, endpoint_urls=urls, max_leases=max_leases)
        case "http":
            from siafu.workers.http_functions import HttpPlatform

            return HttpPlatform(spec.function, key=lease_key(os.environ, spec.key_file))
        case "ray":
            from siafu.workers.ray_tasks import RayPlatform

            return RayPlatform()
    raise AssertionError(spec.kind)
