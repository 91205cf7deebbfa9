"""Kill and stop ranks at random moments: every run must end, with the bytes of the undisturbed one, and leave nothing.

    python benchmarks/kills.py                      50 SIGKILLs and 20 SIGSTOPs
    python benchmarks/kills.py --kills 5 --stops 2

Runs of two rank processes are started one after another. A rank that is picked at random is struck at a moment that is
picked at random from the whole life of an undisturbed group: while it imports, meets, trains, saves or ends. Three
attempts in a row that get no further end a run by design, so after two of them the next strike waits for an epoch.
"""

import argparse
import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from core import require_core

SIAFU = [sys.executable, "-m", "siafu"]
MARK = "SIAFU_BENCHMARK"  # in the environment of all that belongs to a run
RANKS, FRUITLESS, SHORTER = 2, 2, 0.75
LOOK_S, HUNG_S = 0.02, 150.0


@dataclass(frozen=True)
class Strike:
    """What was done to a rank.

    Attributes:
        kind: the signal's name.
        rank: which rank.
        after_s: since its group was started.
        epoch: epochs that were written by then.
        recovered_s: until another group was there, or the run had ended.
    """

    kind: str
    rank: int
    after_s: float
    epoch: int
    recovered_s: float


@dataclass
class Ended:
    """A run that ended: what was done to it, and what came of it."""

    strikes: list[Strike] = field(default_factory=list)
    code: int = 0
    hung: bool = False
    errors: str = ""
    identical: bool = False
    orphans: int = 0
    ports: int = 0

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        return self.code == 0 and self.identical and not self.orphans and not self.ports


class Watched:
    """A run of the real command, whose ranks are found among its processes."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.out, self.mark = folder / secrets.token_hex(4), secrets.token_hex(8)
        settings = [
            "threads=1",
            f"comm.deadline={args.deadline}",
            "train.checkpoint_seconds=0",
            "train.patience=0",
        ]
        command = [*SIAFU, "train", args.data, "--ranks", str(RANKS), "--epochs", str(args.epochs)]
        command += [word for setting in settings for word in ("--set", setting)]
        self._errors = (folder / "errors").open("w+")
        self.process = subprocess.Popen(
            [*command, "--out", str(self.out)],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=dict(os.environ) | {MARK: self.mark},
        )
        self.ports: set[int] = set()
        self.hung = False

    def ranks(self) -> list[psutil.Process]:
        """The ranks that run now, in their order."""
        try:
            below = psutil.Process(self.process.pid).children()
            return sorted((each for each in below if "siafu.rank_process" in each.cmdline()), key=_rank_of)
        except (psutil.Error, KeyError):
            return []  # one ended just now

    def epochs(self) -> int:
        """Epochs that were written, those done twice included."""
        events = self.out / "events.jsonl"
        return events.read_bytes().count(b'"phase":"epoch"') if events.is_file() else 0

    def wait(self, until: Callable[[], bool], *, seconds: float) -> bool:
        """Whether something came true before the run ended; a run in which it never does is hung, and ended here."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            if until():
                return True
            if time.monotonic() > end:
                self.hung = True
                self.process.kill()  # and its ranks with it
                return False
            time.sleep(LOOK_S)
        return False

    def wait_for_epoch(self, epoch: int) -> bool:
        """Whether so many epochs were written before the run ended."""
        return self.wait(lambda: self.epochs() >= epoch, seconds=HUNG_S)

    def live_on(self, seconds: float) -> bool:
        """Whether the run still goes on after so long."""
        until = time.monotonic() + seconds
        return self.wait(lambda: time.monotonic() >= until, seconds=seconds + HUNG_S)

    def errors(self) -> str:
        """What the command said."""
        self._errors.flush()
        return Path(self._errors.name).read_text("utf-8")

    def strike(self, number: signal.Signals, rank: int, *, since: float) -> Strike | None:
        """Send a signal to a rank; waits until it has had its effect. None where there is nobody left."""
        ranks = self.ranks()
        if len(ranks) != RANKS or self.process.poll() is not None:
            return None
        self._note_ports(ranks)
        epoch, sent = self.epochs(), time.monotonic()
        ranks[rank].send_signal(number)
        before = {each.pid for each in ranks}
        self.wait(
            lambda: not before & {each.pid for each in self.ranks()} and bool(self.ranks()), seconds=HUNG_S
        )
        return Strike(number.name, rank, sent - since, epoch, time.monotonic() - sent)

    def end(self, weights: bytes | None) -> Ended:
        """Wait for the end, and look for what is left."""
        self.process.wait(timeout=600)
        model = self.out / "model.safetensors"
        same = model.is_file() and (weights is None or model.read_bytes() == weights)
        orphans = [each for each in psutil.process_iter() if _mark_of(each) == self.mark]
        listening = {
            each.laddr.port: each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        }
        ours = {each.pid for each in orphans} | {None}
        held = [port for port in self.ports if port in listening and listening[port] in ours]
        return Ended([], self.process.returncode, self.hung, self.errors(), same, len(orphans), len(held))

    def _note_ports(self, ranks: list[psutil.Process]) -> None:
        for each in [psutil.Process(self.process.pid), *ranks]:
            try:
                found = each.net_connections("tcp")
            except psutil.Error:
                continue
            self.ports |= {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


def _rank_of(process: psutil.Process) -> int:
    return int(process.environ()["RANK"])


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except psutil.Error:
        return None


def fruitless(done: list[Strike], epochs: int) -> bool:
    """Whether the last attempts got no further."""
    last = done[-FRUITLESS:]
    return len(last) == FRUITLESS and all(strike.epoch == epochs for strike in last)


def disturb(run: Watched, left: list[signal.Signals], life_s: float, dice: random.Random) -> list[Strike]:
    """Strike again and again until the run ends or nothing is left to do; takes what was done off the list."""
    done: list[Strike] = []
    while left and run.wait(lambda: len(run.ranks()) == RANKS, seconds=HUNG_S):
        since = time.monotonic()
        if fruitless(done, run.epochs()) and not run.wait_for_epoch(done[-1].epoch + 1):
            break
        if not run.live_on(since + dice.uniform(0, life_s) - time.monotonic()):
            break
        strike = run.strike(left[0], dice.randrange(RANKS), since=since)
        if strike is not None:
            done.append(strike)
            left.pop(0)
            print(
                f"  {strike.kind} of rank {strike.rank} {strike.after_s:6.2f} s after its start, {strike.epoch:4} "
                f"epochs written; {strike.recovered_s:6.2f} s until the next group or the end",
                flush=True,
            )
    return done


def main() -> None:
    args = _parse()
    dice = random.Random(args.seed)
    left = [signal.SIGKILL] * args.kills + [signal.SIGSTOP] * args.stops
    dice.shuffle(left)
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        weights, life_s = _undisturbed(Path(temporary), args)
        print(f"an undisturbed group lives for {life_s:.1f} s", flush=True)
        runs: list[Ended] = []
        while left:
            run = Watched(Path(temporary), args)
            strikes = disturb(run, left, life_s, dice)
            ended = run.end(weights)
            ended.strikes = strikes
            runs.append(ended)
            if not strikes:
                life_s *= SHORTER  # it ended before the moment came: the machine has less to do than it had
            print(
                f"run {len(runs)}: {len(strikes)} strikes, {'as it must be' if ended.good else ended}",
                flush=True,
            )
    _show(runs)


def _undisturbed(folder: Path, args: argparse.Namespace) -> tuple[bytes, float]:
    """The weights of a run that nobody struck, and how long its group lived."""
    run = Watched(folder, args)
    run.wait(lambda: bool(run.ranks()), seconds=HUNG_S)
    started = time.monotonic()
    ended = run.end(None)
    if not ended.good:
        raise RuntimeError(f"the undisturbed run failed: {ended}")
    return (run.out / "model.safetensors").read_bytes(), time.monotonic() - started


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--stops", type=int, default=20)
    parser.add_argument("--data", default="community:nodes=4000,degree=20,classes=8,features=32")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--deadline", type=float, default=2, help="seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the ranks")
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


def _show(runs: list[Ended]) -> None:
    strikes = [strike for run in runs for strike in run.strikes]
    print(f"\n{'':10} {'strikes':>8} {'before an epoch':>16} {'recovered in':>13} {'at most':>9}")
    for kind in ("SIGKILL", "SIGSTOP"):
        of = [strike for strike in strikes if strike.kind == kind]
        if of:
            early, took = sum(not strike.epoch for strike in of), [strike.recovered_s for strike in of]
            print(f"{kind:10} {len(of):8} {early:16} {statistics.median(took):11.2f} s {max(took):7.2f} s")
    print(f"\n{'runs':24} {len(runs):6}")
    for name, count in (
        ("finished", sum(run.code == 0 for run in runs)),
        ("hung", sum(run.hung for run in runs)),
        ("bit-identical", sum(run.identical for run in runs)),
        ("orphan processes", sum(run.orphans for run in runs)),
        ("ports held", sum(run.ports for run in runs)),
    ):
        print(f"{name:24} {count:6}")
    for number, run in enumerate(runs, 1):
        if not run.good:
            print(f"run {number} ended with exit code {run.code}:\n{run.errors}")
    print(
        json.dumps({"strikes": [vars(strike) for strike in strikes], "good": sum(run.good for run in runs)})
    )


if __name__ == "__main__":
    require_core()
    main()
