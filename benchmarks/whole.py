"""Whole runs, from the start of the process to the result on disk, beside scripts of PyG and DGL that do the same work.

    python benchmarks/whole.py                             every case but the large one, beside PyG, 3 rounds
    python benchmarks/whole.py --dgl-python PATH           also DGL, in a Python that has it
    python benchmarks/whole.py --temporal-python PATH      also PyG Temporal (``temporal.py --make-peer`` makes one)
    python benchmarks/whole.py --large                     also 500k nodes, 15M edges
    python benchmarks/whole.py --only cora gcn-60k --rounds 9

Every run is a process of its own, and the sides of a case take turns. Each side reads the same ``.npy`` files, trains
siafu's default model for as many epochs (no early stop), scores the validation nodes after every epoch, keeps the best
weights, scores the test nodes, and writes weights and scores. On node classification siafu runs twice: with its search
over recipes, as it comes (``siafu``), and with ``train.search = "off"`` (``siafu-off``); each side is compared with
both. PyG's GCN runs on its ``edge_index`` (``pyg``) and on a sparse tensor (``pyg-csr``); its minibatches come from
siafu's loader, since pyg-lib is on no index. The row ``import torch`` is a Python that does nothing else. Named data
sets are looked for in SIAFU_DATA.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from commands import DATA_HOME, run_command
from core import require_core
from run import write_arrays

SIDE = Path(__file__).with_name("whole_side.py")


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        name: its name.
        kind: of model: gcn, gat; sage (sampled minibatches); link; evolvegcn-o.
        data: the name of a data set, or (nodes, degree) of a community graph.
        epochs: number of epochs.
        hidden: width of hidden layers; siafu's default unless it is given.
        sides: the sides beside siafu.
    """

    name: str
    kind: str
    data: str | tuple[int, float]
    epochs: int
    hidden: int = 64
    sides: tuple[str, ...] = ("pyg", "dgl")
    large: bool = field(default=False, kw_only=True)

    @property
    def searches(self) -> bool:
        """Whether siafu searches over recipes."""
        return self.kind in ("gcn", "gat", "sage")

    @property
    def all_sides(self) -> tuple[str, ...]:
        """All sides, siafu's first."""
        return ("siafu", *(["siafu-off"] if self.searches else []), *self.sides)

    @property
    def here(self) -> bool:
        """Whether its data are on this machine."""
        return isinstance(self.data, tuple) or any(path.is_file() for path in self._places())

    def _places(self) -> list[Path]:
        return [DATA_HOME / f"{self.data}.npz", DATA_HOME / "temporal" / f"{self.data}.npz"]

    def write_arrays(self, folder: Path) -> None:
        """Write the data as the .npy files that all sides read."""
        import siafu
        from siafu.data import community

        if isinstance(self.data, tuple):
            nodes, degree = self.data
            write_arrays(community(nodes, degree=degree, features=100, classes=47, seed=0), folder)
            return
        graph = siafu.load(next(path for path in self._places() if path.is_file()))
        if self.kind == "evolvegcn-o":
            step = np.arange(graph.num_steps).repeat(np.diff(graph.step_ptr))
            for name, array in (("src", graph.src), ("dst", graph.dst), ("step", step)):
                np.save(folder / f"{name}.npy", np.asarray(array))
            return
        write_arrays(graph, folder)
        if self.kind == "link":
            write_edge_split(folder)


CASES = (
    Case("cora", "gcn", "cora", 200),
    Case("pubmed", "gcn", "pubmed", 200),
    Case("gcn-60k", "gcn", (60_000, 23), 20, 128, ("pyg", "pyg-csr", "dgl")),
    Case("gcn-100k", "gcn", (100_000, 25), 20, 256, ("pyg-csr", "dgl")),
    Case("gcn-500k", "gcn", (500_000, 30), 20, 256, ("pyg-csr", "dgl"), large=True),
    Case("gat-100k", "gat", (100_000, 25), 5),
    Case("sage-100k", "sage", (100_000, 25), 3),
    Case("link-cora", "link", "cora", 100),
    Case("evolvegcn", "evolvegcn-o", "ucsocial", 2, 100, ("pyg-temporal",)),
)


def write_edge_split(folder: Path) -> None:
    """A random split of the pairs of nodes with an edge, 85 / 5 / 10, as a number for each edge."""
    src, dst = np.load(folder / "edges.npy").astype(np.int64)
    pair = np.minimum(src, dst) * (1 << 32) + np.maximum(src, dst)
    each, place = np.unique(pair, return_inverse=True)
    share = np.random.default_rng(0).random(each.size)
    code = (share > 0.85).astype(np.int8) + (share > 0.9)
    np.save(folder / "edge_split.npy", code[place])


def run_case(case: Case, pythons: dict[str, str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The results of all rounds of each side of a case."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        case.write_arrays(folder)
        every = 1
        for turn in range(rounds):
            found["import torch"].append(time_import())
            for side in (name for name in case.all_sides if name in pythons):
                out = folder / f"{side}-{turn}"
                what = json.dumps(asdict(case) | {"every": every})
                result = run_command([pythons[side], str(SIDE), side, what, str(folder), str(out)])
                every = result["evaluate_every"] if side == "siafu" else every
                found[side].append(result)
                print(
                    f"  {case.name} {side:13} {result['whole_seconds']:8.2f} s", file=sys.stderr, flush=True
                )
    return found


def time_import() -> dict[str, Any]:
    """The seconds of a Python that imports torch and ends."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return {"whole_seconds": time.perf_counter() - began_s}


def ratio(found: dict[str, list[dict[str, Any]]], side: str, own: str) -> float | None:
    """The median over rounds of a side's seconds / those of one of siafu's; None where that one did not run."""
    pairs = zip(found[side], found.get(own, ()), strict=False)
    ratios = [other["whole_seconds"] / ours["whole_seconds"] for other, ours in pairs]
    return statistics.median(ratios) if ratios else None


def ratios(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float | None]]:
    """Each side's seconds / those of siafu with a search and without one."""
    return {side: {own: ratio(found, side, own) for own in ("siafu", "siafu-off")} for side in found}


def show(case: Case, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print a row for each side; ratios are medians over rounds."""
    print(f"\n{case.name}: {case.kind}, {case.data}, hidden {case.hidden}, {case.epochs} epochs")
    head = f"  {'':13} {'seconds':>8} {'from':>7} {'to':>7} {'siafu is':>9} {'off is':>9}"
    print(f"{head} {'steps':>7} {'peak RSS':>9} {'test':>7}")
    for side, runs in found.items():
        whole = [run["whole_seconds"] for run in runs]
        line = f"  {side:13} {statistics.median(whole):8.2f} {min(whole):7.2f} {max(whole):7.2f}"
        for own in ("siafu", "siafu-off"):
            times = ratio(found, side, own)
            line += f" {'' if times is None else f'{times:.1f}x':>9}"
        if side != "import torch":
            steps = statistics.median(run["step_seconds"] for run in runs)
            rss = f"{statistics.median(run['peak_rss_bytes'] for run in runs) / 2**20:,.0f} MB"
            line += f" {steps:7.2f} {rss:>9} {statistics.median(run['test_score'] for run in runs):7.4f}"
        print(line, flush=True)
    if "siafu-off" in found:
        print(
            f"  cost of the search: {ratio(found, 'siafu', 'siafu-off'):.2f}x the seconds without it",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dgl-python", help="a Python that has DGL")
    parser.add_argument("--temporal-python", help="a Python that has PyG Temporal")
    parser.add_argument("--large", action="store_true", help="also the graph of 15M edges")
    parser.add_argument("--only", nargs="*", default=None, choices=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the results there")
    args = parser.parse_args()
    pythons = dict.fromkeys(("siafu", "siafu-off", "pyg", "pyg-csr"), sys.executable)
    pythons |= {"dgl": args.dgl_python} if args.dgl_python else {}
    pythons |= {"pyg-temporal": args.temporal_python} if args.temporal_python else {}
    results = {}
    for case in CASES:
        wanted = case.name in args.only if args.only else args.large or not case.large
        if wanted and case.here:
            results[case.name] = run_case(case, pythons, args.rounds)
            show(case, results[case.name])
    found = {name: {"runs": runs, "ratios": ratios(runs)} for name, runs in results.items()}
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    require_core()
    main()
