"""Two ranks on two hosts that share nothing: what our meter counts against what the interfaces count. Needs root.

    python benchmarks/hosts.py                      20k nodes, 400k edges, over 400 Mbit/s
    python benchmarks/hosts.py --nodes 100000 --rate 1gbit

The hosts are network namespaces (see ``namespaces.py``); the second sees neither the store nor the run, so its part
comes over the wire. Ranks are started by torchrun on each host. Interfaces count every byte of every packet, headers
and acknowledgements included, of torchrun's own connections as well.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import require_core
from namespaces import Host, refusal, two_hosts

from siafu.data import community
from siafu.store import write_store

_PORT = 29400
_SECRET = secrets.token_hex(32)
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Crossed:
    """A run over two hosts: what rank 0 printed, what each interface sent, and how long it all took."""

    found: dict[str, Any]
    interfaces: tuple[int, int]
    seconds: float


def train_across(hosts: Sequence[Host], arguments: Sequence[str], *, timeout_s: float) -> Crossed:
    """Run ``siafu train`` with these arguments as one rank on each host, and wait for both."""
    started, before = time.monotonic(), [host.sent_bytes() for host in hosts]
    ranks = [
        host.start(_torchrun(hosts, place, arguments), environ=_environ()) for place, host in enumerate(hosts)
    ]
    left = (max(0.0, started + timeout_s - time.monotonic()) for _ in ranks)
    texts = [rank.communicate(timeout=seconds) for rank, seconds in zip(ranks, left, strict=True)]
    for host, rank, (_, errors) in zip(hosts, ranks, texts, strict=True):
        if rank.returncode:
            raise RuntimeError(f"{host.name} ended with exit code {rank.returncode}:\n{errors}")
    sent = [host.sent_bytes() - count for host, count in zip(hosts, before, strict=True)]
    found = json.loads(texts[0][0].splitlines()[-1])
    return Crossed(found, (sent[0], sent[1]), time.monotonic() - started)


def _torchrun(hosts: Sequence[Host], place: int, arguments: Sequence[str]) -> list[str]:
    meeting = ["--master-addr", hosts[0].address, "--master-port", str(_PORT)]
    group = ["--nnodes", str(len(hosts)), "--nproc-per-node", "1", "--node-rank", str(place), *meeting]
    siafu = [sys.executable, "-m", "siafu", "train"]
    own = ["--local-addr", hosts[place].address, "--no-python"]
    return [
        *(sys.executable, "-m", "torch.distributed.run", *group, *own),
        *(*siafu, *arguments, "--engine", "torchrun", "--json"),
    ]


def _environ() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return dict(os.environ) | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SIAFU_SECRET": _SECRET}


def main() -> None:
    args = _parse()
    if why := refusal():
        sys.exit(f"no hosts can be made here: {why}")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary)
        write_store(community(args.nodes, degree=args.degree, seed=0), folder / "store")
        command = [str(folder / "store"), "--model", "gcn", "--hidden", "64", "--epochs", str(args.epochs)]
        command += ["--set", "threads=1", "--out", str(folder / "run")]
        with two_hosts(folder, rate=args.rate) as hosts:
            crossed = train_across(hosts, command, timeout_s=args.timeout)
    _show(crossed, args)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    print(
        json.dumps({"meter": crossed.found["bytes_by_label"], "interfaces": crossed.interfaces, "left": left})
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--degree", type=float, default=20)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", default="400mbit", help="of the interfaces, as tc takes it")
    parser.add_argument("--timeout", type=float, default=600, help="seconds")
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


def _show(crossed: Crossed, args: argparse.Namespace) -> None:
    found, sent = crossed.found, sum(crossed.interfaces)
    print(
        f"{args.nodes:,} nodes of degree {args.degree:g}, {found['epochs']} epochs over {args.rate}:", end=" "
    )
    print(f"{crossed.seconds:.1f} s in all, an epoch {found['epoch_seconds']:.3f} s")
    for label, count in sorted(found["bytes_by_label"].items(), key=lambda each: -each[1]):
        print(f"  {label:24} {count / 1e6:10.3f} MB")
    print(f"{'our meter':26} {found['bytes_sent'] / 1e6:10.3f} MB")
    print(f"{'the interfaces':26} {sent / 1e6:10.3f} MB   {sent / found['bytes_sent']:.3f} of the meter")


if __name__ == "__main__":
    require_core()
    main()
