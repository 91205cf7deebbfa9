"""Each kernel beside what the machine can do at most, and beside torch's and PyG's own operation.

    python benchmarks/kernels.py                              every kernel, 100k nodes and 2.5M edges, two threads
    python benchmarks/kernels.py --before ../old              also another checkout, call by call in turn
    python benchmarks/kernels.py --only gat-8x8 spmm-47       some of them
    python benchmarks/kernels.py --shuffle                    nodes numbered at random: neighbours lie far apart
    python benchmarks/kernels.py --no-peers                   without torch and PyG, which take most of the time

Products are counted in GFLOP/s; the limit is a loop of multiply-adds in registers. Kernels that read rows of other
nodes are counted in GB/s of the rows' own bytes; the limit is a plain read of the same rows in the same order, and
nothing else. Every side is a process with the same number of threads; calls take turns, and times are the best of all
calls. Ratios are of medians.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from core import require_core
from kernel_cases import CASES, Arrays, Case, write_graph
from limits import gather_seconds, gflops
from turns import Side

SIDE = Path(__file__).with_name("kernels_side.py")
_PAUSE_S = 0.02  # threads of the side before wait actively for a while


def start_sides(args: argparse.Namespace, folder: Path) -> dict[str, Side]:
    """One process per side, this checkout's first."""
    how = [str(folder), "--threads", str(args.threads)]
    sides = {"siafu": Side("siafu", [sys.executable, str(SIDE), "siafu", *how])}
    if args.before:
        python = args.before.absolute() / ".venv/bin/python"
        sides["before"] = Side("before", [str(python), str(SIDE), "siafu", *how])
    if args.peers:
        sides["peer"] = Side("peer", [sys.executable, str(SIDE), "peer", *how])
    return sides


def time_case(case: Case, sides: dict[str, Side], calls: int) -> dict[str, list[float]]:
    """Seconds of each call of each side, in turn; the first is not counted. A peer is slower and called less often."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(calls + 1):
        order = list(sides.items())
        for name, side in order[::-1] if turn % 2 else order:
            if name == "peer" and turn > 2:
                continue
            time.sleep(_PAUSE_S)
            seconds = side.ask(case.name)["seconds"]
            if turn and seconds is not None:
                found[name].append(seconds)
    return found


def limit_of(case: Case, arrays: Arrays, threads: int, peak: float) -> float:
    """Return the least seconds in which this machine could do the case's work."""
    if case.inputs:
        return case.flops(arrays.num_nodes) / peak / 1e9
    extra = {"gat": 2 * case.heads, "gatv2": case.columns}.get(case.kind, 0)
    stored = arrays.rows(case.columns + (0 if case.backward else extra))
    ids = (arrays.transposed if case.backward else arrays.csr)[1]
    return case.gathers * min(gather_seconds(stored, case.columns, ids, threads) for _ in range(4))


def row_of(case: Case, seconds: dict[str, list[float]], limit: float, arrays: Arrays) -> dict[str, Any]:
    best = min(seconds["siafu"])
    work = case.flops(arrays.num_nodes)
    if not case.inputs:
        work = 4.0 * case.gathers * case.columns * arrays.csr[1].numel()
    row: dict[str, Any] = {"seconds": best, "rate": work / best / 1e9, "limit_share": limit / best}
    for name, times in seconds.items():
        if name != "siafu" and times:
            ratio = statistics.median(times) / statistics.median(seconds["siafu"])
            row[name] = {"seconds": min(times), "times": ratio}
    return row


def show(case: Case, row: dict[str, Any]) -> None:
    unit = "GFLOP/s" if case.inputs else "GB/s"
    others = "".join(
        f"  {name} {row[name]['seconds'] * 1e3:8.2f} ms, {row[name]['times']:5.2f}x"
        for name in ("before", "peer")
        if name in row
    )
    share = f"{row['limit_share']:5.0%} of the limit"
    print(
        f"{case.name:20} {row['seconds'] * 1e3:8.2f} ms {row['rate']:7.1f} {unit:8} {share}{others}",
        flush=True,
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    torch.set_num_threads(args.threads)
    peak = gflops(args.threads)
    print(f"multiply-adds in registers: {peak:.1f} GFLOP/s on {args.threads} threads")
    found: dict[str, Any] = {"gflops": peak}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_graph(folder, nodes=args.nodes, degree=args.degree, shuffle=args.shuffle)
        arrays, sides = Arrays(folder), start_sides(args, folder)
        for case in CASES.values():
            if args.only and case.name not in args.only:
                continue
            seconds = time_case(case, sides, args.calls)
            found[case.name] = row_of(case, seconds, limit_of(case, arrays, args.threads, peak), arrays)
            show(case, found[case.name])
        for side in sides.values():
            side.process.kill()
            side.process.communicate()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="another checkout, with its own .venv")
    parser.add_argument("--only", nargs="*", choices=CASES, metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--shuffle", action="store_true", help="number the nodes at random")
    parser.add_argument("--calls", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--degree", type=float, default=25)
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    require_core()
    main()
