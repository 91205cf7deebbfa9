"""What staleness costs in epochs and saves in seconds: S in {0, 1, 2} to an honest validation target.

    SIAFU_DATA=... python benchmarks/staleness.py               PubMed and the community graph, 5 seeds
    SIAFU_DATA=... python benchmarks/staleness.py --seeds 1 --epochs 20 --nodes 5000          in a minute

GCN on two ranks. The target is 99 % of the best validation accuracy that S = 0 reaches, the median of its seeds: it is
set by the validation nodes alone, before the others are looked at, and no run trains on them. Runs of all S are made in
turn, each scored every few epochs, as the pipeline drains where it is scored; seconds are those of training. A run that
does not get there counts as all its epochs, and is said. Prints a Markdown table.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core import require_core

import siafu
from siafu.data import community
from siafu.graph import Graph

STALENESS = (0, 1, 2)
TARGET = 0.99
FEATURES, CLASSES = 100, 47


@dataclass(frozen=True)
class Trained:
    """A run: its validation scores by epoch, the seconds of each epoch, and the test score of the best weights."""

    scores: dict[int, float]
    seconds: list[float]
    test: float

    def reach(self, target: float) -> tuple[int, float] | None:
        """The first scored epoch at a target, and the seconds until then; None where there is none."""
        epoch = next((epoch for epoch, score in self.scores.items() if score >= target), None)
        return None if epoch is None else (epoch, sum(self.seconds[:epoch]))


def main() -> None:
    args = _parse()
    graphs: dict[str, Callable[[], Graph]] = {
        "PubMed": lambda: siafu.load("pubmed"),
        "community": lambda: community(
            args.nodes, degree=args.degree, features=FEATURES, classes=CLASSES, seed=0
        ),
    }
    lines, found = [], {}
    for name in args.graphs:
        runs = _train_all(graphs[name](), args)
        best = [max(run.scores.values()) for run in runs[0]]
        target = TARGET * statistics.median(best)
        lines += [_line(name, staleness, of, runs[0], target) for staleness, of in runs.items()]
        found[name] = {staleness: [vars(run) for run in of] for staleness, of in runs.items()}
    print(
        "\n| graph | target | S | epochs to target | of S = 0 | seconds to target | of S = 0 | seconds an epoch "
        "| test accuracy |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    print(
        f"\nGCN, 2 ranks, {args.seeds} seeds: the median, and from the least to the most; the target is {TARGET:.0%} "
        f"of the best validation accuracy of S = 0, the median of its seeds; scored every {args.every} epochs."
    )
    print(json.dumps({**vars(args), "runs": found}))


def _train_all(graph: Graph, args: argparse.Namespace) -> dict[int, list[Trained]]:
    runs: dict[int, list[Trained]] = {staleness: [] for staleness in STALENESS}
    for seed in range(args.seeds):
        for staleness, of in runs.items():
            of.append(_train(graph, staleness, seed, args))
            best = max(of[-1].scores.values())
            print(f"  {graph.name}, S = {staleness}, seed {seed}: best validation {best:.4f}", flush=True)
    return runs


def _train(graph: Graph, staleness: int, seed: int, args: argparse.Namespace) -> Trained:
    train = {
        "epochs": args.epochs,
        "patience": 0,
        "evaluate_every": args.every,
        "checkpoint_seconds": 1e6,
    }
    pipeline = {"staleness": staleness, "workers": args.workers}
    config = {"method": "pipeline", "ranks": 2, "seed": seed, "train": train, "pipeline": pipeline}
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        run = siafu.train(graph, config=config, out=Path(temporary, "run"))
        events = map(json.loads, (run.directory / "events.jsonl").read_text("utf-8").splitlines())
        epochs = [event for event in events if event["phase"] == "epoch"]
    scores = {event["epoch"]: event["val_score"] for event in epochs if "val_score" in event}
    return Trained(scores, [event["seconds"] for event in epochs], run.test_accuracy)


def _line(name: str, staleness: int, runs: list[Trained], base: list[Trained], target: float) -> str:
    """A line of the table."""
    there, base_there = ([_reached(run, target) for run in some] for some in (runs, base))
    missed = sum(run.reach(target) is None for run in runs)
    cells = []
    for place, form in ((0, "{:.0f}"), (1, "{:.2f}")):
        values, of_base = ([each[place] for each in some] for some in (there, base_there))
        ratio = statistics.median(values) / statistics.median(of_base)
        cells += [_spread(values, form), f"{ratio:.2f}x"]
    cells[0] += f", {missed} never" if missed else ""
    epoch_s = statistics.median(statistics.fmean(run.seconds[1:]) for run in runs)
    test = _spread([100 * run.test for run in runs], "{:.1f}")
    return f"| {name} | {target:.4f} | {staleness} | {' | '.join(cells)} | {epoch_s:.4f} | {test} % |"


def _reached(run: Trained, target: float) -> tuple[int, float]:
    return run.reach(target) or (len(run.seconds), sum(run.seconds))


def _spread(values: list[float], form: str) -> str:
    median, least, most = (form.format(of(values)) for of in (statistics.median, min, max))
    return f"{median} ({least} to {most})"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", nargs="+", default=["PubMed", "community"])
    parser.add_argument("--nodes", type=int, default=50_000, help="of the community graph")
    parser.add_argument("--degree", type=float, default=25)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--every", type=int, default=5, help="epochs until the next score")
    parser.add_argument("--workers", default="threads")
    parser.add_argument("--folder", help="where to make the temporary folders")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
