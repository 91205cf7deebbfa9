"""Scores and wall times of all node-classification sets: defaults, fixed settings, and a search, as whole commands.

    python benchmarks/suite.py                                    all sets of SIAFU_DATA, public and random splits
    python benchmarks/suite.py --only cora,pubmed --folds 10      some sets, 10 public splits or seeds
    python benchmarks/suite.py --runs default,kipf                some kinds of run
    python benchmarks/suite.py --report suite.jsonl               the table alone, of one file or several

Kinds of run, each a command of its own that is timed from start to end:

    default     siafu train DATA
    kipf        siafu train DATA --config benchmarks/kipf.toml
    off         siafu train DATA --set train.search=off
    tune        siafu tune DATA --trials 20; the first fold of each set and split alone
    ensemble    siafu train DATA --set train.ensemble=5
    smooth      siafu train DATA with correct-and-smooth

Public splits are the stored ones: the first ``--folds`` of a set that has several, else as many seeds. Random splits
of 60 / 20 / 20 are three, each with a seed of its own. The file of ``--out`` gets a line for each run that ended, and
those that it holds are not run again, so that a suite that was killed goes on. Failed runs are shown below the table;
``--retry`` runs them again. Remove the file after a change of the code.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from core import require_core
from suite_report import report
from suite_runs import KINDS, SPLITS, SuiteRun, plan_runs, read_sets, run_one

Record = dict[str, Any]


def read_records(path: Path) -> list[Record]:
    """The records of a file; a last line that was not written to its end is left out."""
    text = path.read_text("utf-8") if path.is_file() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def append(path: Path, record: Record) -> None:
    """Add a line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def drop_torn_line(path: Path) -> None:
    """Remove a last line that was not written to its end."""
    if path.is_file() and not (data := path.read_bytes()).endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def left_to_run(runs: Sequence[SuiteRun], records: Sequence[Record], *, retry: bool) -> list[SuiteRun]:
    """The runs that have no record; with ``retry``, or none but of failures."""
    done = {SuiteRun.of(record) for record in records if not (retry and "error" in record)}
    return [run for run in runs if run not in done]


def run_suite(args: argparse.Namespace) -> None:
    """Run everything that the file does not hold yet."""
    drop_torn_line(args.out)
    sets = {each.name: each for each in read_sets()}
    if unknown := set(args.only or ()) - set(sets):
        sys.exit(f"no such set: {', '.join(sorted(unknown))}; there are {', '.join(sorted(sets))}")
    chosen = [each for name, each in sets.items() if not args.only or name in args.only]
    how = {"kinds": args.runs, "splits": args.splits, "folds": args.folds, "trials": args.trials}
    runs = left_to_run(plan_runs(chosen, **how), read_records(args.out), retry=args.retry)
    for number, run in enumerate(runs, 1):
        record = run_one(run, sets[run.set], args.out.absolute().with_suffix(".work"))
        append(args.out, record)
        print(f"{number} of {len(runs)}  {run.label:48} {_outcome(record)}", file=sys.stderr, flush=True)


def _outcome(record: Record) -> str:
    if "error" in record:
        return f"failed: {record['error']}"
    score = record["metrics"]["test_score"]
    return f"{'-' if score is None else f'{100 * score:.2f}'} in {record['seconds']:.1f} s"


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of names with commas between them."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if known and name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return names

    return parse


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names(()), metavar="SET,...", help="names of sets; all by default")
    parser.add_argument(
        "--runs",
        type=_names(tuple(KINDS)),
        default=["default", "kipf", "off", "tune"],
        metavar="KIND,...",
        help=f"kinds of run: {', '.join(KINDS)}; default,kipf,off,tune by default",
    )
    parser.add_argument("--splits", type=_names(SPLITS), default=list(SPLITS), metavar="SPLIT,...")
    parser.add_argument("--folds", type=int, default=1, help="number of public splits, or seeds")
    parser.add_argument("--trials", type=int, default=20, help="trials of a tune")
    parser.add_argument("--retry", action="store_true", help="run failed runs again")
    parser.add_argument("--out", type=Path, default=Path("suite.jsonl"), help="the file of records")
    parser.add_argument(
        "--report", type=Path, nargs="+", help="print the table of such files and run nothing"
    )
    return parser.parse_args()


def main() -> None:
    args = _parse()
    if args.report is None:
        require_core()
        signal.signal(
            signal.SIGTERM, lambda number, _: sys.exit(128 + number)
        )  # the command that runs ends, too
        run_suite(args)
    print(report([record for path in args.report or [args.out] for record in read_records(path)]))


if __name__ == "__main__":
    main()
