"""Workers as processes of this host, with one thread each. They die with the process that started them."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import siafu
from siafu.workers.lease import Lease
from siafu.workers.supervisor import LeaseError

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_SECRETS = ("SIAFU_LEASE_KEY", "SIAFU_LEASE_KEY_FILE")
Adopt = Callable[[socket.socket, socket.socket], None]


class ProcessPlatform:
    """Starts one process per lease. ``command`` runs a worker that reads its lease from standard input.

    With ``adopt``, each process inherits two sockets, ``--inherited CONNECTION,MEMORY``, and ``adopt`` is called with
    their other ends. Without it, the process dials the address in its lease.
    """

    def __init__(self, command: Sequence[str] | None = None, *, adopt: Adopt | None = None) -> None:
        parent = ["--parent", str(os.getpid())]
        self._command = list(command or [sys.executable, "-m", "siafu.workers.worker", *parent])
        self._adopt = adopt
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        with self._lock:
            return [process.pid for process in self._running]

    def run_worker(self, lease: Lease) -> None:
        """Run a process with a lease until it ends; raises LeaseError if it failed."""
        process = self._start()
        try:
            _, stderr = process.communicate(lease.to_json().encode())
        except BrokenPipeError:
            stderr = b""
        finally:
            process.wait()
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            raise LeaseError(_reason(process.returncode, stderr.decode(errors="replace").strip()))

    def close(self) -> None:
        """Kill the processes that still run."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._adopt is None:
            return self._spawn([])
        with ExitStack() as child_ends:
            pairs = [socket.socketpair() for _ in range(2)]
            inherited = [child_ends.enter_context(child) for _, child in pairs]
            try:
                process = self._spawn(inherited)
            except BaseException:
                for own, _ in pairs:
                    own.close()
                raise
        self._adopt(*(own for own, _ in pairs))
        return process

    def _spawn(self, inherited: list[socket.socket]) -> "subprocess.Popen[bytes]":
        numbers = [sock.fileno() for sock in inherited]
        more = ["--inherited", ",".join(map(str, numbers))] if numbers else []
        with self._lock:
            if self._closed:
                raise LeaseError("the supervisor is closed")
            try:
                process = subprocess.Popen(
                    [*self._command, *more], env=_environment(), stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=numbers,
                )  # fmt: skip
            except OSError as error:
                raise LeaseError(f"no process could be started: {error}") from error
            self._running.add(process)
        return process


def _environment() -> dict[str, str]:
    """Return this process's environment without its secrets, with one thread, and with this siafu on the path."""
    paths = [str(Path(siafu.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**own, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _reason(code: int, stderr: str) -> str:
    if code < 0:
        return f"its process was killed by signal {-code}"
    return stderr.splitlines()[-1] if stderr else f"its process ended with {code}"
