"""Thousands of leases at one graph server: the CPU time that scheduling a task takes, and that no task is lost.

    python benchmarks/scheduler.py                                       2,000 leases, 4,000 intervals
    python benchmarks/scheduler.py --leases 200 --intervals 400          in seconds
    python benchmarks/scheduler.py --profile                             also where the time goes

The graph server, its gates, its tasks and the loop that serves workers are the real ones, of GCN on a small graph. The
leases are played in that loop: each takes a task, holds it for a random time, and commits arrays of the right shape
that nobody computed. What counts is the CPU time of the server's thread without its kernels, and of the loop's without
making those arrays. CPU time too grows where other work shares the cores: the machine should be quiet.
"""

import argparse
import cProfile
import json
import pstats
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any
from unittest import mock

import numpy as np
import torch
from core import require_core
from one_server import prepared, server_of

from siafu.data import community
from siafu.methods.pipeline import procedure
from siafu.methods.pipeline.config import PipelineConfig
from siafu.nn import ModelConfig
from siafu.nn.aggregates import weighted_sum
from siafu.workers.event_loop import EventLoop
from siafu.workers.setup import Setup
from siafu.workers.stages import rows_with_grad, weights_of
from siafu.workers.task import Direction, Key, Result, Task
from siafu.workers.task_outcome import TaskCounts
from siafu.workers.task_queue import TaskQueue
from siafu.workers.worker_pool import WorkerSpec

FEATURES, CLASSES, HIDDEN = 16, 8, 16
LASTS_S = (0.2, 0.8)  # how long a lease holds a task


class Metered:
    """The CPU seconds that some calls take of the thread that makes them."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def __call__(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began_s = time.thread_time()
        try:
            return run(*args, **kwargs)
        finally:
            self.seconds += time.thread_time() - began_s
            self.calls += 1


class Lease:
    """One lease: it holds one task at a time, and computes nothing."""

    def __init__(self, worker: str, leases: "Leases") -> None:
        self.worker, self._leases = worker, leases
        self.had: set[int] = set()  # intervals

    def receive(self, task: Task | None) -> None:
        if task is not None:
            self._leases.loop.call_soon(partial(self._leases.hold, self, task))

    def wake(self) -> None:
        self._leases.loop.call_soon(partial(self._leases.look, self))


class Leases:
    """A crew whose workers are all played by a loop, as a pool serves its connections; none of them computes."""

    inline = False

    def __init__(self, wanted: WorkerSpec, tasks: TaskQueue, setup: Setup, **_: Any) -> None:
        self.loop, self.played, self.computed, self.most = EventLoop("leases"), Metered(), Counter[Key](), 0
        self._tasks, self._setup, self._held = tasks, setup, 0
        self.moved = 0  # tasks whose lease had not had their interval
        self._grads: dict[int, dict[str, np.ndarray]] = {}
        self._seconds = random.Random(0)
        self.leases = [Lease(f"lease {number}", self) for number in range(wanted.count)]
        for lease in self.leases:
            self.loop.call_soon(partial(self._ask, lease))

    def wait_for_worker(self, seconds: float) -> None:
        """They are there."""

    def ensure_progress(self) -> None:
        """None is lost."""

    def cpu_s(self) -> float:
        """The CPU seconds of the loop's thread so far, without what plays the computing."""
        found: SimpleQueue[float] = SimpleQueue()
        self.loop.call_soon(lambda: found.put(time.thread_time() - self.played.seconds))
        return found.get()

    def close(self) -> None:
        self._tasks.close()
        self.loop.close()

    def hold(self, lease: Lease, task: Task) -> None:
        self.moved += task.key.interval not in lease.had
        lease.had.add(task.key.interval)
        self._held += 1
        self.most = max(self.most, self._held)
        due_s = time.monotonic() + self._seconds.uniform(*LASTS_S)
        self.loop.call_at(due_s, partial(self._commit, lease, task))

    def look(self, lease: Lease) -> None:
        when_s = self._tasks.watch_overdue(lease)
        if when_s is not None:
            self.loop.call_at(when_s, partial(self.look, lease))

    def _ask(self, lease: Lease) -> None:
        task = self._tasks.request(lease)
        if task is None:
            self.look(lease)
        else:
            self.hold(lease, task)

    def _commit(self, lease: Lease, task: Task) -> None:
        self._held -= 1
        result = self.played(self._result, task)
        self.computed[task.key] += 1
        self._tasks.commit(task.key, lease.worker, result)
        self._ask(lease)

    def _result(self, task: Task) -> Result:
        """Zeros of the right shapes."""
        setup, stage, arrays = self._setup, task.key.stage, task.arrays
        rows = len(arrays["row_id"])
        if task.key.direction == Direction.FORWARD:
            return Result({"z": np.zeros((rows, CLASSES), np.float32)})
        given = {f"grad_{name}": np.zeros_like(arrays[name]) for name in rows_with_grad(setup, stage)}
        if task.key.direction == Direction.LEARN:
            given["loss"] = np.ones(1)
        if stage not in self._grads:
            weights = self._tasks.weights(task.version)
            names = weights_of(setup, stage, list(weights))
            self._grads[stage] = {name: np.zeros_like(weights[name]) for name in names}
        return Result(given, self._grads[stage])


class Kernel(weighted_sum.WeightedSumPass):
    """The aggregate, which is no scheduling."""

    metered = Metered()

    def forward(self, rows: slice) -> None:
        Kernel.metered(super().forward, rows)

    def backward(self, rows: slice) -> None:
        Kernel.metered(super().backward, rows)


def main() -> None:
    args = _parse()
    torch.set_num_threads(1)
    nodes = args.intervals * args.rows
    graph = prepared(community(nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0))
    config = PipelineConfig(intervals=args.intervals, workers="ray", num_workers=args.leases, trace_epochs=0)
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; GCN of 2 layers; "
        f"{args.intervals:,} intervals, {args.leases:,} leases",
        flush=True,
    )
    model = ModelConfig(kind="gcn", hidden=HIDDEN)
    with (
        mock.patch.object(procedure, "WorkerPool", Leases),
        mock.patch.object(weighted_sum, "WeightedSumPass", Kernel),
        server_of(graph, model, config) as server,
    ):
        found = _measure(server, args)
        crew, tasks = server._workers, server._server.tasks
    _check(tasks.counts, crew, found.pop("losses"), tasks=3 * args.intervals * (1 + args.epochs))
    print(json.dumps({**vars(args), **found}))


def _measure(server: procedure.PipelineProcedure, args: argparse.Namespace) -> dict[str, Any]:
    """CPU microseconds of a task by who spends them, of some epochs after the first; that nothing was lost."""
    losses = server.train_epochs(1)  # makes what is kept
    crew, tasks = server._workers, server._server.tasks
    assert isinstance(crew, Leases)
    before, loop_s, kernel_s, moved = tasks.counts, crew.cpu_s(), Kernel.metered.seconds, crew.moved
    profile = cProfile.Profile(time.thread_time) if args.profile else None
    began_s, cpu_s = time.monotonic(), time.thread_time()
    if profile is not None:
        profile.enable()
    losses += server.train_epochs(1 + args.epochs)
    if profile is not None:
        profile.disable()
    seconds, cpu_s = time.monotonic() - began_s, time.thread_time() - cpu_s
    kernel_s, loop_s = Kernel.metered.seconds - kernel_s, crew.cpu_s() - loop_s
    counts = tasks.counts
    count = counts.committed - before.committed
    spent = {"server": cpu_s - kernel_s, "loop": loop_s}
    found = {name: 1e6 * each / count for name, each in spent.items()}
    print(f"{count:,} tasks in {seconds:.1f} s, {crew.most:,} held at once; {counts.hedged} copies")
    print(f"{(crew.moved - moved) / count:.1%} of the tasks went to a lease that had not had their interval")
    for name, us in found.items():
        print(f"{name:18} {us:7.1f} us of CPU a task")
    print(f"{'kernels':18} {1e6 * kernel_s / count:7.1f} us, which is no scheduling and not counted")
    print(f"{'scheduler':18} {sum(found.values()):7.1f} us of CPU a task")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    us = {**found, "kernels": 1e6 * kernel_s / count}
    return {"us": us, "tasks": count, "counts": vars(counts), "losses": losses}


def _check(counts: TaskCounts, crew: Leases, losses: list[float], *, tasks: int) -> None:
    """Every task was committed once: each interval's loss is 1, and each copy's result was dropped."""
    computed = sum(crew.computed.values())
    assert counts.put == counts.committed == tasks == len(crew.computed), (counts, tasks, len(crew.computed))
    assert counts.dropped == computed - tasks, (counts, computed)
    assert set(losses) == {tasks / 3 / len(losses)}, losses
    print("nothing lost: every task put, computed and committed, and every gradient added once")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--leases", type=int, default=2000)
    parser.add_argument("--intervals", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=16, help="of an interval")
    parser.add_argument("--degree", type=float, default=10)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
