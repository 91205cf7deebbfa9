"""The door of a graph server: workers that dial in are let in, and served with tasks until they leave."""

import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

from siafu.wire.certificates import self_signed
from siafu.wire.heartbeats import FailureDetector
from siafu.workers.admission import Refused, admit
from siafu.workers.connection import Link
from siafu.workers.event_loop import Loop
from siafu.workers.lease import Compute, Lease
from siafu.workers.result_check import Expected
from siafu.workers.session import Limits, Room, Served, Visit
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import Handing, Segments
from siafu.workers.task_queue import Tasks

_STRANGERS = 64  # who may be at the door at once without having proved anything
_DOOR_S = 10.0  # in which they have to
_START_S = 600.0  # in which a process that was started here has to; where it dies, that is noticed at once
_HERE = "this host"  # the address of such a process


class Pool:
    """Listens for workers that hold a lease of this run, and has them do the tasks.

    Worker processes that this process started (:meth:`adopt`) see ``segments`` where they are; no other worker does.
    TLS is used where ``host`` is not this host's own loopback, unless told otherwise. ``address`` is what leases say
    where the pool is, if that is not ``host``. ``expected`` says what results must look like; without it they are
    believed. ``say`` is told of workers that are let go. Close it before the tasks.
    """

    def __init__(
        self,
        tasks: Tasks,
        setup: Setup,
        *,
        run: str = "run",
        host: str = "127.0.0.1",
        port: int = 0,
        address: str | None = None,
        tls: bool | None = None,
        limits: Limits | None = None,
        segments: Segments | None = None,
        expected: Expected | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tasks, self._setup, self._run, self._segments = tasks, setup, run, segments
        self._expected, self._say = expected, say
        self._limits = limits or Limits()
        self._token = secrets.token_hex(32)
        self._certificate = self_signed() if (not is_loopback(host) if tls is None else tls) else None
        self._context = self._certificate.server_context() if self._certificate else None
        self._changed = threading.Condition()
        self._visits: dict[str, Visit] = {}
        self._past: list[Served] = []
        self._refused: list[str] = []
        self._names: Counter[str] = Counter()  # of those that were let in
        self._leases = 0
        self._closing = False
        self._strangers = threading.BoundedSemaphore(_STRANGERS)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=512)
        self._loop = Loop("siafu-workers")
        self._detector = FailureDetector[str]([], deadline_s=self._limits.silence_s)
        self._loop.ask(self._watch)
        self._address = address or (socket.gethostname() if host in ("", "0.0.0.0", "::") else host)
        self.port: int = self._listener.getsockname()[1]
        self._door = threading.Thread(target=self._open_door, name="siafu-workers-door", daemon=True)
        self._door.start()

    def lease(self, *, seconds: float, compute: Compute = "twin") -> Lease:
        """A new lease, for one worker."""
        with self._changed:
            self._leases += 1
            name = f"worker-{self._leases}"
        return Lease(
            run=self._run,
            worker=name,
            host=self._address,
            port=self.port,
            token=self._token,
            deadline_s=time.time() + seconds,
            compute=compute,
            fingerprint=self._certificate.fingerprint.hex() if self._certificate else None,
        )

    def adopt(self, connection: socket.socket, memory: socket.socket) -> None:
        """Serve a worker process that this process started, and that has the other ends of these two sockets."""
        room = None if self._segments is None else Room(self._segments, Handing(memory))
        if room is None:
            memory.close()
        threading.Thread(
            target=self._receive, args=(connection, _HERE, room), name="siafu-workers-here", daemon=True
        ).start()

    @property
    def present(self) -> int:
        """How many workers are there now."""
        with self._changed:
            return sum(visit.ready for visit in self._visits.values())

    def wait_present(self, wait_s: float, *, or_else: Callable[[], bool]) -> None:
        """Return once a worker is there, or something else holds after :meth:`wake`, or after a while."""
        with self._changed:
            self._changed.wait_for(
                lambda: or_else() or any(visit.ready for visit in self._visits.values()), wait_s
            )

    def wake(self) -> None:
        """Have those who wait for a worker look again."""
        with self._changed:
            self._changed.notify_all()

    @property
    def served(self) -> list[Served]:
        """Every worker that was let in so far, in the order in which they left; then those that are there."""
        with self._changed:
            return [*self._past, *(visit.served() for visit in self._visits.values())]

    @property
    def refused(self) -> list[str]:
        """Why somebody was not let in, for each that was not: the last hundred."""
        with self._changed:
            return list(self._refused)

    def dismiss(self, count: int) -> int:
        """Have so many workers leave once they are done with what they hold; returns how many will."""
        with self._changed:
            leaving = list(self._visits)[:count]
        for worker in leaving:
            self._tasks.dismiss(worker)
        return len(leaving)

    def close(self) -> None:
        """Let nobody in any more, have the workers stop, and wait for that; what they held is done again."""
        with self._changed:
            self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._door.join()
        self._listener.close()
        with self._changed:
            visits = dict(self._visits)
        for worker in visits:
            self._tasks.dismiss(worker)
        if not self._wait_empty(self._limits.close_s):
            for visit in visits.values():
                visit.link.shut()
            self._wait_empty(self._limits.close_s)
        self._loop.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_empty(self, wait_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._visits, wait_s)

    def _open_door(self) -> None:
        while True:
            try:
                sock, (peer, *_) = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                time.sleep(0.1)  # out of file descriptors: some will be closed
                continue
            self._strangers.acquire()
            name = f"siafu-workers-{peer}"
            threading.Thread(target=self._meet, args=(sock, peer), name=name, daemon=True).start()

    def _watch(self) -> None:
        """Lose workers of which nothing is heard."""
        for visit in list(self._visits.values()):
            visit.look_after()
        self._loop.at(time.monotonic() + self._detector.tick_s, self._watch)

    def _meet(self, sock: socket.socket, peer: str) -> None:
        try:
            self._receive(sock, peer, None)
        finally:
            self._strangers.release()

    def _receive(self, sock: socket.socket, peer: str, room: Room | None) -> None:
        """Let a worker in, or find out why not."""
        certificate = self._certificate if peer != _HERE else None
        wait_s = _DOOR_S if peer != _HERE else _START_S
        try:
            binding = b""
            if self._context is not None and certificate is not None:
                sock.settimeout(wait_s)
                sock, binding = self._context.wrap_socket(sock, server_side=True), certificate.fingerprint
            name = admit(sock, self._token, binding=binding, wait_s=wait_s)
            self._enter(name, Link(sock, send_wait_s=self._limits.silence_s), peer, room)
        except (OSError, Refused) as error:  # ssl's errors are OSErrors
            with self._changed:
                self._refused = [*self._refused[-99:], f"{peer}: {_told(error)}"]
            sock.close()
            if room is not None:
                room.handing.close()

    def _enter(self, name: str, link: Link, peer: str, room: Room | None) -> None:
        with self._changed:
            if self._closing:
                link.close()
                if room is not None:
                    room.handing.close()
                return
            self._names[name] += 1
            worker = name if self._names[name] == 1 else f"{name}.{self._names[name]}"
            visit = self._visits[worker] = Visit(
                worker,
                peer,
                link=link,
                loop=self._loop,
                tasks=self._tasks,
                setup=self._setup,
                limits=self._limits,
                detector=self._detector,
                room=room,
                expected=self._expected,
                on_ready=self.wake,
                on_end=self._leave,
            )
        self._loop.ask(visit.begin)

    def _leave(self, visit: Visit) -> None:
        with self._changed:
            del self._visits[visit.worker]
            self._past.append(visit.served())
            self._changed.notify_all()
        if visit.let_go:
            self._say(f"{visit.worker}: {visit.let_go}")


def is_loopback(host: str) -> bool:
    """Whether an address is this host's own, which no other reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _told(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as it should ({error.reason})"
    return f"the connection broke: {error}" if isinstance(error, OSError) else str(error)
