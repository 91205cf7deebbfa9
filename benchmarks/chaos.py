"""Disturb runs at random moments and look at the outcome: every run must end, with the bytes of the undisturbed one.

    python benchmarks/chaos.py --trials 500 --seed 0            append the trials to chaos.jsonl, and print the table
    python benchmarks/chaos.py --trials 500 --seed 0 --only 17  one trial again; prints its messages
    python benchmarks/chaos.py --report chaos.jsonl             the table alone, of one file or several

A trial is a run (method, ranks, engine, kind of worker) and a fault: SIGKILL, SIGSTOP, a pause, a link that goes down,
a full disk, a damaged file, exhausted memory, Ctrl-C or SIGTERM. Where the fault ends the run, it is resumed. Trials
are drawn by (seed, number) alone. The file keeps the trials and the undisturbed runs; those that it holds are not done
again, so that a long run can be done in pieces. Remove the file after a change of the code. Needs root.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos_draw import Setup, Trial, draw
from chaos_faults import (
    LOSSES,
    control_group,
    damage,
    judge,
    lift,
    strike,
    wait_for_moment,
    wait_until_noticed,
)
from chaos_report import report
from chaos_runs import ORPHAN_S, Stage, data_of, stage_for
from core import require_core
from emulators import set_lease_key
from namespaces import refusal

from siafu.data.loading import load
from siafu.store import write_dynamic, write_store

Record = dict[str, Any]
_MESSAGE_CHARACTERS = 3000
_SLOWER = 0.7  # by which ranks as processes take longer than as threads, mostly to start


def run_undisturbed(setup: Setup, folder: Path) -> Record:
    """Train without a fault: how long that takes, and the checksum of the weights."""
    began_s = time.monotonic()
    with stage_for(setup, folder / "undisturbed", stores=folder) as stage:
        _start(stage)
        codes = stage.wait_for_end()
        seconds = time.monotonic() - began_s
        if any(codes) or stage.hung or not stage.finished:
            raise RuntimeError(f"the undisturbed run {setup.key} ended with {codes}:\n{stage.messages()}")
        return {"reference": setup.key, "seconds": round(seconds, 2), "digest": stage.digest()}


def run_trial(trial: Trial, reference: Record, folder: Path) -> Record:
    """Run, strike, resume, compare."""
    fault, record = trial.fault, trial.record()
    began_s = time.monotonic()
    with ExitStack() as stack:
        group = stack.enter_context(control_group()) if fault.kind == "memory" else None
        place = folder / f"trial-{trial.number}"
        stage = stack.enter_context(stage_for(trial.setup, place, stores=folder, disk=fault.kind == "disk"))
        stage.group = group
        _start(stage)
        record |= _suffer(stage, trial, reference, began_s)
        record |= _compare(stage, trial, reference)
    record["seconds"] = round(time.monotonic() - began_s, 2)
    return record


def _start(stage: Stage) -> None:
    stage.start()
    if stage.setup.workers == "hand" and stage.wait(
        lambda: (stage.run / "lease-0.json").is_file(), seconds=30
    ):
        stage.start_worker()


def _suffer(stage: Stage, trial: Trial, reference: Record, began_s: float) -> Record:
    """Let the fault strike, and bring the run to its end."""
    fault, problems, messages = trial.fault, list[str](), list[str]()
    late = fault.kind == "damage" and fault.target == "model.safetensors"  # it is written at the very end
    seconds = reference["seconds"] * (1 + _SLOWER * (trial.setup.engine != "local"))
    reached = not late and wait_for_moment(stage, fault, seconds, began_s)
    struck = strike(stage, fault) if reached else None
    found: Record = {"struck": struck is not None or late, "noticed_s": None, "resumed": False, "code": None}
    if struck is not None:
        found["struck_s"] = round(struck.at_s - began_s, 2)
        if fault.kind in LOSSES and fault.target != "command":
            found["noticed_s"] = round(wait_until_noticed(stage, fault, struck), 2)
    codes = stage.wait_for_end()
    found["code"] = codes[0] if len(codes) == 1 else codes
    if found["struck"]:
        problems += judge(stage, fault, codes) if not late else []
    messages.append(stage.messages())
    if struck is not None:
        found["orphans"] = stage.orphans()
    if fault.kind == "damage" and found["struck"] and (stage.run / "config.toml").is_file():
        problems += _resume_damaged(stage, trial, reference, messages)
    lift(stage, fault)
    if not stage.finished and not stage.hung:
        problems += _resume(stage, messages)
        found["resumed"] = True
    text = "\n--\n".join(messages)[-_MESSAGE_CHARACTERS:]
    return found | {"hung": stage.hung, "problems": problems, "messages": text}


def _resume(stage: Stage, messages: list[str]) -> list[str]:
    """Go on to the end; returns problems."""
    _start(stage)
    codes = stage.wait_for_end()
    messages.append(stage.messages())
    return [f"resume ended with exit code {code}" for code in codes if code]


def _resume_damaged(stage: Stage, trial: Trial, reference: Record, messages: list[str]) -> list[str]:
    """Damage a file and go on: an error must name the file, or the weights are as they should be."""
    path, before = damage(stage, trial.fault)
    stage.start()
    codes, text = stage.wait_for_end(), stage.messages()
    messages.append(f"damaged {path.name}:\n{text}")
    if any(codes):
        if path.name != "model.safetensors":
            path.write_bytes(before)
        else:
            path.unlink()  # as the message says
        wrong = [] if str(path.name) in text else [f"the error does not name the damaged file {path.name}"]
        return wrong + (["a traceback"] if "Traceback (most recent call last)" in text else [])
    same = stage.digest() == reference["digest"] or not trial.setup.exact
    return [] if same else [f"{path.name} was damaged, and nobody noticed"]


def _compare(stage: Stage, trial: Trial, reference: Record) -> Record:
    """The outcome beside the undisturbed run."""
    stopped = trial.fault.kind in ("stop", "cut") and trial.fault.target == "worker"
    end_s = time.monotonic() + ORPHAN_S
    hand = stage.helpers if trial.setup.workers == "hand" and not stopped else []
    while any(each.process.poll() is None for each in hand) and time.monotonic() < end_s:
        time.sleep(0.05)
    left = [f"worker by hand: {each.text}" for each in hand if each.process.poll() is None]
    identical = stage.digest() == reference["digest"] if trial.setup.exact else None
    found = {"finished": stage.finished, "identical": identical, "leftovers": stage.leftovers()}
    return found | {"late_orphans": stage.orphans() + left}


def run_trials(args: argparse.Namespace) -> None:
    """Run those trials that the file does not hold yet."""
    records = _read(args.out)
    references = {each["reference"]: each for each in records if "reference" in each}
    done = {each["trial"] for each in records if each.get("seed") == args.seed and "trial" in each}
    numbers = [args.only] if args.only is not None else [n for n in range(args.trials) if n not in done]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="siafu-chaos-") as temporary:
        folder = Path(temporary)
        _write_stores(folder)
        for number in numbers:
            trial = draw(args.seed, number)
            setup = trial.setup.reference
            if setup.key not in references:
                references[setup.key] = run_undisturbed(setup, folder)
                _append(args.out, references[setup.key])
            record = run_trial(trial, references[setup.key], folder)
            print(trial, _outcome(record), flush=True)
            if args.only is None:
                _append(args.out, record)
            else:
                print(record.pop("messages"), json.dumps(record, indent=1), sep="\n")


def _write_stores(folder: Path) -> None:
    write_store(load(data_of(Setup("full", 1, "local"))), folder / "static")
    write_dynamic(load(data_of(Setup("snapshots", 1, "local"))), folder / "changing")


def _outcome(record: Record) -> str:
    from chaos_report import defects

    wrong = defects(record)
    effect = f"struck at {record.get('struck_s', 'its end')}" if record["struck"] else "came too late"
    return f"{effect}, {record['seconds']:5.1f} s  {'; '.join(wrong) or 'good'}"


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []


def _append(path: Path, record: Record) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def main() -> None:
    args = _parse()
    require_core()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # processes, mounts and namespaces go
    if args.report is None:
        if why := refusal():
            sys.exit(f"no chaos here: {why}")
        set_lease_key()
        run_trials(args)
        if args.only is not None:
            return
    paths = args.report or [args.out]
    records = [each for path in paths for each in _read(path) if "trial" in each]
    print(report(records))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run this trial alone, and record nothing")
    parser.add_argument("--out", type=Path, default=Path("chaos.jsonl"), help="the file of records")
    parser.add_argument(
        "--report", type=Path, nargs="+", help="print the table of such files and run nothing"
    )
    parser.add_argument(
        "--folder", default="/var/tmp", help="where to work; not below /tmp, which trials replace"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
