"""Two checkouts of siafu side by side: time and CPU seconds of the new one beside those of the old one.

    python benchmarks/pairs.py --before ../old                    9 pairs of each measurement, an hour or so
    python benchmarks/pairs.py --before ../old --only gcn whole   some of them
    python benchmarks/pairs.py --before ../old --pairs 3          fewer pairs

Each checkout has its own compiled core, in a virtual environment ``.venv``. A pair runs both checkouts, each with its
own benchmark scripts, in fresh processes and in turn; the one that goes first alternates. Training steps (spmm, gcn,
gat) are timed by the clock, one step of each side in turn. Epochs of runs on two ranks (cpu) count in CPU seconds,
commands of ``commands.py`` (whole) by the clock, from start to end. The result is the median over the pairs of after /
before: above 1, the new checkout is slower.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from commands import CASES as COMMANDS
from commands import run_command, write_data
from core import require_core
from run import CASES, write_graph
from turns import Side

_STEPS = {"spmm": 15, "gcn": 9, "gat": 4}
_RUNS = ("cpu", "whole")
_CPU_NODES, _CPU_EPOCHS = 10_000, 40
Seconds = dict[str, list[float]]  # by name of the measurement: before, after


def steps_of(kind: str, trees: Sequence[Path], folder: Path, *, flip: bool) -> Seconds:
    """Seconds of a training step of each checkout, step by step in turn; fresh processes."""
    sides = [
        Side(tree.name, [str(_python(tree)), str(tree / "benchmarks/side.py"), "siafu", kind, str(folder)])
        for tree in trees
    ]
    order = sides[::-1] if flip else sides
    for _ in range(_STEPS[kind] + 1):
        for side in order:
            side.step()
    return {f"{kind}, seconds a step": [side.end()["seconds"] for side in sides]}


def cpu_of(trees: Sequence[Path], folder: Path, *, flip: bool) -> Seconds:
    """CPU seconds of an epoch of each checkout, by method and kind of worker."""
    found: dict[Path, dict[str, list[float]]] = {}
    sizes = [
        "--rounds",
        "1",
        "--nodes",
        str(_CPU_NODES),
        "--epochs",
        str(_CPU_EPOCHS),
        "--folder",
        str(folder),
    ]
    for tree in trees[::-1] if flip else trees:
        script = [str(_python(tree)), str(tree / "benchmarks/cpu_seconds.py")]
        done = subprocess.run([*script, *sizes], check=True, stdout=subprocess.PIPE, text=True)
        found[tree] = json.loads(done.stdout.splitlines()[-1])["seconds"]
    names = [name for name in found[trees[0]] if name in found[trees[1]]]
    return {f"{name}, CPU seconds an epoch": [found[tree][name][0] for tree in trees] for name in names}


def whole_of(trees: Sequence[Path], folder: Path, *, flip: bool) -> Seconds:
    """Seconds of whole commands with each checkout."""
    found: Seconds = {}
    for case in COMMANDS:
        if not case.here:
            continue
        seconds: dict[Path, float] = {}
        for tree in trees[::-1] if flip else trees:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                ran = run_command(case.command(_python(tree), folder, Path(out) / "run"))
            seconds[tree] = ran["whole_seconds"]
        found[f"{case.name}, seconds of the command"] = [seconds[tree] for tree in trees]
    return found


def _python(tree: Path) -> Path:
    return tree / ".venv/bin/python"


def _pair(kind: str, trees: Sequence[Path], folder: Path, *, flip: bool) -> Seconds:
    match kind:
        case "cpu":
            return cpu_of(trees, folder, flip=flip)
        case "whole":
            return whole_of(trees, folder, flip=flip)
    return steps_of(kind, trees, folder, flip=flip)


def run_pairs(args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """All pairs: by measurement, the pairs of before and after."""
    trees = [args.before.absolute(), args.after.absolute()]
    pairs: dict[str, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        for kind in args.only:
            folder = Path(temporary) / kind
            folder.mkdir()
            if kind in _STEPS:
                write_graph(next(case for case in CASES if case.kind == kind), folder)
            elif kind == "whole":
                write_data(folder)
            for number in range(args.pairs):
                found = _pair(kind, trees, folder, flip=bool(number % 2))
                for name, pair in found.items():
                    pairs[name].append(pair)
                    print(f"  {name:40} {pair[0]:8.4f} {pair[1]:8.4f}", file=sys.stderr, flush=True)
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the old checkout")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1], help="the new one; this one")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=[*_STEPS, *_RUNS], choices=[*_STEPS, *_RUNS])
    pairs = run_pairs(parser.parse_args())
    print(f"{'':40} {'before':>8} {'after':>8} {'ratio':>7}  pairs from to")
    for name, each in pairs.items():
        ratios = [after / before for before, after in each]
        before, after = (statistics.median(side) for side in zip(*each, strict=True))
        spread = f"{len(each):5} {min(ratios):5.2f} {max(ratios):4.2f}"
        print(f"{name:40} {before:8.4f} {after:8.4f} {statistics.median(ratios):7.3f} {spread}")
    print(json.dumps(pairs))


if __name__ == "__main__":
    require_core()
    main()
