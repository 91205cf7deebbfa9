"""Three sites and a coordinator on four hosts, over 100 Mbit/s: the bits of one process, every byte accounted.

    python benchmarks/sites.py                                     PubMed, lazy training as published
    python benchmarks/sites.py --set 'lazy.recipe="frugal"'        the frugal recipe
    python benchmarks/sites.py --never --set 'lazy.recipe="logits"'    with policy features = never at every site
    python benchmarks/sites.py --kill b:5 --kill c:40              SIGKILL after so many epochs, and start again
    python benchmarks/sites.py --gone c:40                         the same, and never start it again
    python benchmarks/sites.py --kill coordinator:20               the coordinator

Hosts are network namespaces on one switch (``namespaces.py``), each interface with a token bucket. Interfaces count
every byte of every packet, headers and acknowledgements included. What crosses the first site's interface is captured,
and searched for the bytes of its features. Needs root.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from namespaces import Host, hosts_on_a_switch, refusal

from siafu.engine.sites.config import COORDINATOR
from siafu.engine.sites.ledger import read_ledger
from siafu.partition.assign import assign
from siafu.run import train
from siafu.settings import from_assignments, merge
from siafu.sites.trial import init_trial, split
from siafu.store import open_store
from siafu.trained import load

NAMES = ("a", "b", "c")
PORT = 7400
ASKED_RATIO, ASKED_BYTES = 1.06, 64 << 10  # of the meter, and for each connection
CONNECTIONS = 6  # between three sites, and from the coordinator to each
_ROOT = Path(__file__).resolve().parents[1]
_SIAFU = [sys.executable, "-c", "from siafu.cli import main; main()"]
_CAPTURE = """\
import socket, sys
sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
sock.bind((sys.argv[1], 0))
with open(sys.argv[2], "wb", buffering=1 << 20) as file:
    print("capturing", flush=True)
    while True:
        file.write(sock.recv(65535))
        file.flush()
"""


@dataclass
class Play:
    """Hosts with sites on them.

    Attributes:
        folder: of the federation.
        hosts: by name of the site, and of the coordinator.
        running: what runs on each.
    """

    folder: Path
    hosts: dict[str, Host]
    running: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def serve(self, name: str) -> None:
        """Start a site."""
        place = self.folder / name
        command = ["site", "serve", "--data", str(place / "store"), "--config", str(place / "site.toml")]
        self._start(name, [*command, "--listen", f"{self.hosts[name].address}:{PORT}"])

    def federate(self) -> None:
        """Start the coordinator."""
        command = ["federate", str(self.folder / COORDINATOR / "federation.toml"), "--json"]
        for name in NAMES:
            command += ["--address", f"{name}={self.hosts[name].address}:{PORT}"]
        self._start(COORDINATOR, command)

    def kill(self, name: str) -> None:
        """SIGKILL what runs on a host."""
        self.running[name].send_signal(signal.SIGKILL)  # with it goes its process namespace
        self.running[name].communicate()

    def epochs(self) -> int:
        """How many epochs the run has told of."""
        events = self.folder / "run" / "events.jsonl"
        found = re.findall(r'"phase":"epoch","epoch":(\d+)', events.read_text()) if events.is_file() else []
        return max(map(int, found), default=0)

    def _start(self, name: str, command: list[str]) -> None:
        environ = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        self.running[name] = self.hosts[name].start([*_SIAFU, *command], environ=environ)


def prepare(folder: Path, args: argparse.Namespace) -> Path:
    """Make the federation's folder; returns the file that says whose node is whose."""
    graph = load(args.data)
    init_trial(folder, NAMES)
    owner = assign(graph, parts=len(NAMES), by=args.by, say=print)
    split(graph, owner.long(), folder, NAMES)
    np.save(folder / "owners.npy", owner.numpy())
    if args.never:
        for name in NAMES:
            path = folder / name / "site.toml"
            path.write_text(path.read_text().replace('features = "boundary"', 'features = "never"'))
    path = folder / COORDINATOR / "federation.toml"
    text = path.read_text().partition("[run]")[0].replace('out = "run"', f'out = "{folder / "run"}"')
    text = text.replace("patience = 60", f"patience = {args.patience}")
    run = [f"{key} = {value}" for key, _, value in (each.partition("=") for each in _settings(args))]
    path.write_text("\n".join([text, "[run]", *run]) + "\n")
    return folder / "owners.npy"


def _settings(args: argparse.Namespace) -> list[str]:
    return ['method="lazy"', "threads=1", *args.set]


def play(play: Play, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Run it all, with what is to be killed; returns the metrics and what all interfaces sent."""
    for name in NAMES:
        play.serve(name)
    for name in NAMES:
        while not (play.folder / name / "work" / "address").is_file():
            time.sleep(0.1)
    before = sum(host.sent_bytes() for host in play.hosts.values())
    play.federate()
    for what, again in [*((each, True) for each in args.kill), *((each, False) for each in args.gone)]:
        name, _, epoch = what.partition(":")
        while play.epochs() < int(epoch) and play.running[COORDINATOR].poll() is None:
            time.sleep(0.02)
        print(f"SIGKILL {name} after epoch {play.epochs()}", flush=True)
        play.kill(name)
        if again:
            play.federate() if name == COORDINATOR else play.serve(name)
    out, errors = play.running[COORDINATOR].communicate(timeout=args.timeout)
    if play.running[COORDINATOR].returncode:
        raise RuntimeError(errors)
    print(errors.strip(), flush=True)
    return json.loads(out.splitlines()[-1]), sum(host.sent_bytes() for host in play.hosts.values()) - before


def main() -> None:
    args = _parse()
    if why := refusal():
        sys.exit(f"no hosts can be made here: {why}")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary) / "sites"
        owners = prepare(folder, args)
        with hosts_on_a_switch(len(NAMES) + 1, rate=args.rate) as hosts:
            made = Play(folder, dict(zip((*NAMES, COORDINATOR), hosts, strict=True)))
            captured = Path(temporary) / "captured"
            sniffer = hosts[0].start(
                [sys.executable, "-c", _CAPTURE, hosts[0].interface, str(captured)], environ=dict(os.environ)
            )
            assert sniffer.stdout is not None
            sniffer.stdout.readline()
            started = time.monotonic()
            found, interfaces = play(made, args)
            seconds = time.monotonic() - started
        _show(found, interfaces, seconds, folder)
        _search(captured, folder)
        if not args.gone:
            _compare(found, folder, owners, args)


def _show(found: dict[str, Any], interfaces: int, seconds: float, folder: Path) -> None:
    ledgers = 0
    for name in NAMES:
        lines = [line for line in read_ledger(folder / name / "ledger.jsonl") if line.get("run")]
        ledgers += sum(line["bytes"] for line in lines)
        by_what: dict[str, int] = {}
        for line in lines:
            by_what[line["what"]] = by_what.get(line["what"], 0) + line["bytes"]
        print(f"ledger of {name}: {by_what}")
    ledgers += found["bytes_by_label"].get("orders", 0)  # of the coordinator
    allowed = ASKED_RATIO * found["bytes_sent"] + ASKED_BYTES * CONNECTIONS
    print(f"{seconds:.1f} s in all, {found['epochs']} epochs, test accuracy {found['test_accuracy']:.4f}")
    print(f"meter      {found['bytes_sent']:>14,}")
    print(f"ledgers    {ledgers:>14,}   {'equal' if ledgers == found['bytes_sent'] else 'DIFFERENT'}")
    print(f"interfaces {interfaces:>14,}   {interfaces / found['bytes_sent']:.3f} of the meter")
    print(f"allowed    {allowed:>14,.0f}   {'kept' if interfaces <= allowed else 'NOT KEPT'}")


def _search(captured: Path, folder: Path) -> None:
    """Look for features of the first site, as they lie in memory, in what crossed its interface."""
    data = captured.read_bytes()
    x = open_store(folder / NAMES[0] / "store").graph().x
    assert x is not None
    rows = [row[(at := int(row.abs().argmax())) : at + 8].numpy().tobytes() for row in x[:2000].float()]
    seen = sum(1 for row in set(rows) if len(row) == 32 and any(row) and row in data)
    print(f"captured {len(data):,} bytes at {NAMES[0]}; pieces of its features found in them: {seen}")


def _compare(found: dict[str, Any], folder: Path, owners: Path, args: argparse.Namespace) -> None:
    own = {
        "engine": "local",
        "ranks": len(NAMES),
        "partition": {"by": str(owners)},
        "data": {"reorder": "off"},
    }
    never = {"lazy": {"features": False}} if args.never else {}
    tables = merge(from_assignments(_settings(args)), own, never)
    here = train(args.data, config=tables, out=folder / "here")
    same = (folder / "here" / "model.safetensors").read_bytes() == (
        folder / "run" / "model.safetensors"
    ).read_bytes()
    print(f"in one process: test accuracy {here.metrics['test_accuracy']:.4f}; weights bit-identical: {same}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="pubmed")
    parser.add_argument("--by", default="hash", help="whose node is whose")
    parser.add_argument("--rate", default="100mbit", help="of each interface, as tc takes it")
    parser.add_argument("--set", action="append", default=[], help="a setting of the run, a TOML value")
    parser.add_argument("--never", action="store_true", help="policy features = never")
    parser.add_argument("--kill", action="append", default=[], metavar="NAME:EPOCH")
    parser.add_argument("--gone", action="append", default=[], metavar="NAME:EPOCH")
    parser.add_argument("--patience", type=float, default=120)
    parser.add_argument("--timeout", type=float, default=1500)
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
