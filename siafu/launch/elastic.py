"""Ranks as processes: ``join`` in a rank, ``launch`` above ranks. The one file that names torch's distributed package.

Ranks of one host meet at Unix sockets whose names follow from their secret (siafu.comm), and need no store. Ranks of
several hosts find each other's addresses in a TCPStore, which anybody may read and write: no secret goes there, and
addresses from there are only dialled. Torch's process groups are not used, since they do not notice a stopped peer.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

import siafu
from siafu.comm import Comm, Group, single_rank_comm
from siafu.comm.socket_transport import connect
from siafu.launch.failures import LAUNCHER, RanksFailed, explain, write_report
from siafu.launch.network_addresses import address_to_bind, listen, wait_until_reachable
from siafu.launch.rank_environment import Place, place_of
from siafu.launch.rank_supervisor import Attempt
from siafu.launch.secret import SECRET, group_key

T = TypeVar("T")

# Asked about ten times a second while ranks run; True asks them to end in good order (SIGTERM), and what it raises ends
# all of them at once.
Watch = Callable[[], bool]

MEETING_S = 300.0
_LOOK_S = 0.1
_STOPS = (signal.SIGTERM, signal.SIGINT)
_LOOPBACK = "127.0.0.1"
_LEASH = Path(__file__).with_name("leash.py")


# In a rank.


@contextmanager
def join(
    environ: Mapping[str, str],
    *,
    deadline_s: float,
    settings: str = "",
    encrypt: bool = True,
    trust_network: bool = False,
) -> Iterator[Comm]:
    """The Comm of this process in the group that its environment names; ranks whose ``settings`` differ are refused.

    Ranks on several hosts need a secret (see ``engine.secret``) unless ``trust_network``, and use TLS if ``encrypt``.

    An error inside is told to all peers and reported to the launcher, and goes on. A rank that sets handlers for
    SIGTERM and SIGINT does so before: those that its launcher sent wait until here. Collective.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    try:
        place = place_of(environ)
        secret = b"" if place.world_size == 1 else group_key(environ, place, trust_network=trust_network)
        with (
            _meet(place, secret, deadline_s=deadline_s, settings=settings, encrypt=encrypt) as comm,
            _failing(comm),
        ):
            yield comm
    except Exception as error:
        write_report(environ, error)
        raise


@contextmanager
def _failing(comm: Comm) -> Iterator[None]:
    """Peers are told of an error; an orderly exit is none."""
    try:
        yield
    except SystemExit as ended:
        if ended.code:
            comm.fail(f"exit code {ended.code}")
        raise
    except BaseException as error:
        comm.fail(explain(error))
        raise


@contextmanager
def _meet(place: Place, secret: bytes, *, deadline_s: float, settings: str, encrypt: bool) -> Iterator[Comm]:
    if place.world_size == 1:
        with closing(single_rank_comm()) as comm:
            yield comm
        return
    group = Group(
        rank=place.rank,
        world_size=place.world_size,
        secret=secret,
        bind="" if place.one_host else address_to_bind(place.address, place.port),
        encrypt=encrypt,
        deadline_s=deadline_s,
        settings=settings,
        version=siafu.__version__,
        name=socket.gethostname(),
    )
    with closing(_connect(group, place)) as comm:
        yield comm


def _connect(group: Group, place: Place) -> Comm:
    if place.one_host:
        return Comm(connect(group, None, patience_s=MEETING_S))
    board = _Board(place)
    comm = Comm(connect(group, board, patience_s=MEETING_S))
    try:
        comm.barrier(label="control")  # all have met: from here on nobody needs the store
    except BaseException:
        comm.close()
        raise
    board.close()
    return comm


class _Board:
    """A ``Meet`` on a TCPStore, whose calls do not always end: each runs in a thread that can be given up."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._prefix = f"siafu/{place.attempt}"
        host, listening = place.address, None
        if place.rank == 0 and not place.hosted:
            host, listening = listen(place.address, place.port)
        else:
            wait_until_reachable(place.address, place.port, seconds=MEETING_S)
        self._store: Any = self._within(MEETING_S, "answer", lambda: _open_store(host, place.port, listening))

    def close(self) -> None:
        """Leave the store; one that this rank hosts ends."""
        self._store = None

    def set(self, key: str, value: bytes) -> None:
        """Leave a value."""
        self._within(MEETING_S, f"take {key!r}", lambda: self._store.set(f"{self._prefix}/{key}", value))

    def get(self, key: str, *, timeout_s: float) -> bytes:
        """Wait for a value; raises TimeoutError."""

        def ask() -> bytes:
            self._store.set_timeout(timedelta(seconds=timeout_s))
            return self._store.get(f"{self._prefix}/{key}")

        return self._within(timeout_s, f"give {key!r}", ask)

    def _within(self, seconds: float, what: str, call: Callable[[], T]) -> T:
        place, done = self._place, _Done(call)
        done.start()
        done.join(seconds + 1.0)
        if done.is_alive() or isinstance(done.error, RuntimeError):  # torch's DistStoreError and its kin
            raise TimeoutError(
                f"rank {place.rank} on {socket.gethostname()}: the meeting place {place.address}:{place.port} did "
                f"not {what} within {seconds:g} s; check that all {place.world_size} ranks were started, and that "
                "nothing else listens on that port"
            ) from done.error
        return done.result()


class _Done(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._results: list[Any] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call, and keep what comes of it."""
        try:
            self._results.append(self._call())
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """What the call gave, or raised."""
        if self.error is not None:
            raise self.error
        return self._results[0]


def _open_store(host: str, port: int, listening: socket.socket | None) -> TCPStore:
    options: dict[str, Any] = {"wait_for_workers": False, "timeout": timedelta(seconds=MEETING_S)}
    if listening is None:
        return TCPStore(host, port, is_master=False, **options)
    return TCPStore(host, port, is_master=True, master_listen_fd=listening.detach(), **options)


# Above ranks.


def launch(
    command: Sequence[str], *, ranks: int, threads: int, watch: Watch, deadline_s: float = 30.0
) -> None:
    """Run ``command`` as ``ranks`` processes of this host, once; returns when all ended well, else raises RanksFailed.

    Torch's elastic agent starts and follows them, in a thread, so that the caller's signal handlers stay in force. No
    rank outlives this call or this process; one that is stopped (SIGSTOP) for longer than the deadline is ended. A
    rank's standard output goes to our standard error.
    """
    with _reports() as folder, _quiet():
        attempt = Attempt(folder, deadline_s=deadline_s)
        running = _Done(lambda: _run_agent(command, ranks, threads, attempt))
        running.start()
        try:
            _follow(running, attempt, watch)
        finally:
            attempt.kill()  # nothing is left to kill, unless something was raised
            running.join()
        running.result()
        if failures := attempt.failures():
            raise RanksFailed(failures)


@contextmanager
def _reports() -> Iterator[Path]:
    """A folder for reports, which who has one to leave makes: a launcher that is killed leaves no folder."""
    folder = Path(tempfile.gettempdir()) / f"siafu-ranks-{secrets.token_hex(16)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _follow(running: threading.Thread, attempt: Attempt, watch: Watch) -> None:
    while running.is_alive():
        if watch():
            attempt.stop()
        running.join(_LOOK_S)


def _run_agent(command: Sequence[str], ranks: int, threads: int, attempt: Attempt) -> None:
    """In the thread to whose life the ranks are bound.

    Ranks take over that SIGTERM and SIGINT are held back here: one that still imports torch could only die of them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    meeting = _OneHost()
    leash = ["-I", "-S", str(_LEASH), str(os.getpid()), *command]
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        entrypoint=sys.executable,
        args=tuple(leash),
        rdzv_handler=meeting,
        max_restarts=0,
        monitor_interval=_LOOK_S,
        local_addr=_LOOPBACK,
    )
    _Agent(spec, _Reports(attempt, threads), attempt).run()


class _Agent(LocalElasticAgent):
    """Torch's agent. We look at its ranks before it does: who failed first is known, and a stopped rank is no delay."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs, attempt: Attempt) -> None:
        super().__init__(spec, logs)
        self._attempt = attempt

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._attempt.look({worker.global_rank: worker.id for worker in worker_group.workers})
        result = super()._monitor_workers(worker_group)
        for rank, failure in result.failures.items():  # those that ended since we looked
            self._attempt.ended(rank, failure.exitcode)
        return result


class _OneHost(RendezvousHandler):
    """The rendezvous of torch's agent with itself, in the memory of this process: no port is opened."""

    def __init__(self) -> None:
        self._store = HashStore()
        self._run_id = secrets.token_hex(8)

    def get_backend(self) -> str:
        """A name for torch's own logs."""
        return "siafu"

    @property
    def use_agent_store(self) -> bool:
        """No: ranks meet at Unix sockets."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """One node, which is this one."""
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(_LOOPBACK, 0))

    def is_closed(self) -> bool:
        """Never: it ends with the attempt."""
        return False

    def set_closed(self) -> None:
        """There is nobody to tell."""

    def num_nodes_waiting(self) -> int:
        """None: nobody else may come."""
        return 0

    def get_run_id(self) -> str:
        """What tells this attempt from others."""
        return self._run_id

    def shutdown(self) -> bool:
        """There is nothing to end."""
        return True


class _Reports(LogsSpecs):
    """The environment of each rank: where it leaves its report, its threads, the secret. Its output stays as it is."""

    def __init__(self, attempt: Attempt, threads: int) -> None:
        super().__init__()
        self._attempt = attempt
        self._threads = threads
        self._secret = secrets.token_hex(32)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Write it into the environment of each rank."""
        reports = {rank: str(self._attempt.report(rank)) for rank in envs}
        for rank, environ in envs.items():
            environ["TORCHELASTIC_ERROR_FILE"] = reports[rank]
            environ["OMP_NUM_THREADS"] = str(self._threads)
            environ[LAUNCHER] = str(os.getpid())
            environ[SECRET] = self._secret  # only its owner reads a process's environment
        here = dict.fromkeys(envs, "")
        return LogsDest(stdouts=here, stderrs=here, error_files=reports)

    @property
    def root_log_dir(self) -> str:
        """No logs are written."""
        return os.devnull


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch's agent logs says nothing that our own errors don't; it is shown when debugging."""
    if logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
        yield
        return
    logs = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torchelastic-events-null")]
    before, nobody = [log.propagate for log in logs], logging.NullHandler()
    for log in logs:
        log.addHandler(nobody)
        log.propagate = False
    try:
        yield
    finally:
        for log, propagate in zip(logs, before, strict=True):
            log.propagate = propagate
            log.removeHandler(nobody)
