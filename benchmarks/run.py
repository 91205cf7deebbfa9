"""siafu beside PyG, DGL and plain torch on the same generated graph, in one run, step by step in turn.

    python benchmarks/run.py                        every case but the large one, without DGL
    python benchmarks/run.py --dgl-python PATH      also DGL, in a Python that has it (DGL 2.1 with torch 2.2)
    python benchmarks/run.py --large                also 500k nodes, 15M edges

Every side is a process of its own, so that peak memory is its own; one step of each side is made in turn, so that what
else the machine does hits all alike. Ratios are of the medians.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from core import require_core
from turns import Side

if TYPE_CHECKING:
    from siafu.graph import Graph

SIDE = Path(__file__).with_name("side.py")


@dataclass(frozen=True)
class Case:
    """One comparison: what is computed, on how large a graph, and against whom."""

    name: str
    kind: str
    nodes: int
    degree: float
    against: tuple[str, ...]
    steps: int
    train_steps: int = 0


CASES = [
    Case("spmm-100k", "spmm", 100_000, 25, ("torch", "dgl"), steps=15),
    Case("gcn-100k", "gcn", 100_000, 25, ("pyg", "dgl"), steps=9, train_steps=40),
    Case("gat-100k", "gat", 100_000, 25, ("pyg", "dgl"), steps=4, train_steps=0),
    Case("gcn-500k", "gcn", 500_000, 30, ("pyg", "dgl"), steps=4),
]


def write_graph(case: Case, folder: Path) -> None:
    from siafu.data import community

    write_arrays(community(case.nodes, degree=case.degree, features=100, classes=47, seed=0), folder)


def write_arrays(graph: "Graph", folder: Path) -> None:
    """Write a graph as arrays that every side can read."""
    edges = np.stack([graph.indices.numpy(), graph.block.row_edge.numpy().astype(np.int32)])
    arrays = {
        "edges": edges,
        "x": graph.x,
        "y": graph.y,
        "train_mask": graph.train_mask,
        "val_mask": graph.val_mask,
        "test_mask": graph.test_mask,
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.asarray(array))


def compare(case: Case, pythons: dict[str, str], threads: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_graph(case, folder)
        names = ["siafu", *(name for name in case.against if name in pythons)]
        how = [case.kind, str(folder), "--threads", str(threads)]
        sides = [Side(name, [pythons[name], str(SIDE), name, *how]) for name in names]
        for _ in range(case.steps + 1):
            for side in sides:
                side.step()
        for side in sides:
            for _ in range(case.train_steps - case.steps - 1):
                side.ask("step")
        return [side.end() for side in sides]


def show(case: Case, rows: list[dict[str, Any]]) -> None:
    print(f"\n{case.name}: {case.nodes:,} nodes, about {int(case.nodes * case.degree):,} edges")
    print(f"  {'':8} {'seconds':>9} {'siafu is':>9} {'peak RSS':>10} {'test accuracy':>14}")
    ours = rows[0]["seconds"]
    for row in rows:
        ratio = "" if row["side"] == "siafu" else f"{row['seconds'] / ours:.2f}x"
        accuracy = f"{row['accuracy']:.4f}" if row["accuracy"] is not None and case.train_steps else ""
        memory = f"{row['peak_rss_bytes'] / 2**20:,.0f} MB"
        print(f"  {row['side']:8} {row['seconds']:9.3f} {ratio:>9} {memory:>10} {accuracy:>14}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dgl-python", help="a Python that has DGL")
    parser.add_argument("--large", action="store_true", help="also the graph of 15M edges")
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the results there")
    args = parser.parse_args()
    pythons = {"siafu": sys.executable, "pyg": sys.executable, "torch": sys.executable}
    if args.dgl_python:
        pythons["dgl"] = args.dgl_python
    found = {}
    for case in CASES:
        if case.name in args.only if args.only else args.large or case.nodes <= 100_000:
            rows = compare(case, pythons, args.threads)
            show(case, rows)
            found[case.name] = rows
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    require_core()
    main()
