"""Ranks as processes: ``join`` in a rank, ``launch`` in the launcher. The only file that imports torch.distributed.

Ranks of one host connect by Unix sockets whose names are derived from their secret (``comm.network``), and need no
store. Ranks of several hosts find each other's addresses in a TCPStore. Anybody may read and write it, so no secret is
stored there, and peers authenticate after dialling. Torch's process groups are not used: they do not notice a
suspended peer.
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
from siafu.comm import Comm, GroupConfig, single_rank_comm
from siafu.comm.socket_transport import connect_sockets
from siafu.cores import thread_environ
from siafu.launch.failures import LAUNCHER, RanksFailed, describe_error, write_report
from siafu.launch.late_arguments import ARGUMENTS, LateArguments, late_arguments
from siafu.launch.network_addresses import choose_bind_address, listen_for_rendezvous, wait_until_reachable
from siafu.launch.rank_environment import RankEnvironment, read_rank_environment
from siafu.launch.rank_supervisor import RankSupervisor
from siafu.launch.secret import SECRET, group_key

T = TypeVar("T")

# Called about ten times a second while ranks run. True asks ranks to end normally (SIGTERM); an exception kills them.
StopCheck = Callable[[], bool]

RENDEZVOUS_TIMEOUT_S = 300.0
_POLL_S = 0.1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOPBACK = "127.0.0.1"
_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")


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
    """Join the group that the environment describes and yield its Comm. Collective.

    Ranks whose ``settings`` differ are refused. Ranks on several hosts need a secret (see ``launch.secret``) unless
    ``trust_network``, and use TLS if ``encrypt``.

    An error inside the context is sent to all peers, written to the launcher's report and raised again. A rank must set
    its handlers for SIGTERM and SIGINT before: those signals are blocked by the launcher until this call.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)
    try:
        rank_env = read_rank_environment(environ)
        secret = (
            b"" if rank_env.world_size == 1 else group_key(environ, rank_env, trust_network=trust_network)
        )
        with (
            _join_group(rank_env, secret, deadline_s=deadline_s, settings=settings, encrypt=encrypt) as comm,
            _report_to_peers(comm),
        ):
            yield comm
    except Exception as error:
        write_report(environ, error)
        raise


@contextmanager
def _report_to_peers(comm: Comm) -> Iterator[None]:
    """Report an error inside the context to all peers; SystemExit with code 0 is not an error."""
    try:
        yield
    except SystemExit as ended:
        if ended.code:
            comm.fail(f"exit code {ended.code}")
        raise
    except BaseException as error:
        comm.fail(describe_error(error))
        raise


@contextmanager
def _join_group(
    rank_env: RankEnvironment, secret: bytes, *, deadline_s: float, settings: str, encrypt: bool
) -> Iterator[Comm]:
    if rank_env.world_size == 1:
        with closing(single_rank_comm()) as comm:
            yield comm
        return
    group = GroupConfig(
        rank=rank_env.rank,
        world_size=rank_env.world_size,
        secret=secret,
        bind="" if rank_env.one_host else choose_bind_address(rank_env.address, rank_env.port),
        encrypt=encrypt,
        deadline_s=deadline_s,
        settings=settings,
        version=siafu.__version__,
        name=socket.gethostname(),
    )
    with closing(_connect(group, rank_env)) as comm:
        yield comm


def _connect(group: GroupConfig, rank_env: RankEnvironment) -> Comm:
    if rank_env.one_host:
        return Comm(connect_sockets(group, None, timeout_s=RENDEZVOUS_TIMEOUT_S))
    store = _TCPRendezvousStore(rank_env)
    comm = Comm(connect_sockets(group, store, timeout_s=RENDEZVOUS_TIMEOUT_S))
    try:
        comm.barrier(label="control")  # all ranks are connected: the store is not needed any more
    except BaseException:
        comm.close()
        raise
    store.close()
    return comm


class _TCPRendezvousStore:
    """A ``RendezvousStore`` over a TCPStore, whose calls may hang: each runs in a thread that can be abandoned."""

    def __init__(self, rank_env: RankEnvironment) -> None:
        self._rank_env = rank_env
        self._prefix = f"siafu/{rank_env.attempt_id}"
        host, listening = rank_env.address, None
        if rank_env.rank == 0 and not rank_env.agent_hosts_store:
            host, listening = listen_for_rendezvous(rank_env.address, rank_env.port)
        else:
            wait_until_reachable(rank_env.address, rank_env.port, seconds=RENDEZVOUS_TIMEOUT_S)
        self._store: Any = self._with_timeout(
            RENDEZVOUS_TIMEOUT_S, "answer", lambda: _open_store(host, rank_env.port, listening)
        )

    def close(self) -> None:
        """Disconnect from the store; if this rank hosts it, it ends."""
        self._store = None

    def set(self, key: str, value: bytes) -> None:
        """Store a value."""
        self._with_timeout(
            RENDEZVOUS_TIMEOUT_S, f"take {key!r}", lambda: self._store.set(f"{self._prefix}/{key}", value)
        )

    def get(self, key: str, *, timeout_s: float) -> bytes:
        """Wait for a value and return it; raises TimeoutError."""

        def ask() -> bytes:
            self._store.set_timeout(timedelta(seconds=timeout_s))
            return self._store.get(f"{self._prefix}/{key}")

        return self._with_timeout(timeout_s, f"give {key!r}", ask)

    def _with_timeout(self, seconds: float, what: str, call: Callable[[], T]) -> T:
        rank_env, done = self._rank_env, _BackgroundCall(call)
        done.start()
        done.join(seconds + 1.0)
        if done.is_alive() or isinstance(done.error, RuntimeError):  # torch's DistStoreError and its kin
            raise TimeoutError(
                f"rank {rank_env.rank} on {socket.gethostname()}: the rendezvous store at "
                f"{rank_env.address}:{rank_env.port} did not {what} within {seconds:g} s; "
                f"check that all {rank_env.world_size} ranks were started, and that "
                "nothing else listens on that port"
            ) from done.error
        return done.result()


class _BackgroundCall(threading.Thread):
    """A call in a daemon thread, whose result or error is kept."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._results: list[Any] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call, and keep the result or the error."""
        try:
            self._results.append(self._call())
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """Return the result of the call, or raise its error."""
        if self.error is not None:
            raise self.error
        return self._results[0]


def _open_store(host: str, port: int, listening: socket.socket | None) -> TCPStore:
    options: dict[str, Any] = {"wait_for_workers": False, "timeout": timedelta(seconds=RENDEZVOUS_TIMEOUT_S)}
    if listening is None:
        return TCPStore(host, port, is_master=False, **options)
    return TCPStore(host, port, is_master=True, master_listen_fd=listening.detach(), **options)


# In the launcher.


def launch(
    command: Sequence[str], *, ranks: int, threads: int, watch: StopCheck, deadline_s: float = 30.0
) -> None:
    """Run ``command`` as ``ranks`` processes of this host, once; raises RanksFailed unless all succeed.

    Torch's elastic agent starts and follows them, in a thread, so that the caller's signal handlers stay in force. No
    rank outlives this call or this process. A rank that is suspended (SIGSTOP) for longer than the deadline is killed.
    The standard output of ranks goes to this process's standard error.
    """
    with started_ranks(command, ranks=ranks, threads=threads, deadline_s=deadline_s) as processes:
        processes.wait(watch)


@contextmanager
def started_ranks(
    command: Sequence[str], *, ranks: int, threads: int, deadline_s: float = 30.0
) -> Iterator["RankProcesses"]:
    """Start the processes of :func:`launch`, and kill those that are left when the context ends.

    A command that calls :func:`siafu.launch.late_arguments.wait_for_arguments` imports its modules while the caller is
    busy, and starts its work at :meth:`RankProcesses.send`.
    """
    with _report_folder() as folder, late_arguments() as arguments, _silenced_torch_logs():
        supervisor = RankSupervisor(folder, deadline_s=deadline_s)
        environments = _RankEnvironments(supervisor, threads, arguments)
        agent = _BackgroundCall(lambda: _run_agent(command, ranks, environments, supervisor))
        agent.start()
        try:
            yield RankProcesses(arguments, agent, supervisor)
        finally:
            supervisor.kill()  # ranks are left only after an exception, or if they were never waited for
            agent.join()


class RankProcesses:
    """Rank processes that torch's agent has started."""

    def __init__(
        self, arguments: LateArguments, agent: "_BackgroundCall", supervisor: RankSupervisor
    ) -> None:
        self._arguments, self._agent, self._supervisor = arguments, agent, supervisor

    def send(self, arguments: Sequence[str]) -> None:
        """Send the arguments that ranks wait for."""
        self._arguments.send(arguments)

    def wait(self, watch: StopCheck) -> None:
        """Wait until all ranks have ended; raises RanksFailed unless all succeed."""
        _wait_for_agent(self._agent, self._supervisor, watch)
        self._agent.result()
        if failures := self._supervisor.failures():
            raise RanksFailed(failures)


@contextmanager
def _report_folder() -> Iterator[Path]:
    """Name a folder for reports; the first report creates it, so that a killed launcher leaves no empty folder."""
    folder = Path(tempfile.gettempdir()) / f"siafu-ranks-{secrets.token_hex(16)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_agent(running: threading.Thread, supervisor: RankSupervisor, watch: StopCheck) -> None:
    while running.is_alive():
        if watch():
            supervisor.stop()
        running.join(_POLL_S)


def _run_agent(
    command: Sequence[str], ranks: int, environments: "_RankEnvironments", supervisor: RankSupervisor
) -> None:
    """Run torch's agent, in the thread to whose life the ranks are bound.

    Ranks inherit that SIGTERM and SIGINT are blocked here. Otherwise a rank that still imports torch would die of them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    rendezvous = _SingleNodeRendezvous()
    arguments = ["-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *command]
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        entrypoint=sys.executable,
        args=tuple(arguments),
        rdzv_handler=rendezvous,
        max_restarts=0,
        monitor_interval=1e-3,  # the supervisor waits
        local_addr=_LOOPBACK,
    )
    _SupervisedAgent(spec, environments, supervisor).run()


class _SupervisedAgent(LocalElasticAgent):
    """Torch's agent, with the supervisor polled first: it knows which rank failed first, and kills suspended ranks."""

    def __init__(self, spec: WorkerSpec, logs: LogsSpecs, supervisor: RankSupervisor) -> None:
        super().__init__(spec, logs)
        self._supervisor = supervisor

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        pids = {worker.global_rank: worker.id for worker in worker_group.workers}
        self._supervisor.wait(pids, _POLL_S)
        self._supervisor.poll(pids)
        result = super()._monitor_workers(worker_group)
        for rank, failure in result.failures.items():  # those that ended since the poll
            self._supervisor.record_exit(rank, failure.exitcode)
        return result


class _SingleNodeRendezvous(RendezvousHandler):
    """The rendezvous that torch's agent requires, in the memory of this process: no port is opened."""

    def __init__(self) -> None:
        self._store = HashStore()
        self._run_id = secrets.token_hex(8)

    def get_backend(self) -> str:
        """Return a name for torch's own logs."""
        return "siafu"

    @property
    def use_agent_store(self) -> bool:
        """False: ranks connect by Unix sockets."""
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a group of one node, this one."""
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(_LOOPBACK, 0))

    def is_closed(self) -> bool:
        """Return False: it ends with the agent."""
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no other node."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other node may join."""
        return 0

    def get_run_id(self) -> str:
        """Return the identifier of this launch."""
        return self._run_id

    def shutdown(self) -> bool:
        """Return True: there is nothing to shut down."""
        return True


class _RankEnvironments(LogsSpecs):
    """Sets the environment of each rank: report, number of threads, secret. Output is not redirected."""

    def __init__(self, supervisor: RankSupervisor, threads: int, arguments: LateArguments) -> None:
        super().__init__()
        self._supervisor, self._arguments = supervisor, arguments
        self._threads = threads
        self._secret = secrets.token_hex(32)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Add the variables to the environment of each rank."""
        reports = {rank: str(self._supervisor.report(rank)) for rank in envs}
        for rank, environ in envs.items():
            environ["TORCHELASTIC_ERROR_FILE"] = reports[rank]
            environ["OMP_NUM_THREADS"] = str(self._threads)
            environ.update(thread_environ(os.environ | environ))
            environ[LAUNCHER] = str(os.getpid())
            environ[ARGUMENTS] = self._arguments.path
            environ[SECRET] = self._secret  # only its user can read a process's environment
        here = dict.fromkeys(envs, "")
        return LogsDest(stdouts=here, stderrs=here, error_files=reports)

    @property
    def root_log_dir(self) -> str:
        """The null device: no logs are written."""
        return os.devnull


@contextmanager
def _silenced_torch_logs() -> Iterator[None]:
    """Silence the logs of torch's agent, which repeat siafu's own errors, unless this logger is at level DEBUG."""
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
