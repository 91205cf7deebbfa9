"""Measures one model for ``value.py``, in a process of its own with one thread; prints JSON.

Of an epoch of the pipeline: the seconds of each graph task, and of each tensor task the seconds with torch, as a server
computes it, those of the NumPy backend, as a function does, and the bytes that would travel. They are seconds of one
thread's CPU time, in which other work on the machine counts for little. Then the seconds to a validation target, of the
pipeline and of ``sampled``.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from one_server import prepared, server_of

import siafu
from siafu import native
from siafu.data import community
from siafu.graph import Graph
from siafu.methods.pipeline import server as server_module
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.server import GRAPH_LANE, TraceSpan
from siafu.nn import ModelConfig
from siafu.workers import worker_pool
from siafu.workers.numpy_backend import compute as compute_numpy
from siafu.workers.stages import static_rows, weights_of
from siafu.workers.task import Arrays, Direction, Key, Result, Task
from siafu.workers.torch_compute import TorchCompute

FEATURES, CLASSES = 100, 47
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn", "hidden": 16},
    "gat": {"kind": "gat", "hidden": 64, "heads": 8},
    "gin": {"kind": "gin", "hidden": 1024},
}
TARGET = 0.99
_EPOCHS = 3  # that are measured; the least seconds of a task count


class Measured(TorchCompute):
    """Computes a task with torch and with NumPy, and notes what it took and what would travel."""

    tasks: dict[Key, dict[str, float]]

    def __call__(self, task: Task, weights: Arrays) -> Result:
        names = static_rows(self._setup, task.key)
        static = {name: array for name, array in task.arrays.items() if name in names}
        read = {name: weights[name] for name in weights_of(self._setup, task.key.stage, list(weights))}
        began_s = time.thread_time()
        compute_numpy(self._setup, task, read)
        numpy_s, began_s = time.thread_time() - began_s, time.thread_time()
        result = super().__call__(task, weights)
        Measured.tasks[task.key] = {
            "torch_s": time.thread_time() - began_s,
            "numpy_s": numpy_s,
            "bytes": _bytes(task.arrays) + _bytes(result.arrays) + _bytes(result.grads) - _bytes(static),
            "weight_bytes": _bytes(read),
            "static_bytes": _bytes(static),
        }
        return result


def _bytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def tasks_of(graph: Graph, model: dict[str, Any], intervals: int) -> dict[str, Any]:
    """The graph and tensor tasks of an epoch, by phase and interval."""
    Measured.tasks = {}
    config = PipelineConfig(intervals=intervals, workers="inline", trace_epochs=1 + _EPOCHS)
    with (
        mock.patch.object(worker_pool, "TorchCompute", Measured),
        mock.patch.object(server_module, "time", SimpleNamespace(monotonic=time.thread_time)),
        native.arrays_reused(),
        server_of(prepared(graph), ModelConfig(**model), config) as trainer,
    ):
        trainer.train_epochs(1 + _EPOCHS)
        server = trainer._server
        assert server is not None
        traced, layers, count = list(server.trace), server.setup.num_aggregates, server.intervals.count
    return {
        "intervals": count,
        "graph": _graph_tasks(traced, layers),
        "tensor": _tensor_tasks(Measured.tasks, layers),
    }


def _graph_tasks(traced: list[TraceSpan], layers: int) -> list[list[float]]:
    """Phase, interval and seconds; what an interval does in one phase is added up."""
    seconds: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for each in traced:
        if each.lane == GRAPH_LANE and each.epoch > 1:  # the first makes what is kept
            name, _, layer = each.name.rpartition(" ")
            phase = int(layer) + 1 if name == "gather" else 2 * layers - int(layer)
            seconds[phase, each.interval][each.epoch] += each.seconds
    return [[*key, min(by_epoch.values())] for key, by_epoch in seconds.items()]


def _tensor_tasks(tasks: dict[Key, dict[str, float]], layers: int) -> list[list[float]]:
    """Phase, interval, seconds with torch and with NumPy; bytes of rows and gradients, of weights, of static rows."""
    found: dict[tuple[int, int], list[dict[str, float]]] = defaultdict(list)
    for key, each in tasks.items():
        if key.epoch > 1:
            back = key.direction == Direction.BACKWARD
            found[2 * layers - key.stage if back else key.stage, key.interval].append(each)
    names = ("torch_s", "numpy_s", "bytes", "weight_bytes", "static_bytes")
    return [[*key, *(min(each[name] for each in some) for name in names)] for key, some in found.items()]


def seconds_to_target(graph: Graph, model: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Of the pipeline without workers and of `sampled`, both with one thread: until a share of the former's best."""
    whole = _train(graph, model, "pipeline", args.epochs, args)
    sampled = _train(graph, model, "sampled", args.sampled_epochs, args)
    target = TARGET * max(whole["scores"])
    return {"target": target, "pipeline": _reach(whole, target), "sampled": _reach(sampled, target)}


def _train(
    graph: Graph, model: dict[str, Any], method: str, epochs: int, args: argparse.Namespace
) -> dict[str, list[float]]:
    train = {"epochs": epochs, "patience": 0, "lr": args.lr, "checkpoint_seconds": 1e6}
    config = {"method": method, "threads": 1, "model": model, "train": train}
    if method == "pipeline":
        config["pipeline"] = {"workers": "inline"}
    with tempfile.TemporaryDirectory() as temporary:
        run = siafu.train(graph, config=config, out=Path(temporary, "run"))
        events = map(json.loads, (run.directory / "events.jsonl").read_text("utf-8").splitlines())
        found = [event for event in events if event["phase"] == "epoch"]
    return {
        "scores": [event["val_score"] for event in found],
        "seconds": [event["seconds"] for event in found],
    }


def _reach(run: dict[str, list[float]], target: float) -> dict[str, float] | None:
    """Epochs and seconds to a target, the seconds of an epoch being the median; None where it was not reached."""
    epoch = next((n for n, score in enumerate(run["scores"], 1) if score >= target), None)
    if epoch is None:
        return None
    epoch_s = statistics.median(run["seconds"])
    return {"epochs": epoch, "epoch_s": epoch_s, "seconds": epoch * epoch_s}


def main() -> None:
    args = _parse()
    torch.set_num_threads(1)
    graph = community(args.nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0)
    model = {**MODELS[args.model], **({"hidden": args.hidden} if args.hidden else {})}
    began_s = time.perf_counter()
    found = {"model": model, "nodes": graph.num_nodes, "edges": graph.num_edges}
    found |= tasks_of(graph, model, args.intervals)
    if args.epochs:
        found["to_target"] = seconds_to_target(graph, model, args)
    print(json.dumps(found | {"took_s": time.perf_counter() - began_s}))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--hidden", type=int, default=0)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--degree", type=float, required=True)
    parser.add_argument("--intervals", type=int, required=True)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=0, help="of the pipeline, to the target; 0: none")
    parser.add_argument("--sampled-epochs", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()
