"""Ten thousand things that nobody should send, to a site that serves: over TCP, over TLS, and within an attempt.

    python benchmarks/site_frames.py
    python benchmarks/site_frames.py --count 1000

The site is a process of its own on the loopback. Whoever attacks has the key of a listed site, or none; it sends random
bytes, truncated, damaged, oversize, repeated and misplaced frames. One in fifty comes within an attempt that the
coordinator has ordered, after a right Hello, which ends that attempt. At the end the site must answer as before, hold
the same data, and have taken little memory; its ledger may tell of greetings and reports alone.
"""

import argparse
import random
import re
import secrets
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from core import require_core

import siafu
from siafu.comm.message_frames import ChunkHead, FrameKind, MessageInfo, pack_chunk_head
from siafu.comm.transport import Envelope, MessageKind
from siafu.launch.sites.config import COORDINATOR
from siafu.launch.sites.frame_stream import FrameEncoder
from siafu.launch.sites.ledger import read_ledger
from siafu.launch.sites.rpc import CallFailed, SiteConnection
from siafu.launch.sites.schema import MAX_MESSAGE_BYTES, PROTOCOL, make, pack, unpack
from siafu.load_graph import load
from siafu.sites.provisioning import init_trial, split
from siafu.wire import frames as wire_frames
from siafu.wire.certificates import read_certificate, read_identity

NAMES = ("a", "b")
_CONFIG = 'engine = "sites"\nmethod = "lazy"\nranks = 2\n'
_WITHIN = 50  # one in so many comes within an attempt
_BARE = 10  # one in so many does not get as far as gRPC


def bad_frames(rng: random.Random) -> Iterator[tuple[str, list[bytes]]]:
    """What is wrong, and frames of which the last is."""
    frames, values = FrameEncoder(), torch.arange(600_000, dtype=torch.float32)
    good = frames.message(Envelope(MessageKind.COLLECTIVE, 7, 0, "halo 1"), values[:5])
    good += frames.message(Envelope(MessageKind.COLLECTIVE, 7, 1, "halo 1"), values)
    first = good[0]
    while True:
        at, bit = rng.randrange(len(first)), 1 << rng.randrange(8)
        yield "random", [rng.randbytes(rng.randrange(1, 2000))]
        yield "truncated", [first[: rng.randrange(1, len(first))]]
        yield "replayed", [first, first]
        yield "damaged", [first[:at] + bytes([first[at] ^ bit]) + first[at + 1 :], first]
        yield "oversize", [bytes(MAX_MESSAGE_BYTES + 1)]
        yield "huge", [_message_of(1 << rng.randrange(31, 60))]
        yield "of no kind", [wire_frames.pack(rng.randrange(7, 99), 0, bytes(24))]
        yield "a piece missing", [good[0], good[1], good[3]]
        yield "out of order", [good[1]]


def _message_of(num_numbers: int) -> bytes:
    """The first frame of a message that says that it is so large."""
    info = MessageInfo(4 * num_numbers, torch.float32, (num_numbers,), "halo 1")
    return wire_frames.pack(FrameKind.COLLECTIVE, 0, pack_chunk_head(ChunkHead(7, 0, 0, info)))


class Attacker:
    """Has the folder of a trial, with the keys of everybody."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self.coordinator, self._site = self._dial(COORDINATOR), self._dial("b")

    def call(self, frames: list[bytes], attempt: bytes) -> None:
        """As a listed site, within an attempt or in the place of a Hello; it must be refused."""
        greeting = []
        if attempt:
            greeting = [pack(make("Hello", protocol=PROTOCOL, version=siafu.__version__, attempt=attempt))]
        call = self._site.exchange(iter([*greeting, *frames]))
        try:
            for _ in call:
                pass
        except CallFailed:
            pass
        else:
            assert attempt, "a call that nobody should make was answered"

    def order(self) -> bytes:
        """Have an attempt begin, as the coordinator would; returns its name."""
        name, members = secrets.token_bytes(16), [make("Member", name=each, address="x:1") for each in NAMES]
        order = make("Order", attempt=name, run="attacked", config=_CONFIG, members=members)
        self.coordinator.give("Begin", iter([pack(order)]), timeout_s=60)
        return name

    def bare(self, data: bytes, *, secure: bool) -> None:
        """Bytes over TCP; or, with the key of a listed site, over TLS."""
        host, _, port = self._address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=30) as sock:
                (self._secured(sock) if secure else sock).sendall(data)
        except OSError:
            pass

    def about(self) -> Any:
        """What the site says of itself."""
        ask = make("Ask", protocol=PROTOCOL, version=siafu.__version__, time=time.time())
        return unpack("About", self.coordinator.ask("Describe", pack(ask), timeout_s=60))

    def _secured(self, sock: socket.socket) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self._folder / "b" / "site.pem", self._folder / "b" / "site.key")
        context.set_alpn_protocols(["h2"])
        return context.wrap_socket(sock)

    def _dial(self, name: str) -> SiteConnection:
        own, pin = self._folder / name, read_certificate(self._folder / "a" / "site.pem")
        return SiteConnection(self._address, "a", (pin,), read_identity(own / "site.pem", own / "site.key"))


def attack(attacker: Attacker, count: int, process: psutil.Process) -> tuple[Counter[str], int]:
    """Send it all; returns how often what was sent, and the most memory that the site took meanwhile."""
    rng, sent, most = random.Random(0), Counter[str](), 0
    made = bad_frames(rng)
    for number in range(count):
        what, frames = next(made)
        if number % _BARE == 0:
            what, secure = ("bytes over TLS", True) if number % (2 * _BARE) else ("bytes over TCP", False)
            attacker.bare(frames[-1], secure=secure)
        elif number % _WITHIN == 1:
            what = f"{what}, within an attempt"
            attacker.call(frames, attacker.order())
        else:
            attacker.call(frames, b"")
        sent[what] += 1
        if number % 100 == 0:
            most = max(most, process.memory_info().rss)
    return sent, most


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--data", default="cora")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "sites"
        init_trial(folder, NAMES)
        graph = load(args.data)
        split(graph, torch.arange(graph.num_nodes) % 2, folder, NAMES)
        with (folder / "log").open("w+") as log:
            served = _serve(folder, log)
            try:
                _measure(folder, _address(folder / "log", served), served, args.count)
            finally:
                served.kill()
                served.wait()


def _measure(folder: Path, address: str, served: "subprocess.Popen[bytes]", count: int) -> None:
    attacker, process = Attacker(folder, address), psutil.Process(served.pid)
    attack(attacker, 100, process)  # which has all that is ever imported there
    before, begun = attacker.about(), process.memory_info().rss
    sent, most = attack(attacker, count, process)
    after, ledger = attacker.about(), read_ledger(folder / "a" / "ledger.jsonl")
    for what, times in sorted(sent.items()):
        print(f"{times:6} {what}")
    what = Counter(line["what"] for line in ledger)
    print(f"{sent.total():,} sent; the site {'serves' if served.poll() is None else 'HAS ENDED'}")
    print(
        f"its data: {'the same' if before.fingerprint == after.fingerprint else 'OTHER'}; its ledger: {dict(what)}"
    )
    print(
        f"its memory: {begun / 1e6:.0f} MB before, at most {most / 1e6:.0f} MB, {process.num_threads()} threads now"
    )


def _serve(folder: Path, log: Any) -> "subprocess.Popen[bytes]":
    own = folder / "a"
    command = ["site", "serve", "--data", str(own / "store"), "--config", str(own / "site.toml")]
    program = [sys.executable, "-m", "siafu"]
    return subprocess.Popen([*program, *command, "--listen", "127.0.0.1:0"], stderr=log, stdout=log)


def _address(log: Path, served: "subprocess.Popen[bytes]") -> str:
    while served.poll() is None:
        if found := re.search(r"serves on (\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(log.read_text())


if __name__ == "__main__":
    require_core()
    main()
