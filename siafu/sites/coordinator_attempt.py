"""One attempt of some sites, as the coordinator sees it: orders go out, reports and files come in."""

import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from siafu.config import Config
from siafu.engines import EventFollower
from siafu.event_log import EventLog
from siafu.files import write_atomically
from siafu.launch.sites.frame_stream import wire_bytes
from siafu.launch.sites.rpc import Call, CallFailed, SiteConnection
from siafu.launch.sites.schema import BadMessage, make, pack, unpack
from siafu.run_folder import RunFolder
from siafu.sites.file_transfer import Arriving, into, pieces_of
from siafu.sites.untrusted_text import printable
from siafu.training.procedure import Callbacks
from siafu.wire.heartbeats import FailureDetector, Heartbeat

_ASK_S = 10.0
_TICK_S = 0.2
_LEAST_RATE = 100_000  # bytes a second at which a checkpoint is taken to arrive


@dataclass
class Outcome:
    """How an attempt ended.

    Attributes:
        states: of each member, the last report of it.
        lost: members that were not heard to their end, or were too slow.
        slow: those of them that were.
    """

    states: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)


class Kept:
    """A run's folder, and what sites send for it."""

    def __init__(self, folder: RunFolder, tree: Config, callbacks: Callbacks) -> None:
        self.folder, self.tree, self.checkpoints = folder, tree, 0
        self.followed = EventFollower(folder, callbacks, total=tree.max_epochs)
        self.stage_ended = tree.method != "lazy"
        self.members: list[str] = []
        keep = into(folder.checkpoint)

        def kept(data: bytes) -> None:
            keep(data)
            write_atomically(self._group, json.dumps(self.members).encode())
            self.checkpoints += 1

        self.places = {"events": self._add_events, "checkpoint": kept, "model": into(folder.weights)}

    @property
    def name(self) -> str:
        """What sites call it; another run of the same settings has another name."""
        path = self.folder.path / "name"
        if not path.is_file():
            write_atomically(path, secrets.token_hex(8).encode())
        return path.read_text()

    @property
    def _group(self) -> Path:
        """Who wrote the checkpoint."""
        return self.folder.checkpoint.parent / "group.json"

    def note_data(self, fingerprints: Mapping[str, str]) -> None:
        """Write down which data sites have, so that a coordinator that is started again can hold them to it."""
        write_atomically(_data_of(self.folder.path), json.dumps(fingerprints).encode())

    def same_group(self) -> bool:
        """Whether the checkpoint was written by the group that goes on from it."""
        return self._group.is_file() and json.loads(self._group.read_text()) == self.members

    def _add_events(self, data: bytes) -> None:
        """Take over the events of a site; the chain of seals is that of this file."""
        try:
            told = [json.loads(line) for line in data.splitlines()]
        except (ValueError, RecursionError):
            raise BadMessage("an event that is no JSON") from None
        if not all(isinstance(event, dict) and event for event in told):
            raise BadMessage("an event that is no JSON object with fields")
        with closing(EventLog(self.folder.events)) as events:
            for event in told:
                events.copy(event)
        if b'"phase":"stage"' in data:
            self.stage_ended = True


class Followup:
    """One try of some sites, followed by a thread for each."""

    def __init__(
        self, run: Kept, members: list[str], sites: dict[str, SiteConnection], meter: Counter[str]
    ) -> None:
        self.run, self.members, self.sites = run, members, sites
        self.name = secrets.token_bytes(16)
        self.detector = FailureDetector(members, deadline_s=run.tree.comm.deadline)
        self.away: set[str] = set()
        self._meter, self._queue = meter, SimpleQueue[tuple[str, Any]]()
        self._calls: dict[str, Call] = {}
        self._open: set[str] = set()
        self._stopping_until = 0.0
        self._arriving = Arriving(run.places)

    def begin(self, outcome: Outcome, addresses: Mapping[str, str]) -> bool:
        """Give every member its order; whether all took it."""
        run = self.run
        run.members = self.members
        run.stage_ended = run.tree.method != "lazy"
        kept = run.folder.checkpoint.is_file()
        order = make(
            "Order",
            attempt=self.name,
            run=run.name,
            config=run.folder.read_config(),
            members=[make("Member", name=name, address=addresses[name]) for name in self.members],
            away=sorted(self.away),
            resumed=run.folder.events.is_file(),
            checkpointed=kept,
            same_group=kept and run.same_group(),
        )
        checkpoint = run.folder.checkpoint.read_bytes() if kept else b""
        self._give(self.members[0], order, checkpoint, outcome)
        if not outcome.lost and not outcome.states:
            self._give_others(order, outcome)  # who need not wait for one that is still sent the checkpoint
        if outcome.lost or outcome.states:
            self.stop("a site was lost", at_once=True, grace_s=0)
            return False
        self.detector = FailureDetector(self.members, deadline_s=run.tree.comm.deadline)
        for name in self.members:
            self._open.add(name)
            threading.Thread(target=self._follow, args=(name,), daemon=True).start()
        return True

    def follow_one(self, outcome: Outcome) -> bool:
        """Take in what came, for a moment; whether there is more to come."""
        try:
            name, item = self._queue.get(timeout=_TICK_S)
        except Empty:
            pass
        else:
            self._take(name, item, outcome)
        if self._stopping_until and time.monotonic() > self._stopping_until:
            for call in self._calls.values():
                call.cancel()
            for name in self._open - outcome.states.keys():
                outcome.lost.setdefault(name, f"site {name} did not end when it was told to")
            return False
        return bool(self._open)

    def stop(self, reason: str, *, at_once: bool, grace_s: float) -> None:
        """Have all members end; once."""
        if self._stopping_until:
            return
        self._stopping_until = time.monotonic() + max(1.0, grace_s)
        data = pack(make("Stop", attempt=self.name, reason=reason, at_once=at_once))
        for name, dialled in self.sites.items():
            self._meter["orders"] += wire_bytes(data)
            threading.Thread(target=_told, args=(dialled, data), name=f"stop {name}", daemon=True).start()

    def _give_others(self, order: Any, outcome: Outcome) -> None:
        threads = [
            threading.Thread(target=self._give, args=(name, order, b"", outcome)) for name in self.members[1:]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _give(self, name: str, order: Any, checkpoint: bytes, outcome: Outcome) -> None:
        def pieces() -> Iterator[bytes]:
            messages = [order, *_orders(checkpoint)]
            for data in map(pack, messages):
                self._meter["orders"] += wire_bytes(data)
                yield data

        try:
            timeout_s = 4 * _ASK_S + len(checkpoint) / _LEAST_RATE
            self.sites[name].give("Begin", pieces(), timeout_s=timeout_s)
        except CallFailed as error:
            if error.refused:
                outcome.states[name] = make("Report", state="failed", kind="refused", text=str(error))
            else:
                outcome.lost[name] = str(error)

    def _follow(self, name: str) -> None:
        try:
            call = self._calls[name] = self.sites[name].follow(pack(make("Stop", attempt=self.name)))
            for data in call:
                self._queue.put((name, unpack("Report", data)))
        except (CallFailed, BadMessage) as error:
            self._queue.put((name, error))
        finally:
            self._queue.put((name, None))

    def _take(self, name: str, item: Any, outcome: Outcome) -> None:
        if item is None:
            self._open.discard(name)
            self.detector.end(name)
            if name not in outcome.states:
                outcome.lost.setdefault(name, f"site {name} ended without a word")
        elif isinstance(item, Exception):
            if getattr(item, "refused", False):
                outcome.states[name] = make("Report", state="failed", kind="refused", text=str(item))
            elif name not in outcome.states:
                outcome.lost[name] = str(item)
        elif item.HasField("piece"):
            self.detector.heard(name)
            self._take_piece(name, item.piece, outcome)
        else:
            waits_for = item.waits_for if item.waits_for in self.members else None
            self.detector.beat(name, Heartbeat(0.0, 0, waits_for, item.phase, item.waited))
            if item.state in ("done", "stopped", "failed"):
                item.text = printable(item.text)
                outcome.states[name] = item

    def _take_piece(self, name: str, piece: Any, outcome: Outcome) -> None:
        """Files of the run are the first member's to send, whole and undamaged."""
        try:
            if name != self.members[0]:
                raise BadMessage(f"a file of the run, which {self.members[0]} alone sends")
            self._arriving.take(piece)
        except BadMessage as error:
            outcome.lost[name] = f"site {name} sent {error}"


def noted_data(run: Path) -> dict[str, str]:
    """The data that sites had when they took part in a run, by their checksums; none of a run that has not begun."""
    path = _data_of(run)
    return json.loads(path.read_text()) if path.is_file() else {}


def _data_of(run: Path) -> Path:
    return run / "sites.json"


def _orders(checkpoint: bytes) -> Iterator[Any]:
    if checkpoint:
        for piece in pieces_of("checkpoint", checkpoint):
            yield make("Order", piece=piece)


def _told(dialled: SiteConnection, data: bytes) -> None:
    with suppress(CallFailed):
        dialled.ask("Stop", data, timeout_s=_ASK_S)
