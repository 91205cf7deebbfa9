"""The listener of a graph server: workers connect to it, are authenticated, and are served tasks until they leave."""

import secrets
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

from siafu.wire.heartbeats import FailureDetector
from siafu.wire.tls import Certificate
from siafu.workers.admission import AdmissionRefused, admit_worker
from siafu.workers.connection import FrameConnection
from siafu.workers.event_loop import EventLoop
from siafu.workers.lease import Backend, Lease
from siafu.workers.result_check import ResultChecker
from siafu.workers.session import SessionLimits, SharedMemory, WorkerSession, WorkerUsage
from siafu.workers.setup import Setup
from siafu.workers.shared_memory import DescriptorSender, Segments
from siafu.workers.task_queue import TaskQueue

_MAX_UNAUTHENTICATED = 64  # connections at a time
_HANDSHAKE_S = 10.0
_PROCESS_START_S = 600.0  # for the handshake of a process started here; its death is noticed at once
_THIS_HOST = "this host"  # the address of such a process


class WorkerListener:
    """Listens for workers that hold a lease of this run, and has them compute the tasks of a queue.

    Worker processes that this process started (:meth:`adopt`) map ``segments``; no other worker does. TLS is on unless
    ``host`` is a loopback address; ``tls`` overrides that. ``address`` is the address in leases, if it is not ``host``.
    Results are checked by ``checker``, or not at all. ``say`` is called with the reason when a worker is dismissed.
    Close the listener before the queue.
    """

    def __init__(
        self,
        tasks: TaskQueue,
        setup: Setup,
        *,
        run: str = "run",
        host: str = "127.0.0.1",
        port: int = 0,
        address: str | None = None,
        tls: bool | None = None,
        limits: SessionLimits | None = None,
        segments: Segments | None = None,
        checker: ResultChecker | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._tasks, self._setup, self._run, self._segments = tasks, setup, run, segments
        self._checker, self._say = checker, say
        self._limits = limits or SessionLimits()
        self._token = secrets.token_hex(32)
        self._certificate = _certificate() if (not is_loopback(host) if tls is None else tls) else None
        self._context = self._certificate.server_context() if self._certificate else None
        self._changed = threading.Condition()
        self._sessions: dict[str, WorkerSession] = {}
        self._past: list[WorkerUsage] = []
        self._refusals: list[str] = []
        self._names: Counter[str] = Counter()  # how often each was admitted
        self._num_leases = 0
        self._closing = False
        self._unauthenticated = threading.BoundedSemaphore(_MAX_UNAUTHENTICATED)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=512)
        self._loop = EventLoop("siafu-workers")
        self._detector = FailureDetector[str]([], deadline_s=self._limits.silence_s)
        self._loop.call_soon(self._check_silence)
        self._address = address or (socket.gethostname() if host in ("", "0.0.0.0", "::") else host)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept_all, name="siafu-workers-door", daemon=True)
        self._acceptor.start()

    def issue_lease(self, *, seconds: float, backend: Backend = "numpy") -> Lease:
        """Issue a new lease, for one worker."""
        with self._changed:
            self._num_leases += 1
            name = f"worker-{self._num_leases}"
        return Lease(
            run=self._run,
            worker=name,
            host=self._address,
            port=self.port,
            token=self._token,
            deadline_s=time.time() + seconds,
            backend=backend,
            fingerprint=self._certificate.fingerprint.hex() if self._certificate else None,
        )

    def adopt(self, connection: socket.socket, memory: socket.socket) -> None:
        """Serve a worker process that this process started, which inherited the other ends of these two sockets."""
        shared = None if self._segments is None else SharedMemory(self._segments, DescriptorSender(memory))
        if shared is None:
            memory.close()
        threading.Thread(
            target=self._admit, args=(connection, _THIS_HOST, shared), name="siafu-workers-here", daemon=True
        ).start()

    @property
    def num_ready(self) -> int:
        """The number of workers that are connected and ready."""
        with self._changed:
            return sum(session.ready for session in self._sessions.values())

    def wait_ready(
        self, wait_s: float | None = None, *, count: int = 1, or_else: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until ``count`` workers are ready, or until :meth:`close`.

        The wait also ends when ``or_else()`` is true after :meth:`notify`, or after ``wait_s`` seconds.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._closing
                    or or_else()
                    or sum(session.ready for session in self._sessions.values()) >= count
                ),
                wait_s,
            )

    def notify(self) -> None:
        """Have threads in :meth:`wait_ready` check their conditions again."""
        with self._changed:
            self._changed.notify_all()

    @property
    def usage(self) -> list[WorkerUsage]:
        """The usage of every worker that was admitted: those that left, in that order, then those connected."""
        with self._changed:
            return [*self._past, *(session.usage() for session in self._sessions.values())]

    @property
    def refusals(self) -> list[str]:
        """The reasons for which connections were refused: the last hundred."""
        with self._changed:
            return list(self._refusals)

    def dismiss(self, count: int) -> int:
        """Have ``count`` workers leave after the tasks that they hold; returns how many will."""
        with self._changed:
            leaving = list(self._sessions)[:count]
        for worker in leaving:
            self._tasks.dismiss(worker)
        return len(leaving)

    def close(self) -> None:
        """Admit no more workers, stop those that are connected, and wait for their end. Their tasks wait again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._changed:
            sessions = dict(self._sessions)
        for worker, session in sessions.items():
            self._tasks.dismiss(worker)
            if not session.ready:  # it is still starting, and has no task
                session.connection.shut()
        if not self._wait_empty(self._limits.close_s):
            for session in sessions.values():
                session.connection.shut()
            self._wait_empty(self._limits.close_s)
        self._loop.close()

    def __enter__(self) -> "WorkerListener":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_empty(self, wait_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._sessions, wait_s)

    def _accept_all(self) -> None:
        while True:
            try:
                sock, (peer, *_) = self._listener.accept()
            except OSError:
                if self._closing:
                    return
                time.sleep(0.1)  # out of file descriptors: some will be closed
                continue
            self._unauthenticated.acquire()
            name = f"siafu-workers-{peer}"
            threading.Thread(target=self._accept, args=(sock, peer), name=name, daemon=True).start()

    def _check_silence(self) -> None:
        """End sessions of silent workers, again and again."""
        for session in list(self._sessions.values()):
            session.check_silence()
        self._loop.call_at(time.monotonic() + self._detector.tick_s, self._check_silence)

    def _accept(self, sock: socket.socket, peer: str) -> None:
        try:
            self._admit(sock, peer, None)
        finally:
            self._unauthenticated.release()

    def _admit(self, sock: socket.socket, peer: str, shared_memory: SharedMemory | None) -> None:
        """Authenticate a worker and start its session, or note why it was refused."""
        certificate = self._certificate if peer != _THIS_HOST else None
        wait_s = _HANDSHAKE_S if peer != _THIS_HOST else _PROCESS_START_S
        try:
            binding = b""
            if self._context is not None and certificate is not None:
                sock.settimeout(wait_s)
                sock, binding = self._context.wrap_socket(sock, server_side=True), certificate.fingerprint
            name = admit_worker(sock, self._token, binding=binding, wait_s=wait_s)
            connection = FrameConnection(sock, send_wait_s=self._limits.silence_s)
            self._start_session(name, connection, peer, shared_memory)
        except (OSError, AdmissionRefused) as error:  # ssl's errors are OSErrors
            with self._changed:
                self._refusals = [*self._refusals[-99:], f"{peer}: {_reason(error)}"]
            sock.close()
            if shared_memory is not None:
                shared_memory.sender.close()

    def _start_session(
        self, name: str, connection: FrameConnection, peer: str, shared_memory: SharedMemory | None
    ) -> None:
        with self._changed:
            if self._closing:
                connection.close()
                if shared_memory is not None:
                    shared_memory.sender.close()
                return
            self._names[name] += 1
            worker = name if self._names[name] == 1 else f"{name}.{self._names[name]}"
            session = self._sessions[worker] = WorkerSession(
                worker,
                peer,
                connection=connection,
                loop=self._loop,
                tasks=self._tasks,
                setup=self._setup,
                limits=self._limits,
                detector=self._detector,
                shared_memory=shared_memory,
                checker=self._checker,
                on_ready=self.notify,
                on_end=self._end_session,
            )
        self._loop.call_soon(session.start)

    def _end_session(self, session: WorkerSession) -> None:
        with self._changed:
            del self._sessions[session.worker]
            self._past.append(session.usage())
            self._changed.notify_all()
        if session.dismissal:
            self._say(f"{session.worker}: {session.dismissal}")


def _certificate() -> Certificate:
    """Make a certificate; the library for that is imported here alone."""
    from siafu.wire.certificates import self_signed

    return self_signed()


def is_loopback(host: str) -> bool:
    """Tell whether an address is of this host alone, so that no other host reaches it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"it does not speak TLS as it should ({error.reason})"
    return f"the connection broke: {error}" if isinstance(error, OSError) else str(error)
