"""The frugal recipe of lazy training beside full training: accuracy, and all bytes on four random parts.

    SIAFU_DATA=... python benchmarks/lazy_frugal.py                      every data set, 10 seeds
    SIAFU_DATA=... python benchmarks/lazy_frugal.py --first 100          seeds on which nothing was chosen
    SIAFU_DATA=... python benchmarks/lazy_frugal.py --only cora --seeds 3
    SIAFU_DATA=... python benchmarks/lazy_frugal.py --full earlier.txt   full's runs as an earlier call printed them

Splits by seed: Cora, Citeseer and PubMed as RETEXO's (so many nodes a class to train, so many to validate, the rest to
test), the others' own folds, and beyond their folds splits drawn with as many nodes of each class to train and as many
to validate. ``full`` is the default GCN on one rank; its settings are picked from a small grid by
the validation accuracy of the first seeds; test nodes are not looked at before. Frugal is trained on the
four parts, picks on validation by itself, with the same settings on every data set. Its bytes are all that the meter
counted in the run. Those of narrow ``full`` are what one epoch sends for halo rows and gradients, as counted, times the
epochs that it trained for; its evaluations are left out, in its favour. Differences are of means over seeds, with the
standard error of the paired differences. Prints a Markdown table, then JSON.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import retexo
import torch
from core import require_core

import siafu
from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.data.config import DataConfig
from siafu.data.random_stream import RandomStream
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.methods.full.procedure import FullProcedure
from siafu.methods.lazy.frugal import FrugalConfig, train_frugal
from siafu.nn import Gnn, ModelConfig
from siafu.partition.cut import Part, cut
from siafu.training import inputs
from siafu.training.config import TrainConfig
from siafu.training.procedure import train_epoch
from siafu.training.task import task_of

PARTS = 4
ALIKE = ("cora", "citeseer", "pubmed", "amazon_photo", "coauthor_cs")
UNLIKE = ("actor", "chameleon_filtered", "squirrel_filtered")
FOLDS = 10  # that those have which are not split as RETEXO's
OF_FULL = ("full_settings", "full", "full_megabytes")
GRID: tuple[dict[str, Any], ...] = (
    {"model": {"dropout": 0.5}},
    {"model": {"dropout": 0.8}},
    {"model": {"dropout": 0.5}, "train": {"weight_decay": 5e-5}},
    {"model": {"dropout": 0.5}, "train": {"weight_decay": 5e-5, "lr": 0.05}},
    {"model": {"dropout": 0.5}, "data": {"normalize": "none"}},
)


def graph_of(name: str, seed: int) -> Graph:
    if name in retexo.SIZES:
        return retexo.load_split(name, seed)
    return siafu.load(name, fold=seed) if seed < FOLDS else drawn_anew(siafu.load(name), seed)


def drawn_anew(graph: Graph, seed: int) -> Graph:
    """Another split like the graph's own: as many of each class train, as many validate, all others test."""
    order = torch.from_numpy(RandomStream(seed, "split").order(graph.num_nodes))
    y, train = torch.as_tensor(graph.y), torch.as_tensor(graph.train_mask)
    split = torch.full((graph.num_nodes,), 2)
    for label in y[train].unique():
        split[order[y[order] == label][: int((y[train] == label).sum())]] = 0
    rest = order[(split[order] == 2) & (y[order] >= 0)]
    split[rest[: int(torch.as_tensor(graph.val_mask).sum())]] = 1
    split[y < 0] = 3
    names = ("train_mask", "val_mask", "test_mask")
    return replace(graph, **{name: split == number for number, name in enumerate(names)})


def train_full(graph: Graph, config: dict[str, Any], seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found = siafu.train(graph, config=config, seed=seed, out=Path(folder, "run")).metrics
    say(f"full, seed {seed}: validation {found['val_accuracy']:.4f}, {found['epochs']} epochs, {config}")
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def tuned_full(name: str, seeds: range, tune: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The settings that are best on the validation nodes of the first seeds, and a run with them for each seed."""
    tried = [[train_full(graph_of(name, seed), config, seed) for seed in seeds[:tune]] for config in GRID]
    val = [statistics.fmean(run["val_accuracy"] for run in runs) for runs in tried]
    best = max(range(len(GRID)), key=lambda place: val[place])
    more = [train_full(graph_of(name, seed), GRID[best], seed) for seed in seeds[tune:]]
    return GRID[best], tried[best] + more


def parts_of(graph: Graph, seed: int) -> list[Part]:
    draw = torch.Generator().manual_seed(seed)
    owner = torch.randint(PARTS, (graph.num_nodes,), generator=draw).to(torch.int32)
    return [one.part(graph) for one in cut(graph, owner, parts=PARTS)]


def train_lazily(graph: Graph, seed: int) -> dict[str, Any]:
    """Frugal on random parts: its scores, and what all ranks sent in megabytes."""
    parts, data = parts_of(graph, seed), inputs.resolve(DataConfig(), graph)

    def rank(comm: Comm) -> dict[str, Any]:
        part = parts[comm.rank]
        x, task = inputs.features(part.own, data), task_of(part.own, TrainConfig(), comm)
        halo = Halo(comm, part.route, num_own=part.own.num_nodes)
        found = train_frugal(comm, part.context(halo), part.route, x, task, FrugalConfig())
        sent = comm.meter.sent
        test = task.score(found.out, "test")
        return {
            "test": test,
            "val": found.tried[found.chosen].score,
            "tried": [[each.name, each.score] for each in found.tried],
            "sent": sent,
        }

    ranks = run_threads(rank, ranks=PARTS, threads=1, deadline_s=300)
    labels = sorted({label for each in ranks for label in each["sent"]})
    by_label = {label: sum(each["sent"].get(label, 0) for each in ranks) / 1e6 for label in labels}
    found = {**ranks[0], "sent": by_label, "megabytes": sum(by_label.values())}
    say(f"frugal, seed {seed}: validation {found['val']:.4f}, {found['megabytes']:.2f} MB")
    return found


def full_megabytes_an_epoch(graph: Graph, config: dict[str, Any]) -> float:
    """What halo rows and gradients of one epoch of narrow full weigh on random parts, after the first."""
    parts, data = parts_of(graph, 0), inputs.resolve(DataConfig(), graph)

    def rank(comm: Comm) -> int:
        part = parts[comm.rank]
        x, train = inputs.features(part.own, data), TrainConfig()
        task = task_of(part.own, train, comm)
        model = Gnn(ModelConfig(**config["model"]), in_features=x.shape[1], out_features=task.num_outputs)
        halo = Halo(comm, part.route, num_own=part.own.num_nodes)
        trainer = FullProcedure(model, part.context(halo, narrow=True), x, task, train, seed=0)
        train_epoch(trainer, 1)  # with what is sent once
        before = comm.meter.total()
        train_epoch(trainer, 2)
        return comm.meter.total() - before

    return sum(run_threads(rank, ranks=PARTS, threads=1, deadline_s=300)) / 1e6


def sum_up_full(name: str, seeds: range, tune: int) -> dict[str, Any]:
    """What full reaches and sends."""
    settings, full = tuned_full(name, seeds, tune)
    epoch = full_megabytes_an_epoch(graph_of(name, 0), settings)
    return {
        "full_settings": settings,
        "full": [100 * run["test_accuracy"] for run in full],
        "full_megabytes": epoch * statistics.fmean(run["epochs"] for run in full),
    }


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    began, seeds = time.perf_counter(), range(args.first, args.first + args.seeds)
    earlier = next((row for row in args.full if row["data"] == name and row["seeds"] == [*seeds]), None)
    side = sum_up_full(name, seeds, args.tune) if earlier is None else {key: earlier[key] for key in OF_FULL}
    lazy = [train_lazily(graph_of(name, seed), seed) for seed in seeds]
    off = [100 * one["test"] - other for one, other in zip(lazy, side["full"], strict=True)]
    return side | {
        "data": name,
        "seeds": [*seeds],
        "frugal": [100 * run["test"] for run in lazy],
        "difference": statistics.fmean(off),
        "error": statistics.stdev(off) / len(off) ** 0.5 if len(off) > 1 else 0.0,
        "frugal_megabytes": [run["megabytes"] for run in lazy],
        "by_label": lazy[0]["sent"],
        "tried": [run["tried"] for run in lazy],
        "seconds": time.perf_counter() - began,
    }


def line_of(row: dict[str, Any]) -> str:
    full, frugal = (
        f"{statistics.fmean(row[key]):.2f} ± {statistics.pstdev(row[key]):.2f}" for key in ("full", "frugal")
    )
    sent = statistics.fmean(row["frugal_megabytes"])
    return (
        f"| {row['data']} | {full} | {frugal} | {row['difference']:+.2f} ± {row['error']:.2f} "
        f"| {row['full_megabytes']:.0f} | {sent:.2f} (at most {max(row['frugal_megabytes']):.2f}) "
        f"| {row['full_megabytes'] / sent:.0f}x | {row['seconds']:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--tune", type=int, default=1, help="seeds that the grid of full is tried on")
    parser.add_argument("--only", nargs="*", default=[*ALIKE, *UNLIKE], help="such as cora")
    parser.add_argument(
        "--full", type=Path, nargs="*", default=[], help="files with what earlier calls printed"
    )
    args = parser.parse_args()
    args.full = [row for file in args.full for row in json.loads(file.read_text().splitlines()[-1])]
    print("| data | full, % | frugal, % | difference | full, MB | frugal, MB | fewer bytes | seconds |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for name in args.only:
        rows.append(compare(name, args))
        print(line_of(rows[-1]), flush=True)
    means = [row["difference"] for row in rows if row["data"] in ALIKE]
    if len(means) == len(ALIKE):
        print(f"\nDifference on average over {', '.join(ALIKE)}: {statistics.fmean(means):+.2f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    require_core()
    main()
