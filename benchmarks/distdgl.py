"""Sampled training on two hosts of one thread each: siafu beside DistDGL, in time and in bytes. Needs root.

    python benchmarks/distdgl.py --dgl-python PATH          500k nodes, 15M edges; METIS parts on both sides
    python benchmarks/distdgl.py --nodes 50000 --by stream  a smaller graph, siafu's own partitioner, siafu alone

The hosts are network namespaces with a private /dev/shm each (see ``namespaces.py``). SAGE of 3 layers, fanouts 15, 10,
5, hidden 256; a minibatch has 1024 seeds of each host, so both sides make as many steps. Bytes are what both interfaces
sent in an epoch. Of DistDGL that is what they counted in its second epoch; of siafu the difference of a run of three
epochs and one of one, halved, since what is done once a run is the same in both. Without a Python that has DGL the
figures that were recorded of DistDGL stand there, marked so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import require_core
from hosts import train_across
from namespaces import Host, refusal, two_hosts
from ranks import SIAFU
from run import write_arrays
from sage import an_epoch, arguments, epoch_seconds

from siafu.data import community
from siafu.store import write_store

SIDE = Path(__file__).with_name("distdgl_side.py")
_SHORT, _LONG = 1, 3  # epochs of siafu's runs


@dataclass(frozen=True)
class Epoch:
    """What one epoch took of a side.

    Attributes:
        side: whose.
        seconds: of the slower host.
        sent_bytes: by both interfaces.
        by_label: what siafu's meter counted in it; empty for others.
        recorded: whether it was measured elsewhere.
    """

    side: str
    seconds: float
    sent_bytes: float
    by_label: dict[str, float]
    recorded: bool = False


RECORDED = Epoch("DistDGL", 42.6, 2.09e9, {}, recorded=True)  # 500k nodes, 15M edges


def distdgl(args: argparse.Namespace, hosts: Sequence[Host], parts: Path) -> Epoch:
    """The second epoch of DistDGL."""
    (parts / "ip_config.txt").write_text("".join(f"{host.address} 30050\n" for host in hosts))
    shared = [str(parts), "--master", hosts[0].address, "--batch", str(args.batch), "--epochs", "2"]
    command = [args.dgl_python, str(SIDE), "host", *shared]
    trainers = [
        host.start(
            [*command, "--place", str(place)],
            environ=dict(os.environ) | {"GLOO_SOCKET_IFNAME": host.interface},
        )
        for place, host in enumerate(hosts)
    ]
    second = [_last_line(trainer, args.timeout) for trainer in trainers]
    return Epoch("DistDGL", max(it["seconds"] for it in second), sum(it["bytes"] for it in second), {})


def _last_line(trainer: "subprocess.Popen[str]", timeout_s: float) -> dict[str, Any]:
    """What a trainer printed of its last epoch."""
    try:
        said, errors = trainer.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        made = sum(line.startswith("{") for line in said.splitlines())
        raise RuntimeError(f"DistDGL made {made} of 2 epochs in {timeout_s:g} s; raise --timeout") from None
    if trainer.returncode:
        raise RuntimeError(f"a host of DistDGL ended with exit code {trainer.returncode}:\n{errors}")
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def siafu(args: argparse.Namespace, hosts: Sequence[Host], folder: Path, *, cached: bool) -> Epoch:
    """An epoch of siafu: the median of all but the first."""
    name = f"siafu, {'cached aggregate' if cached else 'all hops sampled'}"
    settings = [f"partition.by={args.by}", f"sampled.batch_size={args.batch}"]
    settings += [f"sampled.cache_aggregate={str(cached).lower()}", *args.set]
    runs, out = [], folder / "unset"
    for epochs in (_SHORT, _LONG):
        out = folder / f"{cached}-{epochs}"
        command = arguments(folder / "store", out, epochs=epochs, settings=settings)
        runs.append(train_across(hosts, command, timeout_s=args.timeout))
    more = _LONG - _SHORT
    sent = (sum(runs[1].interfaces) - sum(runs[0].interfaces)) / more
    labels = an_epoch(*(run.found["bytes_by_label"] for run in runs), epochs=more)
    return Epoch(name, statistics.median(epoch_seconds(out)[1:]), sent, labels)


def main() -> None:
    args = _parse()
    if why := refusal():
        sys.exit(f"no hosts can be made here: {why}")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        ours, theirs = _prepared(args, Path(temporary))
        with two_hosts(ours, rate=args.rate, whole_packets=False) as hosts:
            rows = [distdgl(args, hosts, theirs)] if args.dgl_python else []
            rows += [siafu(args, hosts, ours, cached=cached) for cached in (False, True)]
    if not args.dgl_python and (args.nodes, args.degree) == (500_000, 30):
        rows.insert(0, RECORDED)
    _show(args, rows)
    print(json.dumps([vars(row) for row in rows]))


def _prepared(args: argparse.Namespace, folder: Path) -> tuple[Path, Path]:
    """The graph cut in two by each side, siafu's in a folder that its second host does not see."""
    ours, arrays, theirs = (folder / name for name in ("siafu", "arrays", "dgl"))
    for each in (ours, arrays, theirs):
        each.mkdir()
    graph = community(args.nodes, degree=args.degree, features=100, classes=47, seed=0)
    write_store(graph, ours / "store")
    _run([*SIAFU, "partition", str(ours / "store"), "--parts", "2", "--by", args.by])
    if args.dgl_python:
        write_arrays(graph, arrays)
        _run([args.dgl_python, str(SIDE), "partition", str(arrays), str(theirs)])
    return ours, theirs


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stderr}")


def _show(args: argparse.Namespace, rows: list[Epoch]) -> None:
    about = f"{args.nodes:,} nodes of degree {args.degree:g}, {args.by} parts, minibatches of {args.batch}"
    print(f"SAGE on two hosts of one thread, {about}, over {args.rate}")
    print(f"  {'':26} {'an epoch':>10} {'sent':>12}")
    for row in rows:
        note = "  recorded, not measured here" if row.recorded else ""
        print(f"  {row.side:26} {row.seconds:8.2f} s {row.sent_bytes / 1e6:9.1f} MB{note}")
        for label, count in row.by_label.items():
            print(f"    {label:36} {count / 1e6:9.1f} MB")
    if rows[0].side != "DistDGL":
        return
    for row in rows[1:]:
        faster, fewer = rows[0].seconds / row.seconds, rows[0].sent_bytes / row.sent_bytes
        print(f"  {row.side}: {faster:.2f}x as fast, {fewer:.1f}x fewer bytes")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dgl-python", help="a Python that has DGL 2.1 with torch 2.2")
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--degree", type=float, default=30)
    parser.add_argument("--by", default="metis", help="how siafu cuts; DGL uses METIS")
    parser.add_argument(
        "--batch", type=int, default=2048, help="seeds of a minibatch, of both hosts together"
    )
    parser.add_argument("--rate", default="10gbit", help="of the interfaces, as tc takes it")
    parser.add_argument("--set", action="append", default=[], help="further settings of siafu train")
    parser.add_argument("--timeout", type=float, default=900, help="seconds of each run")
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
