"""One task in a hundred takes ten times as long: an epoch with hedging, and without, beside one where none does.

    python benchmarks/stragglers.py                                   100k nodes, 3M edges, 64 intervals
    python benchmarks/stragglers.py --nodes 20000 --intervals 32 --rounds 2 --epochs 4    in seconds

GCN of 2 layers, staleness 0, one graph server, threads as workers, each task with some latency. Which tasks are slow is
drawn from their key and from how often they were tried, the same on all sides: a copy is slow as seldom as any other.
A slow task sleeps for nine times its latency and the CPU seconds it took, and holds its worker, but no core. Some
epochs of each side are made in turn; their mean counts, as a median would hide the few that wait long.
"""

import argparse
import json
import random
import statistics
from collections import Counter
from contextlib import ExitStack

import torch
from core import require_core
from one_server import Wait, late_workers, prepared, server_of, timed_epochs

from siafu.data import community
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.procedure import PipelineProcedure
from siafu.nn import ModelConfig
from siafu.workers.task import Key, Task

FEATURES, CLASSES, FACTOR = 100, 47, 10
SIDES = ("hedging", "no hedging")


class Slow:
    """How long tasks wait; a share of them ten times as long as they would."""

    def __init__(self, share: float, latency_s: float) -> None:
        self._share, self._latency_s = share, latency_s
        self._tried: Counter[Key] = Counter()
        self.slow = 0

    def __call__(self, task: Task, cpu_s: float) -> float:
        self._tried[task.key] += 1
        drawn = random.Random(f"{tuple(map(int, task.key))} {self._tried[task.key]}").random()
        if drawn >= self._share:
            return self._latency_s
        self.slow += 1
        return FACTOR * self._latency_s + (FACTOR - 1) * cpu_s


def main() -> None:
    args = _parse()
    torch.set_num_threads(args.threads)
    graph = prepared(community(args.nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0))
    model = ModelConfig(kind="gcn", hidden=args.hidden)
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; GCN of 2 layers, {args.hidden} hidden; "
        f"{args.intervals} intervals, {args.workers} workers, {args.latency * 1e3:g} ms added to each task",
        flush=True,
    )
    with late_workers(), ExitStack() as stack:
        sides: dict[str, PipelineProcedure] = {}
        for name in SIDES:
            config = PipelineConfig(
                intervals=args.intervals,
                workers="threads",
                num_workers=args.workers,
                hedge=name == "hedging",
            )
            sides[name] = stack.enter_context(server_of(graph, model, config))
        seconds, tasks = _measure(sides, args)
    print(json.dumps({**vars(args), "seconds": seconds, "ratios": _show(seconds), "tasks": tasks}))


def _measure(
    sides: dict[str, PipelineProcedure], args: argparse.Namespace
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, int]]]:
    """The seconds of an epoch of each turn, and what became of the tasks, by side."""
    kinds = {"none slow": 0.0, "some slow": args.share}
    waits = {name: {kind: Slow(share, args.latency) for kind, share in kinds.items()} for name in sides}
    seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in sides}
    for server in sides.values():  # makes what is kept, and shows how long tasks take
        timed_epochs(server, wait=Slow(0.0, args.latency), epochs=2)
    for _ in range(args.rounds):
        for name, server in sides.items():
            for kind in kinds:
                wait: Wait = waits[name][kind]
                seconds[name][kind].append(timed_epochs(server, wait=wait, epochs=args.epochs))
    tasks = {}
    for name, server in sides.items():
        assert server._server is not None
        counts = server._server.tasks.counts
        tasks[name] = {**vars(counts), "slow": waits[name]["some slow"].slow}
        print(
            f"{name:12} {counts.committed:,} tasks, {tasks[name]['slow']} of them slow; {counts.hedged} copies, "
            f"{counts.dropped} results dropped"
        )
    return seconds, tasks


def _show(seconds: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """Print a line a side; the ratios of means."""
    print(f"{'':12} {'none slow':>11} {'some slow':>11} {'ratio':>8} {'of a turn':>16}")
    ratios = {}
    for name, of in seconds.items():
        none, some = (statistics.fmean(of[key]) for key in ("none slow", "some slow"))
        ratios[name] = some / none
        each = [a / b for a, b in zip(of["some slow"], of["none slow"], strict=True)]
        spread = f"{min(each):.2f} to {max(each):.2f}"
        print(f"{name:12} {none:9.3f} s {some:9.3f} s {ratios[name]:7.2f}x {spread:>16}")
    return ratios


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=float, default=30)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--intervals", type=int, default=64)
    parser.add_argument("--workers", type=int, default=80)
    parser.add_argument("--latency", type=float, default=0.02, help="of each task, in seconds")
    parser.add_argument("--share", type=float, default=0.01, help="of tasks that are slow")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--epochs", type=int, default=10, help="of each side in a turn")
    parser.add_argument("--threads", type=int, default=2, help="of the graph server")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
