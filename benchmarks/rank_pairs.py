"""Ranks among all pairs of two sets of nodes: siafu beside plain torch, which scores and compares blocks of rows.

    python benchmarks/rank_pairs.py                        4,000 x 4,000 pairs of width 64, one thread
    python benchmarks/rank_pairs.py --before ../old        another checkout of siafu in turn, with its own .venv
    python benchmarks/rank_pairs.py --nodes 6000 --width 100 --threads 2

Each side is a process of its own; they take turns, step by step. Cases: scores by ``relu(a + b) . w`` (mlp) or by
``a . b`` (dot); counts among all pairs or, with "own rows", among the pairs of each source alone; "equal rows": a tenth
of the rows is distinct, as for nodes without recent events. All sides must find the same counts, up to rounding. A pair
and column is 2 operations for dot and 4 for mlp, also where equal rows spare them. The ratio is the time of a side
divided by siafu's.
"""

import argparse
import inspect
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from core import require_core
from torch import Tensor
from turns import Side

from siafu import native
from siafu.native import Factors

CASES = ("mlp", "dot", "mlp, own rows", "dot, own rows", "mlp, equal rows", "dot, equal rows")
_BLOCK = 1 << 24  # numbers of torch's blocks


def make_factors(case: str, nodes: int, width: int) -> Factors:
    """Random factors."""
    draw = torch.Generator().manual_seed(0)
    a, b, w = (torch.randn(*size, generator=draw) for size in ((nodes, width), (nodes, width), (width,)))
    if "equal" in case:
        same = torch.randint(0, nodes // 10, (2, nodes), generator=draw)
        a, b = a[same[0]], b[same[1]]
    return Factors(a, b, w if case.startswith("mlp") else None)


def count_in_torch(factors: Factors, src: Tensor, score: Tensor, *, overall: bool) -> list[Tensor]:
    """The number of pairs above each of P scores, among all pairs and in its row, and of equal ones."""
    a, b, weight = factors
    level, place = score.unique(return_inverse=True)
    between, same = torch.zeros(2, level.numel() + 1, dtype=torch.int64)
    row_above, row_same = torch.zeros(2, score.numel(), dtype=torch.int64)
    step = max(1, _BLOCK // b.shape[0] // (1 if weight is None else b.shape[1]))
    for first in range(0, a.shape[0], step):
        block = a[first : first + step]
        found = block @ b.T if weight is None else (block[:, None] + b).relu() @ weight
        own = (src >= first) & (src < first + step)
        row = found[src[own] - first]
        row_above[own], row_same[own] = (
            each.sum(1) for each in (row > score[own, None], row == score[own, None])
        )
        if overall:
            below = torch.bucketize(found, level).view(-1)
            between += torch.bincount(below, minlength=level.numel() + 1)
            met = below[level[below.clamp(max=level.numel() - 1)] == found.view(-1)]
            same += torch.bincount(met, minlength=level.numel() + 1)
    above = between.flip(0).cumsum(0).flip(0)[1:]
    return [above[place], same[place], row_above, row_same]


def serve(args: argparse.Namespace) -> None:
    """Make a step for each line of standard input; answer with its seconds and the sum of the counts above."""
    torch.set_num_threads(args.threads)
    factors, overall = make_factors(args.case, args.nodes, args.width), "own" not in args.case
    draw = torch.Generator().manual_seed(1)
    src, dst = torch.randint(0, args.nodes, (2, args.positives), generator=draw)
    src = src.sort().values
    score = native.pair_scores(factors, src.int(), dst.int())
    indptr = torch.searchsorted(src, torch.arange(args.nodes + 1))
    skips = "overall" in inspect.signature(native.count_ranks).parameters
    print("{}", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        begin = time.perf_counter()
        if args.side == "torch":
            found = count_in_torch(factors, src, score, overall=overall)
        else:
            found = list(
                native.count_ranks(factors, indptr, score, **({"overall": overall} if skips else {}))
            )
        seconds = time.perf_counter() - begin
        above = int(found[0 if overall else 2].sum())
        print(json.dumps({"seconds": seconds, "above": above}), flush=True)
    print("{}", flush=True)


def measure(case: str, args: argparse.Namespace) -> list[dict[str, float | str]]:
    """The median seconds of each side in a case."""
    pythons = {"siafu": sys.executable, "torch": sys.executable}
    if args.before:
        pythons["before"] = str(args.before.absolute() / ".venv/bin/python")
    sizes = [f"--{name}={getattr(args, name)}" for name in ("nodes", "width", "positives", "threads")]
    sides = [
        Side(name, [python, __file__, f"--side={name}", f"--case={case}", *sizes])
        for name, python in pythons.items()
    ]
    for _ in range(args.steps + 1):
        for side in sides:
            side.step()
    counts = [side.told["above"] for side in sides]
    for each in counts:
        assert abs(each - counts[0]) <= 1e-4 * counts[0] + 20 * args.positives, counts
    seconds = [statistics.median(side.seconds[1:]) for side in sides]
    for side in sides:
        side.end()
    pairs, operations = args.nodes**2, args.width * (4 if case.startswith("mlp") else 2)
    return [
        {
            "case": case,
            "side": side.name,
            "seconds": each,
            "pairs_per_second": pairs / each,
            "gflops": pairs * operations / each / 1e9,
            "ratio": each / seconds[0],
        }
        for side, each in zip(sides, seconds, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--positives", type=int, default=300)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(args)
        return
    print(f"{'case':16} {'side':7} {'seconds':>8} {'pairs/s':>9} {'GFLOP/s':>8} {'ratio':>7}")
    found = [each for case in CASES for each in measure(case, args)]
    for each in found:
        print(
            f"{each['case']:16} {each['side']:7} {each['seconds']:8.4f} {each['pairs_per_second']:9.2e} "
            f"{each['gflops']:8.1f} {each['ratio']:7.2f}"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    require_core()
    main()
