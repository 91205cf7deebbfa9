"""Three sites and a coordinator on four hosts, over 100 Mbit/s: the bits of one process, every byte accounted.

    python benchmarks/sites.py                                     PubMed, lazy training as published
    python benchmarks/sites.py --set 'lazy.recipe="frugal"'        the frugal recipe
    python benchmarks/sites.py --open                              open what crosses the first site's interface
    python benchmarks/sites.py --open --set lazy.bits=8            with rows in 8 bits
    python benchmarks/sites.py --open --never --set 'lazy.recipe="logits"'  with policy features = never at every site
    python benchmarks/sites.py --set 'method="full"'               full or sampled, to compare
    python benchmarks/sites.py --kill b:5 --kill c:40              SIGKILL after so many epochs, and start again
    python benchmarks/sites.py --gone c:40                         the same, and never start it again
    python benchmarks/sites.py --kill coordinator:20               the coordinator

Hosts are network namespaces on one switch (``namespaces.py``), each interface with a token bucket. Interfaces count
every byte of every packet, headers and acknowledgements included. With --open, a relay with all keys of the trial
stands before the first site (``relay.py``), so that what its interface sent can be decrypted (``capture.py``), held
against its ledger message by message, and searched for its features (``site_leaks.py``). ``site_faults.py`` kills.
Needs root.
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
from capture import read
from core import require_core
from namespaces import Host, hosts_on_a_switch, refusal
from site_leaks import features_told, left, noted, rows_found

from siafu.config import from_assignments, merge
from siafu.graph import Graph
from siafu.launch.sites.config import COORDINATOR
from siafu.launch.sites.ledger import read_ledger
from siafu.load_graph import load_static
from siafu.partition.assign import assign
from siafu.run import train
from siafu.sites.provisioning import init_trial, split

NAMES = ("a", "b", "c")
PORT = 7400
_ROOT = Path(__file__).resolve().parents[1]
_BEHIND = "127.0.0.1:7401"  # where a site listens that has a relay before it
_SIAFU = [sys.executable, "-m", "siafu"]


@dataclass
class Play:
    """Hosts with sites on them.

    Attributes:
        folder: of the federation.
        hosts: by name of the site, and of the coordinator.
        relayed: whether a relay stands before the first site.
        running: what runs on each.
    """

    folder: Path
    hosts: dict[str, Host]
    relayed: bool = False
    running: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def serve(self, name: str) -> None:
        """Start a site."""
        place = self.folder / name
        command = ["site", "serve", "--data", str(place / "store"), "--config", str(place / "site.toml")]
        behind = self.relayed and name == NAMES[0]
        listen = _BEHIND if behind else f"{self.hosts[name].address}:{PORT}"
        text = (place / "site.toml").read_text()
        for number, other in enumerate(NAMES):  # a site calls others only where it lists them
            text = text.replace(f'127.0.0.1:{7400 + number}"]', f'{self.hosts[other].address}:{PORT}"]')
        (place / "site.toml").write_text(text)
        self._start(name, [*command, "--listen", listen])

    def watch(self, capture: Path, keylog: Path) -> None:
        """Capture what crosses the first site's interface, and start the relay before it."""
        host = self.hosts[NAMES[0]]
        commands = [["capture.py", host.interface, str(capture)]]
        if self.relayed:
            front = f"{host.address}:{PORT}"
            commands += [["relay.py", front, _BEHIND, str(self.folder), NAMES[0], str(keylog)]]
        for script, *arguments in commands:
            path = str(Path(__file__).with_name(script))
            started = host.start([sys.executable, path, *arguments], environ=_environ())
            assert started.stdout is not None
            if not started.stdout.readline():
                raise RuntimeError(started.communicate()[1])

    def wait_for(self, name: str) -> None:
        """Wait until a site serves."""
        while not (self.folder / name / "work" / "address").is_file():
            if self.running[name].poll() is not None:
                raise RuntimeError(self.running[name].communicate()[1])
            time.sleep(0.1)

    def federate(self, out: str = "run") -> None:
        """Start the coordinator."""
        command = ["federate", str(self.folder / COORDINATOR / "federation.toml"), "--json"]
        command += ["--out", str(self.folder / out)]
        for name in NAMES:
            command += ["--address", f"{name}={self.hosts[name].address}:{PORT}"]
        self._start(COORDINATOR, command)

    def kill(self, name: str) -> None:
        """SIGKILL what runs on a host."""
        self.running[name].send_signal(signal.SIGKILL)  # with it goes its process namespace
        self.running[name].communicate()
        (self.folder / name / "work" / "address").unlink(missing_ok=True)

    def epochs(self, out: str = "run") -> int:
        """How many epochs the run has told of."""
        events = self.folder / out / "events.jsonl"
        found = re.findall(r'"phase":"epoch","epoch":(\d+)', events.read_text()) if events.is_file() else []
        return max(map(int, found), default=0)

    def _start(self, name: str, command: list[str]) -> None:
        self.running[name] = self.hosts[name].start([*_SIAFU, *command], environ=_environ())


def _environ() -> dict[str, str]:
    environ = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return environ


def prepare(folder: Path, graph: Graph, args: argparse.Namespace) -> Path:
    """Make the federation's folder; returns the file that says whose node is whose."""
    init_trial(folder, NAMES)
    owner = assign(graph, parts=len(NAMES), by=args.by, say=print)
    split(graph, owner.long(), folder, NAMES)
    np.save(folder / "owners.npy", owner.numpy())
    for name in NAMES:
        path = folder / name / "site.toml"
        text = path.read_text()
        if args.never:
            text = text.replace('features = "boundary"', 'features = "never"')
        if 'method="sampled"' in args.set:
            text = text.replace('structure = "boundary"', 'structure = "sampled"')
        path.write_text(text)
    path = folder / COORDINATOR / "federation.toml"
    text = path.read_text().partition("[run]")[0].replace('out = "run"', f'out = "{folder / "run"}"')
    text = text.replace("patience = 60", f"patience = {args.patience}")
    run = [f"{key} = {value}" for key, _, value in (each.partition("=") for each in _settings(args))]
    path.write_text("\n".join([text, "[run]", *run]) + "\n")
    return folder / "owners.npy"


def _settings(args: argparse.Namespace) -> list[str]:
    method = [] if any(each.startswith("method=") for each in args.set) else ['method="lazy"']
    return [*method, "threads=1", *args.set]


def play(play: Play, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """Run it all, with what is to be killed; returns the metrics and what all interfaces sent."""
    for name in NAMES:
        play.serve(name)
    for name in NAMES:
        play.wait_for(name)
    before = sum(host.sent_bytes() for host in play.hosts.values())
    play.federate()
    for what, again in [*((each, True) for each in args.kill), *((each, False) for each in args.gone)]:
        name, _, epoch = what.partition(":")
        kill_at(play, name, int(epoch), again=again)
    out, errors = play.running[COORDINATOR].communicate(timeout=args.timeout)
    if play.running[COORDINATOR].returncode:
        raise RuntimeError(errors)
    print(errors.strip(), flush=True)
    return json.loads(out.splitlines()[-1]), sum(host.sent_bytes() for host in play.hosts.values()) - before


def kill_at(play: Play, name: str, epoch: int, *, out: str = "run", again: bool) -> None:
    """SIGKILL who runs on a host when the run has told of an epoch, and start it again."""
    while play.epochs(out) < epoch and play.running[COORDINATOR].poll() is None:
        time.sleep(0.02)
    print(f"SIGKILL {name} after epoch {play.epochs(out)}", flush=True)
    play.kill(name)
    if again:
        play.federate(out) if name == COORDINATOR else play.serve(name)


def main() -> None:
    args = _parse()
    if why := refusal():
        sys.exit(f"no hosts can be made here: {why}")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = Path(temporary) / "sites"
        owners = prepare(folder, load_static(args.data), args)
        with hosts_on_a_switch(len(NAMES) + 1, rate=args.rate) as hosts:
            made = Play(folder, dict(zip((*NAMES, COORDINATOR), hosts, strict=True)), relayed=args.open)
            captured, keylog = Path(temporary) / "captured.pcap", Path(temporary) / "secrets.txt"
            made.watch(captured, keylog)
            started = time.monotonic()
            found, interfaces = play(made, args)
            seconds = time.monotonic() - started
            _wait_until_written(captured)
        _show(found, interfaces, seconds, folder)
        _look(captured, keylog if args.open else None, made)
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
    print(f"{seconds:.1f} s in all, {found['epochs']} epochs, test accuracy {found['test_accuracy']:.4f}")
    print(f"meter      {found['bytes_sent']:>14,}")
    print(f"ledgers    {ledgers:>14,}   {'equal' if ledgers == found['bytes_sent'] else 'DIFFERENT'}")
    print(f"interfaces {interfaces:>14,}   {interfaces / found['bytes_sent']:.3f} of the meter")


def _wait_until_written(captured: Path) -> None:
    """Wait until the capture has taken in what it was late with."""
    size = -1
    while size != (size := captured.stat().st_size):
        time.sleep(1)


def _look(captured: Path, keylog: Path | None, play: Play) -> None:
    """Say what crossed the first site's interface; with the secrets of TLS, what that was."""
    capture, host = read(captured), play.hosts[NAMES[0]]
    own = host.address
    sent, came = capture.packets[own], sum(capture.packets.values()) - capture.packets[own]
    print(
        f"capture at {NAMES[0]}: {capture.num_bytes[own]:,} bytes of TCP sent in {sent:,} packets, {came:,} came"
    )
    calling = [way for way in capture.sent if way[0][0] == own and way[0][1] != PORT]
    others = sum(capture.other_bytes.values())
    print(
        f"connections to it {len(capture.sent) // 2}, from it {len(calling)}; {others:,} bytes that are not TCP"
    )
    if keylog is None:
        return
    names = {each.address: name for name, each in play.hosts.items()}
    found, ledger = left(capture, keylog, (own, PORT), names), noted(play.folder / NAMES[0] / "ledger.jsonl")
    size = sum(num_bytes * count for (_, _, num_bytes), count in found.lines.items())
    missing, unknown = ledger - found.lines, found.lines - ledger
    print(
        f"opened: {found.lines.total():,} messages, {size:,} bytes; in the ledger alone {missing.total()}, here alone "
        f"{unknown.total()}"
    )
    for to, label, num_bytes in missing:
        print(f"in the ledger alone: to {to}, {label or 'a report'}, {num_bytes} bytes")
    print(f"labels: {', '.join(sorted({label for _, label, _ in found.lines if label}))}")
    _search(play.folder / NAMES[0], found.content)


def _search(site: Path, content: bytes) -> None:
    """Say which rows of features are in what left, and which should be as the ledger says."""
    told = features_told(site / "ledger.jsonl")
    print(f"nodes whose features have left, as the ledger says: {len(told):,}")
    for form, (looked_for, found) in rows_found(site / "store", content).items():
        print(
            f"features in {form}: found {len(found & told):,} of {len(looked_for & told):,} that have left, "
            f"{len(found - told):,} of {len(looked_for - told):,} others"
        )


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
    parser.add_argument("--open", action="store_true", help="decrypt what the first site's interface sent")
    parser.add_argument("--never", action="store_true", help="policy features = never")
    parser.add_argument("--kill", action="append", default=[], metavar="NAME:EPOCH")
    parser.add_argument("--gone", action="append", default=[], metavar="NAME:EPOCH")
    parser.add_argument("--patience", type=float, default=120)
    parser.add_argument("--timeout", type=float, default=1500)
    parser.add_argument("--folder", help="where to make the temporary folder")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
