"""What each technique of sampled training brings, and what it costs in accuracy; started by ``sampled.py``.

Each line of a table is a name and the settings that it stands for, beside those that all share. What is no setting of
this siafu is said and left out.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ranks import SIAFU
from sage import SETTINGS, an_epoch, arguments, epoch_seconds
from sampled_side import BATCH

import siafu
from siafu.config import build, from_assignments
from siafu.data import community
from siafu.store import write_store

OFF = {
    "all on": (),
    "no cached aggregate": ("sampled.cache_aggregate=false",),
    "macrobatches of 1": ("sampled.macrobatch=1",),
    "no cached aggregate, macrobatches of 1": ("sampled.cache_aggregate=false", "sampled.macrobatch=1"),
    "no prefetch": ("sampled.prefetch=false",),
    "no hot rows": ("sampled.hot_mb=0",),
    "rows in bf16": ("comm.precision=bf16",),
    "rows in int8": ("comm.precision=int8",),
    "gradients in bf16": ("comm.gradients=bf16",),
    "draws shared": ("sampled.share_draws=true",),
}
_NARROW = ("ranks=2", "threads=1", "comm.precision=int8", "comm.gradients=int8")
ACCURACY = {  # the first is what the others are compared with
    "every hop sampled": ("sampled.cache_aggregate=false",),
    "cached aggregate": (),
    "the same, draws shared": ("sampled.share_draws=true",),
    "cached, 2 ranks, all in int8": _NARROW,
}
_SHORT, _LONG = 1, 3  # epochs


def ablation(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time and bytes of an epoch on two ranks of one thread, each technique off in turn."""
    found = []
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        write_store(_graph(args), folder / "store")
        shape = f"{args.nodes:,} nodes of degree {args.degree:g}"
        print(f"SAGE, {shape}, minibatches of {BATCH}, 2 ranks of 1 thread; an epoch")
        for name, settings in OFF.items():
            if not _known(name, settings):
                continue
            row = _epoch(folder, name, [*settings, *args.set])
            labels = ", ".join(f"{k} {v / 1e6:.1f}" for k, v in row["bytes"].items() if v > 1e5)
            total = sum(row["bytes"].values()) / 1e6
            print(f"  {name:40} {row['seconds']:7.2f} s {total:9.1f} MB   {labels}", flush=True)
            found.append(row)
    return found


def _epoch(folder: Path, name: str, settings: list[str]) -> dict[str, Any]:
    """The epochs of a run but the first, and what a run sends for each."""
    sent, out = [], folder / "unset"
    for epochs in (_SHORT, _LONG):
        out = folder / f"{name}-{epochs}".replace(" ", "-")
        command = arguments(folder / "store", out, epochs=epochs, settings=["ranks=2", *settings])
        done = subprocess.run(
            [*SIAFU, "train", *command, "--json"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended with exit code {done.returncode}:\n{done.stderr}")
        found = json.loads(done.stdout)
        sent.append(found["bytes_by_label"])
    spent = {key: found[key] for key in ("sample_seconds", "fetch_seconds", "compute_seconds")}
    seconds = statistics.median(epoch_seconds(out)[1:])
    return {"name": name, "seconds": seconds, "bytes": an_epoch(*sent, epochs=_LONG - _SHORT), **spent}


def accuracy(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Test accuracy of several seeds, sampled in several ways, beside every hop sampled."""
    graph, found = _graph(args), []
    shape = f"{args.nodes:,} nodes, {args.batches or 'all'} minibatches an epoch, {args.epochs} epochs"
    print(f"SAGE, {shape}; test accuracy of {args.seeds} seeds, in per cent")
    for name, settings in ACCURACY.items():
        if not _known(name, settings):
            continue
        scores = [100 * _train(graph, args, seed, settings) for seed in range(args.seeds)]
        mean, std = statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0
        off = mean - found[0]["mean"] if found else 0.0
        beside = f"{off:+6.2f} points" if found else ""
        print(f"  {name:32} {mean:6.2f} ± {std:.2f}   {beside}", flush=True)
        found.append({"name": name, "mean": mean, "std": std, "scores": scores})
    return found


def _train(graph: siafu.Graph, args: argparse.Namespace, seed: int, settings: tuple[str, ...]) -> float:
    own = (f"train.epochs={args.epochs}", "train.patience=0", "train.evaluate_every=2", f"seed={seed}")
    tables = from_assignments([*SETTINGS, f"threads={args.threads}", *own, *settings, *args.set])
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        return siafu.train(graph, config=tables, out=Path(folder, "run")).test_accuracy


def _graph(args: argparse.Namespace) -> siafu.Graph:
    """All training nodes, or those of so many minibatches."""
    graph = community(args.nodes, degree=args.degree, features=100, classes=47, seed=0)
    return some_trained(graph, args.batches)


def some_trained(graph: siafu.Graph, batches: int) -> siafu.Graph:
    """The graph with the training nodes of so many minibatches; 0: all."""
    assert graph.train_mask is not None
    if not batches:
        return graph
    some = torch.zeros_like(graph.train_mask)
    some[graph.train_mask.nonzero()[: batches * BATCH, 0]] = True
    return replace(graph, train_mask=some)


def _known(name: str, settings: tuple[str, ...]) -> bool:
    try:
        build(from_assignments([*settings]))
    except ValueError as error:
        print(f"  {name:40} left out: {error}", flush=True)
        return False
    return True
