"""Latency of workers, hidden behind graph work: an epoch with 20 ms added to each task beside one with none.

    python benchmarks/overlap.py                              500k nodes, 15M edges, 32 intervals
    python benchmarks/overlap.py --nodes 20000 --rounds 2     a smaller graph, in seconds

GCN of 2 layers, staleness 0, one graph server. With the pipeline, threads compute the tensor tasks, enough of them that
all intervals may be in flight at once; the latency is slept, so that it holds no core. Without it, the same tasks are
waited for one after another, and nothing else is done meanwhile. An epoch of each side is made in turn; a ratio is that
of two epochs of one turn.
"""

import argparse
import json
import statistics

import torch
from core import require_core
from one_server import at_once, late_workers, prepared, server_of, timed_epochs

from siafu.data import community
from siafu.methods.pipeline.config import PipelineConfig
from siafu.nn import ModelConfig
from siafu.workers.task import Task

FEATURES, CLASSES = 100, 47


def main() -> None:
    args = _parse()
    torch.set_num_threads(args.threads)
    graph = prepared(community(args.nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0))
    model = ModelConfig(kind="gcn", hidden=args.hidden)
    piped = PipelineConfig(
        intervals=args.intervals, workers="threads", num_workers=args.workers or args.intervals, hedge=False
    )
    plain = PipelineConfig(intervals=args.intervals, workers="inline")
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges; GCN of 2 layers, {args.hidden} hidden; "
        f"{args.intervals} intervals, {args.latency * 1e3:g} ms added to each task",
        flush=True,
    )

    def late(task: Task, cpu_s: float) -> float:
        return args.latency

    waits = {"none": at_once, "late": late}
    with late_workers(), server_of(graph, model, piped) as one, server_of(graph, model, plain) as other:
        sides = {"with the pipeline": one, "without": other}
        seconds: dict[str, dict[str, list[float]]] = {name: {key: [] for key in waits} for name in sides}
        for turn in range(args.rounds + 1):  # the first makes what is kept
            for name, server in sides.items():
                for key, wait in waits.items():
                    took_s = timed_epochs(server, wait=wait)
                    if turn:
                        seconds[name][key].append(took_s)
    print(json.dumps({**vars(args), "seconds": seconds, "ratios": _show(seconds)}))


def _show(seconds: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """Print a line a side; the ratios."""
    print(f"{'':20} {'no latency':>11} {'latency':>11} {'ratio':>8} {'spread':>16}")
    ratios = {}
    for name, of in seconds.items():
        each = [late / none for none, late in zip(of["none"], of["late"], strict=True)]
        ratios[name] = statistics.median(each)
        none, late = (statistics.median(of[key]) for key in ("none", "late"))
        spread = f"{min(each):.2f} to {max(each):.2f}"
        print(f"{name:20} {none:9.3f} s {late:9.3f} s {ratios[name]:7.2f}x {spread:>16}")
    return ratios


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--degree", type=float, default=30)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--intervals", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0, help="default: one for each interval")
    parser.add_argument("--latency", type=float, default=0.02, help="in seconds")
    parser.add_argument("--rounds", type=int, default=7, help="epochs of each side, with and without")
    parser.add_argument("--threads", type=int, default=2, help="of the graph server")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
