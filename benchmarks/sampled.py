"""Sampled training beside DGL and PyG on the same generated graph: an epoch of each side in turn.

    python benchmarks/sampled.py --dgl-python PATH              SAGE, beside DGL in a Python that has it
    python benchmarks/sampled.py --dgl-python PATH --model gat  or gcn
    python benchmarks/sampled.py --sampler --dgl-python PATH    the samplers alone, in edges per second
    python benchmarks/sampled.py --ablation                     each technique off in turn, on two ranks
    python benchmarks/sampled.py --accuracy --batches 10        five seeds, each technique beside plain sampling

3 layers, fanouts 15, 10, 5 (seeds draw 5), minibatches of 1024, hidden 256 (GAT: 4 heads of 64), Adam, dropout 0.5
between layers; one process, 2 threads; sampling, fetching and training are counted, evaluation is not. DGL is tried
without and with a sampling process, and the better one is what siafu is compared with. A peer that is not given stands
with the figure that was recorded of it for the whole epoch of SAGE on this graph, and is marked so.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import techniques
from core import require_core
from run import write_arrays
from sampled_side import BATCH
from techniques import some_trained
from turns import Side

from siafu.data import community

SIDE = Path(__file__).with_name("sampled_side.py")
RECORDED = {"dgl": 10.5, "pyg": 26.0}  # seconds: SAGE, 100k nodes, 2.5M edges, all minibatches, 2 threads
RECORDED_EDGES = {"dgl": 11.7e6, "graphbolt": 7.1e6, "pyg-lib": 5.6e6}  # a second


def write_graph(args: argparse.Namespace, folder: Path) -> None:
    """The same training nodes for all sides."""
    graph = community(args.nodes, degree=args.degree, features=100, classes=47, seed=0)
    write_arrays(some_trained(graph, args.batches), folder)


def take_turns(args: argparse.Namespace, names: list[str], pythons: dict[str, str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        write_graph(args, Path(temporary))
        how = [temporary, "--model", args.model, "--threads", str(args.threads)]
        ours = [word for setting in args.set for word in ("--set", setting)]
        what = "sampler" if args.sampler else "epoch"
        sides = [
            Side(
                name,
                [pythons[name], str(SIDE), what, name, *how, *(ours if name.startswith("siafu") else [])],
            )
            for name in names
        ]
        for _ in range(args.rounds + 1):
            for side in sides:
                side.step()
        return [side.end() for side in sides]


def compare_epochs(args: argparse.Namespace) -> list[dict[str, Any]]:
    pythons = {"siafu": sys.executable, "siafu-cached": sys.executable, "pyg": sys.executable}
    names = ["siafu"]
    if args.model != "gat":  # attention cannot be aggregated before it is learned
        names.append("siafu-cached")
    if args.dgl_python:
        pythons |= {"dgl": args.dgl_python, "dgl-worker": args.dgl_python}
        names += ["dgl", "dgl-worker"]
    if importlib.util.find_spec("torch_geometric"):
        names.append("pyg")
    rows = take_turns(args, names, pythons)
    if args.model == "sage" and not args.batches and _as_recorded(args):
        absent = set(RECORDED) - {row["side"] for row in rows}
        rows += [
            {"side": name, "seconds": RECORDED[name], "best_seconds": RECORDED[name], "recorded": True}
            for name in sorted(absent)
        ]
    return rows


def _as_recorded(args: argparse.Namespace) -> bool:
    return (args.nodes, args.degree, args.threads) == (100_000, 25, 2)


def show_epochs(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    some = f"{args.batches} minibatches" if args.batches else "all minibatches"
    print(
        f"{args.model}, {args.nodes:,} nodes, about {int(args.nodes * args.degree):,} edges, {some} of an epoch"
    )
    print(f"  {'':14} {'median':>9} {'best':>9} {'peak RSS':>10}")
    for row in rows:
        memory = f"{row['peak_rss_bytes'] / 2**20:,.0f} MB" if "peak_rss_bytes" in row else ""
        spent = [f"{key.removesuffix('_seconds')} {row[key]:.2f}" for key in row if key in SPENT]
        note = "recorded, not measured here" if row.get("recorded") else ", ".join(spent)
        if row["side"] == "pyg" and not row.get("recorded") and not importlib.util.find_spec("pyg_lib"):
            note = "on minibatches of siafu's loader: its own needs pyg-lib, which is not there"
        print(f"  {row['side']:14} {row['seconds']:7.2f} s {row['best_seconds']:7.2f} s {memory:>10}  {note}")
    found = {row["side"]: row for row in rows}
    for ours in (name for name in found if name.startswith("siafu")):
        for sides in (("dgl", "dgl-worker"), ("pyg",)):
            there = [found[side] for side in sides if side in found]
            if there:
                best = min(there, key=lambda row: row["seconds"])
                _show_ratio(found[ours], best)


SPENT = ("sample_seconds", "fetch_seconds", "compute_seconds")


def _show_ratio(ours: dict[str, Any], peer: dict[str, Any]) -> None:
    ratios = [peer[kind] / ours[kind] for kind in ("seconds", "best_seconds")]
    recorded = " as recorded" if peer.get("recorded") else ""
    what = f"{ours['side']} beside {peer['side']}{recorded}"
    print(f"  {what:36} {ratios[0]:6.2f}x by the median, {ratios[1]:.2f}x by the best", flush=True)


def compare_samplers(args: argparse.Namespace) -> list[dict[str, Any]]:
    names, pythons = ["siafu"], {"siafu": sys.executable}
    if args.dgl_python:
        names += ["dgl", "graphbolt"]
        pythons |= {"dgl": args.dgl_python, "graphbolt": args.dgl_python}
    rows = [row | {"rate": row["edges"] / row["seconds"]} for row in take_turns(args, names, pythons)]
    absent = [name for name in RECORDED_EDGES if name not in names and _as_recorded(args)]
    return rows + [{"side": name, "rate": RECORDED_EDGES[name], "recorded": True} for name in absent]


def show_samplers(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    print(f"samplers with relabelling, {args.nodes:,} nodes, minibatches of {BATCH}, {args.threads} threads")
    print(f"  {'':12} {'edges':>12} {'median':>9} {'edges a second':>15} {'siafu is':>9}")
    for row in rows:
        counted = f"{row['edges']:12,} {row['seconds']:7.3f} s" if "edges" in row else " " * 22
        ratio = "" if row is rows[0] else f"{rows[0]['rate'] / row['rate']:.2f}x"
        note = "  recorded, not measured here" if row.get("recorded") else ""
        print(f"  {row['side']:12} {counted} {row['rate'] / 1e6:13.2f}M {ratio:>9}{note}")


def main() -> None:
    args = _parse()
    if args.ablation or args.accuracy:
        rows = techniques.ablation(args) if args.ablation else techniques.accuracy(args)
    elif args.sampler:
        rows = compare_samplers(args)
        show_samplers(args, rows)
    else:
        rows = compare_epochs(args)
        show_epochs(args, rows)
    print(json.dumps(rows))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dgl-python", help="a Python that has DGL 2.1 with torch 2.2")
    parser.add_argument("--model", choices=["sage", "gcn", "gat"], default="sage")
    parser.add_argument("--sampler", action="store_true", help="compare the samplers alone")
    parser.add_argument("--ablation", action="store_true", help="time and bytes with each technique off")
    parser.add_argument("--accuracy", action="store_true", help="of several seeds, beside plain sampling")
    parser.add_argument("--seeds", type=int, default=5, help="of --accuracy")
    parser.add_argument("--epochs", type=int, default=20, help="of each run of --accuracy")
    parser.add_argument("--batches", type=int, default=0, help="minibatches of an epoch; default all")
    parser.add_argument("--rounds", type=int, default=3, help="counted epochs of each side")
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=float, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--set", action="append", default=[], help="settings of siafu, such as sampled.macrobatch=8"
    )
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
