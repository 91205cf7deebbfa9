"""The service of a site (``siafu site serve``): it answers only its coordinator and listed peers."""

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
from siafu.launch.sites.egress import EgressGuard
from siafu.launch.sites.frame_stream import wire_bytes
from siafu.launch.sites.ledger import Ledger
from siafu.launch.sites.policy import EgressRefused
from siafu.launch.sites.rpc import CallRejected, SiteServer
from siafu.launch.sites.schema import PROTOCOL, BadMessage, make, pack, unpack
from siafu.run_folder import RunFolder
from siafu.sites.credentials import SiteCredentials
from siafu.sites.file_transfer import FileAssembler, atomic_writer, split_into_pieces
from siafu.sites.membership import MAX_CLOCK_SKEW_S
from siafu.sites.site_attempt import SiteAttempt
from siafu.sites.site_data import SiteData
from siafu.sites.untrusted_text import printable

_MEET_S = 20.0
_LOOK_S = 0.2
_FILES_S = 1.0  # between polls of the files that the first rank writes
_REPORT_S = 5.0  # between reports of one state
_END_S = 15.0
_WARN_S = 60.0  # between checks of the certificates
_MAX_NAME_LENGTH = 64  # letters


class SiteService:
    """The calls that a site answers; implements :class:`siafu.launch.sites.rpc.SiteProtocol`."""

    def __init__(self, site_data: SiteData, keys: SiteCredentials, *, say: Callable[[str], None]) -> None:
        config = site_data.config
        self.site_data, self.keys, self._say = site_data, keys, say
        self.ledger = Ledger(config.ledger, max_bytes=config.max_bytes)
        self._changed = threading.Condition()
        self._attempt: SiteAttempt | None = None
        self._guards: dict[str, list[EgressGuard]] = {}  # by run, one for each attempt
        self._stale_rows: dict[str, StaleRowCache] = {}  # by run
        self._earlier_bytes = {run: Counter(labels) for run, labels in self.ledger.totals.by_label.items()}
        self._waiting_peers: set[str] = set()
        self._timer, self._warned = _IntervalTimer(), set[str]()

    def describe(self, data: bytes) -> bytes:
        """Describe this site to the coordinator: sizes and names, no values of nodes."""
        ask = unpack("Ask", data)
        self.warn()
        self._check_version(ask.protocol, ask.version)
        skew = abs(time.time() - ask.time)
        if skew > MAX_CLOCK_SKEW_S:
            self._say(f"the clock here and the coordinator's differ by {skew:.0f} s; set them right")
        state = "idle" if self._attempt is None or self._attempt.ended.is_set() else self._attempt.state
        expires = self.keys.own.ends.timestamp()
        about = pack(self.site_data.about(state=state, ledger_bytes=self.ledger.totals.all, expires=expires))
        guard = EgressGuard(self.site_data.config.policy, self.ledger, "")
        try:
            guard.authorize("coordinator", "about", "description", wire_bytes(about))
        except EgressRefused as error:
            self._say(str(error))
            raise CallRejected(str(error)) from None
        return about

    def begin(self, pieces: Iterator[bytes]) -> bytes:
        """Begin an attempt; an attempt that is still running is ended first."""
        orders = (unpack("Order", data) for data in pieces)
        order = next(orders, None)
        if order is None or len(order.attempt) != 16 or len(order.run) > _MAX_NAME_LENGTH:
            raise BadMessage("an order without a name, or with too long a one")
        self._check_members(order)
        self._end_previous_attempt()
        attempt = self._create_attempt(order)
        attempt.folder.mkdir(parents=True, exist_ok=True)
        checkpoint = FileAssembler({"checkpoint": atomic_writer(RunFolder(attempt.folder).checkpoint)})
        for each in orders:
            checkpoint.add(each.piece)
        with self._changed:
            self._attempt = attempt
            self._changed.notify_all()
        attempt.start()
        return pack(make("Empty"))

    def _create_attempt(self, order: Any) -> SiteAttempt:
        if order.run not in self._stale_rows:  # rows of another run are of no use
            self._stale_rows, self._guards = {order.run: StaleRowCache()}, {}
        memory, guard = self._stale_rows[order.run], self._guard(order.run)
        try:
            return SiteAttempt(order, self.site_data, self.keys, guard, memory=memory, say=self._say)
        except ValueError as error:
            raise CallRejected(f"the settings of the run cannot be used here: {error}") from None

    def stop(self, data: bytes) -> bytes:
        """End the named attempt; without a name, log the coordinator's reason why none will begin."""
        stop = unpack("Stop", data)
        attempt = self._attempt
        if not stop.attempt:
            self._say(f"the coordinator says: {printable(stop.reason)}")
        elif attempt is not None and attempt.order.attempt == stop.attempt:
            attempt.stop(printable(stop.reason), at_once=stop.at_once)
        return pack(make("Empty"))

    def follow(self, data: bytes, is_active: Callable[[], bool]) -> Iterator[bytes]:
        """Yield reports of an attempt until it has ended, with the files that its first rank writes."""
        stop = unpack("Stop", data)
        attempt = self._find(stop.attempt, timeout_s=_MEET_S)
        why = ""
        try:
            yield from self._reports(attempt, is_active)
        except EgressRefused as error:  # checkpoints and models are data and count towards the cap
            why = str(error)
            raise CallRejected(why) from None
        finally:
            if not why and not attempt.ended.is_set():
                why = "the coordinator is gone"
            if why:
                self._say(why)
                attempt.stop(why, at_once=True)

    def exchange(self, peer: str, incoming: Iterator[bytes], cancel: Callable[[], None]) -> Iterator[bytes]:
        """Exchange frames with another site, for the attempt that its first message names."""
        first = next(incoming, None)
        if first is None:
            return
        hello = unpack("Hello", first)
        self._check_version(hello.protocol, hello.version)
        with self._one_wait_per_peer(peer):
            attempt = self._find(hello.attempt, timeout_s=_MEET_S)
        yield from attempt.accept_peer(peer, incoming, cancel)

    def close(self) -> None:
        """End a running attempt and close the ledger."""
        if self._attempt is not None:
            self._attempt.stop("the site ends", at_once=True)
            self._attempt.wait(_END_S)
        self.ledger.close()

    def _reports(self, attempt: SiteAttempt, is_active: Callable[[], bool]) -> Iterator[bytes]:
        written, pace, before = _OutputWatcher(attempt), _IntervalTimer(), ""
        while is_active():
            ended, state = attempt.ended.wait(_LOOK_S), attempt.state
            news = ended or state != before
            before = state
            if news or pace.due("files", _FILES_S):
                for name, piece in written.new():
                    yield self._metered(attempt, name, pack(make("Report", state=state, piece=piece)))
            if news or pace.due("report", _report_every_s(attempt)):
                yield self._metered(attempt, "report", self._report(attempt, ended=ended))
            if ended:
                return

    def _report(self, attempt: SiteAttempt, *, ended: bool) -> bytes:
        """Report the state of an attempt; the last report also counts the bytes that have left, itself included."""
        waits_for, waited, phase = attempt.transport.waiting()
        report = make("Report", waits_for=waits_for, waited=waited, phase=phase)
        report.state = attempt.state if ended or attempt.state == "meeting" else "training"
        if ended:
            report.kind, report.text, report.blames = attempt.kind, attempt.text, attempt.blames
            report.measured = attempt.measured
            size = 0
            for _ in range(4):  # the report contains its own size
                size = wire_bytes(self._with_counts(report, attempt.order.run, size))
        return pack(report)

    def _with_counts(self, report: Any, run: str, own_bytes: int) -> bytes:
        """Fill in the byte counts of a report that takes ``own_bytes`` itself."""
        meter = Counter(self._meter(run)) + Counter(report=own_bytes)
        report.ledger_bytes = self.ledger.totals.all + own_bytes
        report.run_bytes = self.ledger.totals.by_run[run] + own_bytes
        del report.meter[:]
        report.meter.extend(make("Count", label=label, bytes=count) for label, count in meter.items())
        return pack(report)

    def warn(self) -> None:
        """Log certificates that are invalid or expire soon, at most once a minute and each text once."""
        if not self._timer.due("certificates", _WARN_S):
            return
        try:
            found = self.keys.troubles()
        except ValueError as error:  # a file that is being changed, or is gone
            found = [str(error)]
        for text in found:
            if text not in self._warned:
                self._warned.add(text)
                self._say(text)

    def _metered(self, attempt: SiteAttempt, label: str, data: bytes) -> bytes:
        attempt.guard.authorize("coordinator", label, label, wire_bytes(data))
        return data

    def _guard(self, run: str) -> EgressGuard:
        guard = EgressGuard(self.site_data.config.policy, self.ledger, run)
        self._guards.setdefault(run, []).append(guard)
        return guard

    def _meter(self, run: str) -> dict[str, int]:
        """Bytes by label that left for a run in all its attempts, those of earlier processes as the ledger has them."""
        total: Counter[str] = Counter()
        total.update(self._earlier_bytes.get(run, {}))
        for guard in self._guards[run]:
            total.update(guard.meter.sent)
        return dict(total)

    def _find(self, name: bytes, *, timeout_s: float) -> SiteAttempt:
        """Find an attempt by name; wait for it if it has not begun yet."""

        def found() -> SiteAttempt | None:
            attempt = self._attempt
            return attempt if attempt is not None and attempt.order.attempt == name else None

        with self._changed:
            self._changed.wait_for(found, timeout_s)
            attempt = found()
        if attempt is None:
            raise CallRejected("there is no such attempt here")
        return attempt

    @contextmanager
    def _one_wait_per_peer(self, peer: str) -> Iterator[None]:
        """Let each peer wait in one call at a time, so that no peer can occupy all threads of the server."""
        with self._changed:
            if peer in self._waiting_peers:
                raise CallRejected("you are waiting already")
            self._waiting_peers.add(peer)
        try:
            yield
        finally:
            with self._changed:
                self._waiting_peers.discard(peer)

    def _end_previous_attempt(self) -> None:
        before = self._attempt
        if before is None:
            return
        before.stop("another attempt begins", at_once=True)
        if not before.wait(_END_S):
            raise CallRejected("an earlier attempt has not ended yet", busy=True)
        before.remove_files()

    def _check_members(self, order: Any) -> None:
        names = [member.name for member in order.members]
        config = self.site_data.config
        unknown = sorted(set(names) - {config.name} - set(config.peers))
        if config.name not in names or unknown or len(set(names)) != len(names):
            text = f"{config.name} does not train with {', '.join(unknown) or 'such a group'}: it does not list them"
            self._say(text)
            raise CallRejected(f"{text}; ask it to, or leave them out")
        # This site calls members of a lower rank; the others call it.
        for member in order.members[: names.index(config.name)]:
            self._check_address(member.name, member.address)

    def _check_address(self, peer: str, address: str) -> None:
        """Refuse to call a peer at an address that this site's own site.toml does not list for it."""
        config = self.site_data.config
        listed = config.peers[peer].addresses
        if address in listed:
            return
        text = (
            f"{config.name} does not call {peer} at {printable(address)!r}, which its site.toml does not list"
        )
        self._say(f"{text}; it lists {', '.join(listed) or 'none'}")
        raise CallRejected(
            f"{text}; add the address to peers.{peer}.addresses there, or correct it in federation.toml"
        )

    def _check_version(self, protocol: int, version: str) -> None:
        if (protocol, version) != (PROTOCOL, siafu.__version__):
            raise CallRejected(
                f"{self.site_data.config.name} runs siafu {siafu.__version__}, but you run {version[:20]}; use the same"
            )


class _IntervalTimer:
    """Tells when a periodic action is due again."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def due(self, what: str, every_s: float) -> bool:
        """Return whether the action was last due at least ``every_s`` seconds ago."""
        now = time.monotonic()
        if now - self._last.get(what, -every_s) < every_s:
            return False
        self._last[what] = now
        return True


def _report_every_s(attempt: SiteAttempt) -> float:
    """Seconds between reports: few while all goes well, frequent while this site waits for another one."""
    _, waited_s, _ = attempt.transport.waiting()
    return _FILES_S if waited_s > attempt.deadline_s / 4 else min(_REPORT_S, attempt.deadline_s / 4)


class _OutputWatcher:
    """Watches the files that the first rank of an attempt writes."""

    def __init__(self, attempt: SiteAttempt) -> None:
        self._attempt, self._folder = attempt, RunFolder(attempt.folder)
        self._events, self._kept = 0, self._stamp(self._folder.checkpoint)

    def new(self) -> Iterator[tuple[str, Any]]:
        """Yield label and piece of everything that was written since the last call."""
        if self._attempt.transport.rank:
            return
        kept = self._stamp(self._folder.checkpoint)
        events = self._read_events()
        if events:
            for piece in split_into_pieces("events", events):
                yield "events", piece
        if kept != self._kept:
            self._kept = kept
            for piece in split_into_pieces("checkpoint", self._folder.checkpoint.read_bytes()):
                yield "checkpoint", piece
        if self._attempt.state == "done" and self._attempt.ended.is_set():
            for piece in split_into_pieces("model", self._folder.weights.read_bytes()):
                yield "model", piece

    def _read_events(self) -> bytes:
        """Read the new events, whole lines only."""
        if not self._folder.events.is_file():
            return b""
        with self._folder.events.open("rb") as file:
            file.seek(self._events)
            lines, end, _ = file.read().rpartition(b"\n")
        self._events += len(lines) + len(end)
        return lines + end

    def _stamp(self, path: Path) -> tuple[int, int] | None:
        return (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None


def open_site_service(
    config: SiteConfig, site_data: SiteData, *, say: Callable[[str], None]
) -> tuple[SiteService, SiteServer]:
    """Create the service of a site and start its server."""
    keys = SiteCredentials(config)
    if trouble := keys.own.validity_error(datetime.now(UTC)):
        raise ValueError(f"{config.certificate}: {trouble}")
    site = SiteService(site_data, keys, say=say)
    site.warn()
    return site, SiteServer(config.listen, site, keys.read, refused=say)
