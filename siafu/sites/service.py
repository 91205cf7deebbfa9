"""What runs at a site: it answers its coordinator and the other sites, and nobody else."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import siafu
from siafu.comm.stale_rows import StaleRowCache
from siafu.launch.sites.config import SiteConfig
from siafu.launch.sites.egress import Guard
from siafu.launch.sites.frame_stream import wire_bytes
from siafu.launch.sites.ledger import Ledger
from siafu.launch.sites.policy import Refused
from siafu.launch.sites.rpc import NotNow, Server
from siafu.launch.sites.schema import PROTOCOL, BadMessage, make, pack, unpack
from siafu.run_folder import RunFolder
from siafu.sites.file_transfer import Arriving, into, pieces_of
from siafu.sites.membership import SKEW_S
from siafu.sites.site_attempt import Attempt
from siafu.sites.site_data import Holdings, Keys
from siafu.sites.untrusted_text import printable

_MEET_S = 20.0
_LOOK_S = 0.2
_FILES_S = 1.0  # between looks at what the first rank has written
_REPORT_S = 5.0  # between reports of one state
_END_S = 15.0
_WARN_S = 60.0  # between looks at certificates
_MOST_NAME = 64  # letters


class Site:
    """A site: :class:`siafu.launch.sites.rpc.Service`."""

    def __init__(self, holdings: Holdings, keys: Keys, *, say: Callable[[str], None]) -> None:
        config = holdings.config
        self.holdings, self.keys, self._say = holdings, keys, say
        self.ledger = Ledger(config.ledger, max_bytes=config.max_bytes)
        self._changed = threading.Condition()
        self._attempt: Attempt | None = None
        self._guards: dict[str, list[Guard]] = {}  # of each run one an attempt
        self._memory: dict[str, StaleRowCache] = {}  # of the run
        self._earlier = {run: Counter(labels) for run, labels in self.ledger.totals.by_label.items()}
        self._at_the_door: set[str] = set()
        self._pace, self._warned = _Pace(), set[str]()

    def describe(self, data: bytes) -> bytes:
        """What is here, in sizes and names."""
        ask = unpack("Ask", data)
        self.warn()
        self._check_version(ask.protocol, ask.version)
        skew = abs(time.time() - ask.time)
        if skew > SKEW_S:
            self._say(f"the clock here and the coordinator's differ by {skew:.0f} s; set them right")
        state = "idle" if self._attempt is None or self._attempt.ended.is_set() else self._attempt.state
        expires = self.keys.own.ends.timestamp()
        about = pack(self.holdings.about(state=state, ledger_bytes=self.ledger.totals.all, expires=expires))
        guard = Guard(self.holdings.config.policy, self.ledger, "")
        try:
            guard.let_out("coordinator", "about", "description", wire_bytes(about))
        except Refused as error:
            self._say(str(error))
            raise NotNow(str(error)) from None
        return about

    def begin(self, pieces: Iterator[bytes]) -> bytes:
        """Begin an attempt; one that was under way ends."""
        orders = (unpack("Order", data) for data in pieces)
        order = next(orders, None)
        if order is None or len(order.attempt) != 16 or len(order.run) > _MOST_NAME:
            raise BadMessage("an order without a name, or with too long a one")
        self._check_members(order)
        self._end_the_one_before()
        attempt = self._made(order)
        attempt.folder.mkdir(parents=True, exist_ok=True)
        arriving = Arriving({"checkpoint": into(RunFolder(attempt.folder).checkpoint)})
        for each in orders:
            arriving.take(each.piece)
        with self._changed:
            self._attempt = attempt
            self._changed.notify_all()
        attempt.start()
        return pack(make("Empty"))

    def _made(self, order: Any) -> Attempt:
        if order.run not in self._memory:  # what is known of another run is of no use any more
            self._memory, self._guards = {order.run: StaleRowCache()}, {}
        memory, guard = self._memory[order.run], self._guard(order.run)
        try:
            return Attempt(order, self.holdings, self.keys, guard, memory=memory, say=self._say)
        except ValueError as error:
            raise NotNow(f"the settings of the run cannot be used here: {error}") from None

    def stop(self, data: bytes) -> bytes:
        """End an attempt; or, where none is named, hear why none will begin."""
        stop = unpack("Stop", data)
        attempt = self._attempt
        if not stop.attempt:
            self._say(f"the coordinator says: {printable(stop.reason)}")
        elif attempt is not None and attempt.order.attempt == stop.attempt:
            attempt.stop(printable(stop.reason), at_once=stop.at_once)
        return pack(make("Empty"))

    def follow(self, data: bytes, is_active: Callable[[], bool]) -> Iterator[bytes]:
        """Reports of an attempt, until it has ended; with what its first rank writes."""
        stop = unpack("Stop", data)
        attempt = self._find(stop.attempt, timeout_s=_MEET_S)
        why = ""
        try:
            yield from self._reports(attempt, is_active)
        except Refused as error:  # some of what is reported is data, for which the cap holds
            why = str(error)
            raise NotNow(why) from None
        finally:
            if not why and not attempt.ended.is_set():
                why = "the coordinator is gone"
            if why:
                self._say(why)
                attempt.stop(why, at_once=True)

    def exchange(self, peer: str, incoming: Iterator[bytes], cancel: Callable[[], None]) -> Iterator[bytes]:
        """Frames from and to another site, of the attempt that its first message names."""
        first = next(incoming, None)
        if first is None:
            return
        hello = unpack("Hello", first)
        self._check_version(hello.protocol, hello.version)
        with self._waiting_of(peer):
            attempt = self._find(hello.attempt, timeout_s=_MEET_S)
        yield from attempt.welcome(peer, incoming, cancel)

    def close(self) -> None:
        """End what is under way."""
        if self._attempt is not None:
            self._attempt.stop("the site ends", at_once=True)
            self._attempt.wait(_END_S)
        self.ledger.close()

    def _reports(self, attempt: Attempt, is_active: Callable[[], bool]) -> Iterator[bytes]:
        written, pace, before = _Written(attempt), _Pace(), ""
        while is_active():
            ended, state = attempt.ended.wait(_LOOK_S), attempt.state
            news = ended or state != before
            before = state
            if news or pace.due("files", _FILES_S):
                for name, piece in written.new():
                    yield self._told(attempt, name, pack(make("Report", state=state, piece=piece)))
            if news or pace.due("report", _report_every_s(attempt)):
                yield self._told(attempt, "report", self._report(attempt, ended=ended))
            if ended:
                return

    def _report(self, attempt: Attempt, *, ended: bool) -> bytes:
        """How an attempt stands; the last one also says what has left, itself included."""
        waits_for, waited, phase = attempt.transport.waiting()
        report = make("Report", waits_for=waits_for, waited=waited, phase=phase)
        report.state = attempt.state if ended or attempt.state == "meeting" else "training"
        if ended:
            report.kind, report.text, report.blames = attempt.kind, attempt.text, attempt.blames
            report.measured = attempt.measured
            size = 0
            for _ in range(4):  # its size is part of what it says
                size = wire_bytes(self._counted(report, attempt.order.run, size))
        return pack(report)

    def _counted(self, report: Any, run: str, own_bytes: int) -> bytes:
        """A report that has so many bytes itself, with what has left then."""
        meter = Counter(self._meter(run)) + Counter(report=own_bytes)
        report.ledger_bytes = self.ledger.totals.all + own_bytes
        report.run_bytes = self.ledger.totals.by_run[run] + own_bytes
        del report.meter[:]
        report.meter.extend(make("Count", label=label, bytes=count) for label, count in meter.items())
        return pack(report)

    def warn(self) -> None:
        """Say what is or will be wrong with certificates, now and then; each thing once (a day: it counts days)."""
        if not self._pace.due("certificates", _WARN_S):
            return
        try:
            found = self.keys.troubles()
        except ValueError as error:  # a file that is being changed, or is gone
            found = [str(error)]
        for text in found:
            if text not in self._warned:
                self._warned.add(text)
                self._say(text)

    def _told(self, attempt: Attempt, label: str, data: bytes) -> bytes:
        attempt.guard.let_out("coordinator", label, label, wire_bytes(data))
        return data

    def _guard(self, run: str) -> Guard:
        guard = Guard(self.holdings.config.policy, self.ledger, run)
        self._guards.setdefault(run, []).append(guard)
        return guard

    def _meter(self, run: str) -> dict[str, int]:
        """What left for a run over its attempts; before this site was started, as the ledger says."""
        total: Counter[str] = Counter()
        total.update(self._earlier.get(run, {}))
        for guard in self._guards[run]:
            total.update(guard.meter.sent)
        return dict(total)

    def _find(self, name: bytes, *, timeout_s: float) -> Attempt:
        """The attempt of a name, which may be about to begin."""

        def found() -> Attempt | None:
            attempt = self._attempt
            return attempt if attempt is not None and attempt.order.attempt == name else None

        with self._changed:
            self._changed.wait_for(found, timeout_s)
            attempt = found()
        if attempt is None:
            raise NotNow("there is no such attempt here")
        return attempt

    @contextmanager
    def _waiting_of(self, peer: str) -> Iterator[None]:
        """Let a peer wait for an attempt to begin, once at a time: nobody may take all of the server's threads."""
        with self._changed:
            if peer in self._at_the_door:
                raise NotNow("you are waiting already")
            self._at_the_door.add(peer)
        try:
            yield
        finally:
            with self._changed:
                self._at_the_door.discard(peer)

    def _end_the_one_before(self) -> None:
        before = self._attempt
        if before is None:
            return
        before.stop("another attempt begins", at_once=True)
        if not before.wait(_END_S):
            raise NotNow("an earlier attempt has not ended yet", busy=True)
        before.forget()

    def _check_members(self, order: Any) -> None:
        names = [member.name for member in order.members]
        config = self.holdings.config
        unknown = sorted(set(names) - {config.name} - set(config.peers))
        if config.name not in names or unknown or len(set(names)) != len(names):
            text = f"{config.name} does not train with {', '.join(unknown) or 'such a group'}: it does not list them"
            self._say(text)
            raise NotNow(f"{text}; ask it to, or leave them out")
        for member in order.members[: names.index(config.name)]:  # which this site calls; the others call it
            self._check_address(member.name, member.address)

    def _check_address(self, peer: str, address: str) -> None:
        """Refuse to call a peer at an address that this site's own settings do not list for it."""
        config = self.holdings.config
        listed = config.peers[peer].addresses
        if address in listed:
            return
        text = (
            f"{config.name} does not call {peer} at {printable(address)!r}, which its site.toml does not list"
        )
        self._say(f"{text}; it lists {', '.join(listed) or 'none'}")
        raise NotNow(
            f"{text}; add the address to peers.{peer}.addresses there, or correct it in federation.toml"
        )

    def _check_version(self, protocol: int, version: str) -> None:
        if (protocol, version) != (PROTOCOL, siafu.__version__):
            raise NotNow(
                f"{self.holdings.config.name} runs siafu {siafu.__version__}, but you run {version[:20]}; use the same"
            )


class _Pace:
    """Says when something is due again."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def due(self, what: str, every_s: float) -> bool:
        """Whether it was last due so long ago."""
        now = time.monotonic()
        if now - self._last.get(what, -every_s) < every_s:
            return False
        self._last[what] = now
        return True


def _report_every_s(attempt: Attempt) -> float:
    """Reports are few while all goes well, and frequent where somebody is waited for: then it matters who."""
    _, waited_s, _ = attempt.transport.waiting()
    return _FILES_S if waited_s > attempt.deadline_s / 4 else min(_REPORT_S, attempt.deadline_s / 4)


class _Written:
    """What the first rank of an attempt has written since it was last looked at."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt, self._folder = attempt, RunFolder(attempt.folder)
        self._events, self._kept = 0, self._stamp(self._folder.checkpoint)

    def new(self) -> Iterator[tuple[str, Any]]:
        """Label and piece of each."""
        if self._attempt.transport.rank:
            return
        kept = self._stamp(self._folder.checkpoint)
        events = self._read_events()
        if events:
            for piece in pieces_of("events", events):
                yield "events", piece
        if kept != self._kept:
            self._kept = kept
            for piece in pieces_of("checkpoint", self._folder.checkpoint.read_bytes()):
                yield "checkpoint", piece
        if self._attempt.state == "done" and self._attempt.ended.is_set():
            for piece in pieces_of("model", self._folder.weights.read_bytes()):
                yield "model", piece

    def _read_events(self) -> bytes:
        """Whole lines."""
        if not self._folder.events.is_file():
            return b""
        with self._folder.events.open("rb") as file:
            file.seek(self._events)
            lines, end, _ = file.read().rpartition(b"\n")
        self._events += len(lines) + len(end)
        return lines + end

    def _stamp(self, path: Path) -> tuple[int, int] | None:
        return (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None


def open_site(config: SiteConfig, holdings: Holdings, *, say: Callable[[str], None]) -> tuple[Site, Server]:
    """A site that answers."""
    keys = Keys(config)
    if trouble := keys.own.validity_error(datetime.now(UTC)):
        raise ValueError(f"{config.certificate}: {trouble}")
    site = Site(holdings, keys, say=say)
    site.warn()
    return site, Server(config.listen, site, keys.read, refused=say)
