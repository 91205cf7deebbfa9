"""One attempt to train, as the coordinator drives it: it sends orders and receives reports and files."""

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
from siafu.launch.sites.rpc import CallFailed, ResponseStream, SiteConnection
from siafu.launch.sites.schema import BadMessage, make, pack, unpack
from siafu.run_folder import RunFolder
from siafu.sites.file_transfer import FileAssembler, atomic_writer, split_into_pieces
from siafu.sites.untrusted_text import printable
from siafu.training.procedure import Callbacks
from siafu.wire.heartbeats import FailureDetector, Heartbeat

_ASK_S = 10.0
_TICK_S = 0.2
_MIN_BYTES_PER_S = 100_000  # assumed speed of a checkpoint's transfer, for its timeout


@dataclass
class AttemptOutcome:
    """The outcome of an attempt.

    Attributes:
        states: the last report of each member.
        lost: members that ended without a report, or were too slow, with the reason.
        slow: the members among them that were too slow.
    """

    states: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)


class FederatedRunFolder:
    """The folder of a federated run; receives the files that sites send."""

    def __init__(self, folder: RunFolder, config: Config, callbacks: Callbacks) -> None:
        self.folder, self.config, self.checkpoints = folder, config, 0
        self.followed = EventFollower(folder, callbacks, total=config.max_epochs)
        self.stage_ended = config.method != "lazy"
        self.members: list[str] = []
        keep = atomic_writer(folder.checkpoint)

        def kept(data: bytes) -> None:
            keep(data)
            write_atomically(self._group, json.dumps(self.members).encode())
            self.checkpoints += 1

        self.places = {"events": self._add_events, "checkpoint": kept, "model": atomic_writer(folder.weights)}

    @property
    def name(self) -> str:
        """The run's random name; sites tell runs of the same settings apart by it."""
        path = self.folder.path / "name"
        if not path.is_file():
            write_atomically(path, secrets.token_hex(8).encode())
        return path.read_text()

    @property
    def _group(self) -> Path:
        """The file that names the members that wrote the checkpoint."""
        return self.folder.checkpoint.parent / "group.json"

    def write_fingerprints(self, fingerprints: Mapping[str, str]) -> None:
        """Record the checksums of the sites' data, so that a restarted coordinator can check them."""
        write_atomically(_fingerprints_file(self.folder.path), json.dumps(fingerprints).encode())

    def same_group(self) -> bool:
        """Return whether the current members wrote the checkpoint."""
        return self._group.is_file() and json.loads(self._group.read_text()) == self.members

    def _add_events(self, data: bytes) -> None:
        """Append the events of a site; this file's own chain of checksums goes on."""
        try:
            found = [json.loads(line) for line in data.splitlines()]
        except (ValueError, RecursionError):
            raise BadMessage("an event that is no JSON") from None
        if not all(isinstance(event, dict) and event for event in found):
            raise BadMessage("an event that is no JSON object with fields")
        with closing(EventLog(self.folder.events)) as events:
            for event in found:
                events.copy(event)
        if b'"phase":"stage"' in data:
            self.stage_ended = True


class CoordinatorAttempt:
    """One attempt of a group of sites; a thread for each site streams its reports."""

    def __init__(
        self,
        run: FederatedRunFolder,
        members: list[str],
        sites: dict[str, SiteConnection],
        meter: Counter[str],
    ) -> None:
        self.run, self.members, self.sites = run, members, sites
        self.name = secrets.token_bytes(16)
        self.detector = FailureDetector(members, deadline_s=run.config.comm.deadline)
        self.away: set[str] = set()
        self._meter, self._queue = meter, SimpleQueue[tuple[str, Any]]()
        self._calls: dict[str, ResponseStream] = {}
        self._open: set[str] = set()
        self._stopping_until = 0.0
        self._files = FileAssembler(run.places)

    def begin(self, outcome: AttemptOutcome, addresses: Mapping[str, str]) -> bool:
        """Send every member its order; return whether all accepted it."""
        run = self.run
        run.members = self.members
        run.stage_ended = run.config.method != "lazy"
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
        self._send_order(self.members[0], order, checkpoint, outcome)
        if not outcome.lost and not outcome.states:
            self._send_other_orders(
                order, outcome
            )  # after the first, so that they do not wait while it receives the checkpoint
        if outcome.lost or outcome.states:
            self.stop("a site was lost", at_once=True, grace_s=0)
            return False
        self.detector = FailureDetector(self.members, deadline_s=run.config.comm.deadline)
        for name in self.members:
            self._open.add(name)
            threading.Thread(target=self._stream_reports, args=(name,), daemon=True).start()
        return True

    def process_next(self, outcome: AttemptOutcome) -> bool:
        """Process the next report, waiting for a moment; return whether more may come."""
        try:
            name, item = self._queue.get(timeout=_TICK_S)
        except Empty:
            pass
        else:
            self._process(name, item, outcome)
        if self._stopping_until and time.monotonic() > self._stopping_until:
            for call in self._calls.values():
                call.cancel()
            for name in self._open - outcome.states.keys():
                outcome.lost.setdefault(name, f"site {name} did not end when it was told to")
            return False
        return bool(self._open)

    def stop(self, reason: str, *, at_once: bool, grace_s: float) -> None:
        """Tell all members to stop; later calls do nothing."""
        if self._stopping_until:
            return
        self._stopping_until = time.monotonic() + max(1.0, grace_s)
        data = pack(make("Stop", attempt=self.name, reason=reason, at_once=at_once))
        for name, connection in self.sites.items():
            self._meter["orders"] += wire_bytes(data)
            threading.Thread(
                target=_send_stop, args=(connection, data), name=f"stop {name}", daemon=True
            ).start()

    def _send_other_orders(self, order: Any, outcome: AttemptOutcome) -> None:
        threads = [
            threading.Thread(target=self._send_order, args=(name, order, b"", outcome))
            for name in self.members[1:]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _send_order(self, name: str, order: Any, checkpoint: bytes, outcome: AttemptOutcome) -> None:
        def pieces() -> Iterator[bytes]:
            messages = [order, *_checkpoint_orders(checkpoint)]
            for data in map(pack, messages):
                self._meter["orders"] += wire_bytes(data)
                yield data

        try:
            timeout_s = 4 * _ASK_S + len(checkpoint) / _MIN_BYTES_PER_S
            self.sites[name].give("Begin", pieces(), timeout_s=timeout_s)
        except CallFailed as error:
            if error.refused:
                outcome.states[name] = make("Report", state="failed", kind="refused", text=str(error))
            else:
                outcome.lost[name] = str(error)

    def _stream_reports(self, name: str) -> None:
        try:
            call = self._calls[name] = self.sites[name].follow(pack(make("Stop", attempt=self.name)))
            for data in call:
                self._queue.put((name, unpack("Report", data)))
        except (CallFailed, BadMessage) as error:
            self._queue.put((name, error))
        finally:
            self._queue.put((name, None))

    def _process(self, name: str, item: Any, outcome: AttemptOutcome) -> None:
        if item is None:
            self._open.discard(name)
            self.detector.end(name)
            if name not in outcome.states:
                outcome.lost.setdefault(name, f"site {name} ended without a report")
        elif isinstance(item, Exception):
            if getattr(item, "refused", False):
                outcome.states[name] = make("Report", state="failed", kind="refused", text=str(item))
            elif name not in outcome.states:
                outcome.lost[name] = str(item)
        elif item.HasField("piece"):
            self.detector.heard(name)
            self._process_piece(name, item.piece, outcome)
        else:
            waits_for = item.waits_for if item.waits_for in self.members else None
            self.detector.beat(name, Heartbeat(0.0, 0, waits_for, item.phase, item.waited))
            if item.state in ("done", "stopped", "failed"):
                item.text = printable(item.text)
                outcome.states[name] = item

    def _process_piece(self, name: str, piece: Any, outcome: AttemptOutcome) -> None:
        """Process a piece of a file; only the first member may send files."""
        try:
            if name != self.members[0]:
                raise BadMessage(f"a file of the run, which {self.members[0]} alone sends")
            self._files.add(piece)
        except BadMessage as error:
            outcome.lost[name] = f"site {name} sent {error}"


def read_fingerprints(run: Path) -> dict[str, str]:
    """Read the checksums of the data that sites had when they took part in a run; empty before a run has begun."""
    path = _fingerprints_file(run)
    return json.loads(path.read_text()) if path.is_file() else {}


def _fingerprints_file(run: Path) -> Path:
    return run / "sites.json"


def _checkpoint_orders(checkpoint: bytes) -> Iterator[Any]:
    if checkpoint:
        for piece in split_into_pieces("checkpoint", checkpoint):
            yield make("Order", piece=piece)


def _send_stop(connection: SiteConnection, data: bytes) -> None:
    with suppress(CallFailed):
        connection.ask("Stop", data, timeout_s=_ASK_S)
