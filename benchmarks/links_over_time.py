"""Links of the next step on UCI, Bitcoin Alpha and Bitcoin OTC: EvolveGCN beside what was published, and a memory.

    python benchmarks/links_over_time.py                              all three sets, both models, 3 seeds
    python benchmarks/links_over_time.py --sets ucsocial --seeds 1    one set, one seed
    python benchmarks/links_over_time.py --floor                      the memory without learning alone: seconds

The protocol is that of IBM/EvolveGCN: 70/10/20 % of the steps, links of a step ranked among all N^2 pairs, MAP over
all of them, MRR by source, the means over steps. Weights are chosen by MAP on the validation steps. "recency" is the
score of pairs without learning, sum of past events of e^(-0.2 age). A line is printed for each run, and a table in the
end. Settings of a run may be given after "--", such as: -- model.hidden=64 train.epochs=30.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from core import require_core

import siafu
from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.task import split_steps
from siafu.training.link.recency import Recency
from siafu.training.link.scores import mean_scores, rank_by_memory

SETS = ("ucsocial", "bitcoinalpha", "bitcoinotc")
KINDS = ("evolvegcn-o", "evolvegcn-h")
PUBLISHED = {
    ("ucsocial", "evolvegcn-o"): (0.0270, 0.1379),
    ("ucsocial", "evolvegcn-h"): (0.0126, 0.0899),
    ("bitcoinalpha", "evolvegcn-o"): (0.0036, 0.1185),
    ("bitcoinalpha", "evolvegcn-h"): (0.0049, 0.1104),
    ("bitcoinotc", "evolvegcn-o"): (0.0028, 0.0968),
    ("bitcoinotc", "evolvegcn-h"): (0.0026, 0.0690),
}


def floor_of(graph: DynamicGraph) -> tuple[float, float]:
    """MAP and MRR of the test steps by the memory alone."""
    step = torch.arange(graph.num_steps).repeat_interleave(graph.step_ptr.diff())
    sizes = {"num_nodes": graph.num_nodes, "num_steps": graph.num_steps}
    memory = Recency.from_events(graph.src, graph.dst, step, undirected=graph.undirected, **sizes)
    found = []
    for sample in split_steps(graph, window=graph.protocol.window, ahead=True)["test"]:
        next_step = graph.events(sample + 1, sample + 2)
        src, dst = graph.src[next_step].long(), graph.dst[next_step].long()
        if graph.undirected:
            src, dst = torch.cat([src, dst]), torch.cat([dst, src])
        found.append(rank_by_memory(src, dst, recency=memory.all_at(sample)).scores())
    means = mean_scores(found)
    assert means["map"] is not None
    assert means["mrr"] is not None
    return means["map"], means["mrr"]


def train(graph: DynamicGraph, kind: str, *, recency: bool, seed: int, more: list[str]) -> dict[str, Any]:
    """What one run measures."""
    tables: dict[str, dict[str, Any]] = {"link": {"recency": recency}}
    for given in more:
        place, value = given.split("=", 1)
        table, key = place.split(".", 1)
        tables.setdefault(table, {})[key] = read_value(value)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = siafu.train(graph, model=kind, task="link", seed=seed, config=tables, out=out)
        names = ("val_map", "val_mrr", "test_map", "test_mrr", "epochs", "best_epoch", "seconds")
        return {name: run.metrics[name] for name in names}


def row(name: str, model: str, runs: list[tuple[float, float]], beside: tuple[float, float] | None) -> str:
    """One line of the table: the means over runs, and how far they spread."""
    each = [statistics.mean(values) for values in zip(*runs, strict=True)]
    spread = [statistics.pstdev(values) for values in zip(*runs, strict=True)]
    told = " / ".join(f"{mean:.4f} +- {by:.4f}" for mean, by in zip(each, spread, strict=True))
    other = "" if beside is None else " / ".join(f"{value:.4f}" for value in beside)
    return f"| {name} | {model} | {told} | {len(runs)} | {other} |"


def read_value(text: str) -> Any:
    """A number, a truth or a list as JSON has it, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--memory", choices=("both", "with", "without"), default="both")
    parser.add_argument("--floor", action="store_true", help="the memory without learning alone")
    parser.add_argument("more", nargs="*", help="settings of every run, after --")
    args = parser.parse_args()
    recencies = {"both": (False, True), "with": (True,), "without": (False,)}[args.memory]
    table = []
    for name in args.sets:
        graph = siafu.load(name)
        assert isinstance(graph, DynamicGraph)
        floor = floor_of(graph)
        table.append(row(name, "recency, no learning", [floor], None))
        print(json.dumps({"set": name, "floor": floor}), flush=True)
        for kind, recency in (
            (kind, recency) for kind in args.kinds for recency in recencies if not args.floor
        ):
            runs = []
            for seed in range(args.seeds):
                found = train(graph, kind, recency=recency, seed=seed, more=args.more)
                print(
                    json.dumps({"set": name, "model": kind, "recency": recency, "seed": seed, **found}),
                    flush=True,
                )
                runs.append((found["test_map"], found["test_mrr"]))
            beside = floor if recency else PUBLISHED[name, kind]
            table.append(row(name, f"{kind}, recency" if recency else kind, runs, beside))
    print(
        "| set | model | test MAP / MRR | seeds | published, or with recency the floor |\n|---|---|---|---|---|"
    )
    print("\n".join(table))


if __name__ == "__main__":
    require_core()
    main()
