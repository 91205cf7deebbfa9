"""The workers of one rank, of whatever kind, and where they are had."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from siafu.cost import Lease, Meter, Rates
from siafu.workers.lease import Compute
from siafu.workers.listener import Pool, is_loopback
from siafu.workers.local_worker import start_local, work
from siafu.workers.numpy_backend import compute as compute_twin
from siafu.workers.result_check import Expected
from siafu.workers.session import Served
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Segments
from siafu.workers.signing import lease_key
from siafu.workers.supervisor import Ended, Holder, Launcher
from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_queue import Tasks
from siafu.workers.torch_compute import TorchCompute
from siafu.workers.worker_processes import Processes

LEASE_S = 840.0  # a function may run for 15 minutes
BY_HAND_S = 30 * 86_400.0  # of a lease for people
MOST = 2000  # leases of functions at a time
Do = Callable[[Task, Arrays], Result]
BILLED = ("lambda", "http")  # kinds of workers that are paid by their time


@dataclass(frozen=True)
class Wanted:
    """Which workers a rank wants.

    Attributes:
        kind: inline, threads, processes, lambda, http or ray.
        count: how many; none are started inline.
        run: the run's name.
        host: where the rank listens for those that are elsewhere.
        address: what these are told of that; empty: the same.
        function: the name of the function (lambda), or its URL (http).
        endpoint: of the API that functions are invoked by, or several with commas; empty for AWS itself.
        key_file: of the key that leases of functions are signed with; empty: the environment names it.
    """

    kind: str
    count: int
    run: str = "run"
    host: str = "127.0.0.1"
    address: str = ""
    function: str = ""
    endpoint: str = ""
    key_file: str = ""


class Crew:
    """The workers of one rank. Each takes tasks until the crew is closed."""

    def __init__(
        self,
        wanted: Wanted,
        tasks: Tasks,
        setup: Setup,
        *,
        segments: Segments | None = None,
        say: Callable[[str], None],
    ) -> None:
        self.wanted, self._tasks, self._setup, self._say = wanted, tasks, setup, say
        self._segments = segments
        self._threads: list[threading.Thread] = []
        self._pool: Pool | None = None
        self._launcher: Launcher | None = None
        self._inline: Do | None = None
        self._lock = threading.Lock()
        self._helper: str | None = None  # the thread of this process that does tasks for want of workers
        self._helped = 0
        self._closing = False
        self.gave_up = False  # no more workers are tried
        match wanted.kind:
            case "inline":
                self._inline = TorchCompute(setup)
            case "threads":
                self._start_threads()
            case _:
                self._start_pool()

    @property
    def inline(self) -> bool:
        """Whether tasks are done only where somebody calls :meth:`do_one`."""
        return self._inline is not None

    def do_one(self) -> bool:
        """Do the next task in this thread; whether there was one."""
        assert self._inline is not None
        task = self._tasks.take("inline", wait_s=0)
        if task is not None:
            self._tasks.commit(task.key, "inline", self._inline(task, self._tasks.weights(task.version)))
        return task is not None

    @property
    def served(self) -> list[Served]:
        """What workers elsewhere did and took so far."""
        return [] if self._pool is None else self._pool.served

    def used(self, rates: Rates, memory_mb: int) -> Meter:
        """What functions have used so far; but for bytes nothing where workers run on machines that are paid anyway."""
        served_all = self.served
        meter = Meter(within_zone_bytes=sum(served.bytes_out + served.bytes_in for served in served_all))
        if self.wanted.kind not in BILLED:
            return meter
        for served in served_all:
            init_s = float(served.report.get("init_s", 0.0))
            ended_s = time.time() if served.left_s is None else served.left_s
            lease = Lease(ended_s - served.came_s, init_s=init_s, memory_mb=memory_mb)
            meter = meter.with_lease(lease, rates.function)
        return meter

    def close(self) -> None:
        """End all workers, and the tasks."""
        self._closing = True
        if self._pool is not None:
            self._pool.close()
        if self._launcher is not None:
            self._launcher.close()
        self._tasks.close()
        for thread in self._threads:
            thread.join()

    def _start_threads(self) -> None:
        before = torch.get_num_threads()  # a new thread takes the last number that anyone set
        for number in range(self.wanted.count):
            serve = partial(_serve, self._tasks, f"thread {number}", self._setup)
            thread = threading.Thread(target=serve, name=f"siafu worker {number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        torch.set_num_threads(before)
        self._threads.append(start_local(self._tasks, TorchCompute(self._setup)))

    def _start_pool(self) -> None:
        wanted = self.wanted
        self._pool = Pool(
            self._tasks,
            self._setup,
            run=wanted.run,
            host=wanted.host,
            address=wanted.address or None,
            segments=self._segments,
            expected=Expected(self._do()),
            say=self._say,
        )
        self._threads.append(start_local(self._tasks, self._do()))
        self._launcher = Launcher(_holder(wanted, self._pool), on_end=self._lease_ended)
        self.resize(wanted.count)

    def resize(self, count: int) -> None:
        """Have so many workers from now on; with none, this process does the tasks."""
        assert self._pool is not None
        assert self._launcher is not None
        count = 0 if self.gave_up else count
        pool, compute, surplus = self._pool, self._compute, self._launcher.wanted - count
        self._launcher.start(lambda: pool.lease(seconds=LEASE_S, compute=compute), count)
        if surplus > 0:
            pool.dismiss(surplus)
        self._help_out(on=count == 0)

    def wait(self, seconds: float) -> None:
        """Return once a worker is there, or this process does the tasks, or after a while."""
        if self._pool is not None and self._helper is None:
            self._pool.wait_present(seconds, or_else=lambda: self._helper is not None)

    def rescue(self) -> None:
        """Nothing has happened for a while: where tasks wait and no worker is there, this process does them."""
        if self._pool is None or self._helper is not None or self._pool.present or not self._tasks.backlog:
            return
        self._say("no worker is there: this process does their tasks itself")
        self._help_out(on=True)

    def write_lease(self, path: Path) -> bool:
        """Write a lease for workers that people start, for the owner's eyes alone; whether there can be such."""
        if self._pool is None:
            return False
        lease = self._pool.lease(seconds=BY_HAND_S, compute=self._compute)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(lease.to_json())
        return True

    def _help_out(self, *, on: bool) -> None:
        """Do tasks in a thread of this process, or no more."""
        with self._lock:
            if on and self._helper is None:
                self._helped += 1
                self._helper = f"here {self._helped}"
                serve = partial(work, self._tasks, self._helper, self._do())
                self._threads.append(threading.Thread(target=serve, name="siafu-here", daemon=True))
                self._threads[-1].start()
            elif not on and self._helper is not None:
                self._tasks.dismiss(self._helper)
                self._helper = None

    def _do(self) -> Do:
        return TorchCompute(self._setup) if self._compute == "torch" else partial(compute_twin, self._setup)

    @property
    def _compute(self) -> Compute:
        return "torch" if self.wanted.kind == "processes" else "twin"

    def _lease_ended(self, ended: Ended) -> None:
        if not ended.reason or self._closing:
            return
        self._say(f"{ended.worker}: {ended.reason}")
        if ended.fatal:
            self._say("no more workers are tried: this process does their tasks itself")
            self.gave_up = True
            self._help_out(on=True)
            assert self._pool is not None
            self._pool.wake()


def _serve(tasks: Tasks, name: str, setup: Setup) -> None:
    torch.set_num_threads(1)
    work(tasks, name, TorchCompute(setup))


def _holder(wanted: Wanted, pool: Pool) -> Holder:
    match wanted.kind:
        case "processes":
            return Processes(adopt=pool.adopt)
        case "lambda":
            from siafu.workers.aws_lambda import Functions

            if not wanted.function:
                raise ValueError(
                    "pipeline.workers is lambda, but pipeline.function names none; give its name"
                )
            if not wanted.endpoint and is_loopback(wanted.host):
                raise ValueError(
                    f"pipeline.host is {wanted.host}, which no function at AWS can reach; set it to 0.0.0.0, and "
                    "pipeline.address to an address of this machine that functions reach"
                )
            urls = [url.strip() for url in wanted.endpoint.split(",") if url.strip()]
            key = lease_key(os.environ, wanted.key_file)
            return Functions(wanted.function, key=key, endpoint_urls=urls, most=max(1, len(urls) or MOST))
        case "http":
            from siafu.workers.http_functions import Http

            return Http(wanted.function, key=lease_key(os.environ, wanted.key_file))
        case "ray":
            from siafu.workers.ray_tasks import RayTasks

            return RayTasks()
    raise AssertionError(wanted.kind)
