"""Kill functions at random moments: the run must end with the bytes of the quiet one.

    python benchmarks/function_kills.py                         8 emulators, 30 % of all workers killed
    python benchmarks/function_kills.py --epochs 20 --emulators 4

Workers run in AWS's own runtime client under AWS's Runtime Interface Emulator, from the zip that ``siafu lambda
package`` writes; one emulator a worker. Each worker that comes is killed (SIGKILL) with the given chance, at a moment
that is picked at random. An emulator starts its function again at the next lease.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
from core import require_core
from emulators import emulators, listening, set_lease_key

from siafu.workers.handler import handler
from siafu.workers.lambda_package import write_package

SIAFU = [sys.executable, "-m", "siafu"]
HANDLER = f"{handler.__module__}.{handler.__name__}"


def main() -> None:
    args = _parse()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_package(folder / "worker.zip")
        with zipfile.ZipFile(folder / "worker.zip") as package:
            package.extractall(folder / "function")
        quiet = run(folder, "quiet", args, chance=0.0)
        hunted = run(folder, "hunted", args, chance=args.chance)
        same = weights(folder / "quiet") == weights(folder / "hunted")
    for name, (found, seconds, killed, came) in {"quiet": quiet, "hunted": hunted}.items():
        print(
            f"{name:7} {seconds:6.1f} s  {found['epochs']:4} epochs  {found['tasks']:6} tasks  "
            f"{found['tasks_relaunched']:4} again  {came:3} workers, {killed:3} killed"
        )
    print(f"weights {'bit-identical' if same else 'DIFFERENT'}")
    print(
        json.dumps(
            {"same": same, "killed": hunted[2], "workers": hunted[3], "again": hunted[0]["tasks_relaunched"]}
        )
    )
    if not same:
        raise SystemExit(1)


def run(
    folder: Path, name: str, args: argparse.Namespace, *, chance: float
) -> tuple[dict[str, Any], float, int, int]:
    """What a run measured, its seconds, how many workers were killed, and how many came."""
    began_s, draw = time.monotonic(), random.Random(args.seed)
    set_lease_key()
    with emulators(args.emulators, folder / "function", handler=HANDLER) as places:
        process = start(folder / name, listening(places), args)
        doomed: dict[int, float] = {}
        seen: set[int] = set()
        killed = 0
        while process.poll() is None:
            for pid in functions(places) - seen:
                seen.add(pid)
                if draw.random() < chance:
                    doomed[pid] = time.monotonic() + draw.uniform(0.5, args.longest)
            for pid in [pid for pid, due_s in doomed.items() if time.monotonic() > due_s]:
                del doomed[pid]
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(f"siafu train ended with exit code {process.returncode}:\n{err}")
    return json.loads(out.splitlines()[-1]), time.monotonic() - began_s, killed, len(seen)


def start(out: Path, urls: list[str], args: argparse.Namespace) -> "subprocess.Popen[str]":
    settings = {
        "pipeline.workers": "lambda",
        "pipeline.function": "function",
        "pipeline.endpoint": ",".join(urls),
        "pipeline.num_workers": args.emulators,
        "pipeline.intervals": 16,
        "train.patience": 0,
        "model.hidden": 32,
    }
    environ = os.environ | {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    environ |= {"AWS_DEFAULT_REGION": "us-east-1"}
    command = [*SIAFU, "train", args.data, "--method", "pipeline", "--epochs", str(args.epochs), "--json"]
    command += [
        "--out",
        str(out),
        *(each for pair in settings.items() for each in ("--set", f"{pair[0]}={pair[1]}")),
    ]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def functions(places: list[tuple[str, int]]) -> set[int]:
    """The processes that run functions now: AWS's runtime client, below each emulator."""
    found = set()
    for _, pid in places:
        try:
            found |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
        except psutil.Error:
            continue
    return found


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="community:nodes=20000,degree=12,features=64,classes=8")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--emulators", type=int, default=8)
    parser.add_argument("--chance", type=float, default=0.3, help="of each worker to be killed")
    parser.add_argument(
        "--longest", type=float, default=10.0, help="seconds that a doomed worker lives, at most"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
