"""Workers as processes of this host, one thread each. They do not outlive the process that started them."""

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


class Processes:
    """A process per lease. ``command`` starts a worker that reads its lease from standard input.

    With ``adopt``, each process inherits two sockets, ``--inherited CONNECTION,MEMORY``, and ``adopt`` gets their
    other ends. Without it, the process dials the address that its lease names.
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
        """Of those that run."""
        with self._lock:
            return [process.pid for process in self._running]

    def hold(self, lease: Lease) -> None:
        """Have a process serve a lease; raises LeaseError where it died."""
        process = self._start()
        try:
            _, said = process.communicate(lease.to_json().encode())
        except BrokenPipeError:
            said = b""
        finally:
            process.wait()
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            raise LeaseError(_told(process.returncode, said.decode(errors="replace").strip()))

    def close(self) -> None:
        """Kill those that still run."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._adopt is None:
            return self._run([])
        with ExitStack() as theirs:
            pairs = [socket.socketpair() for _ in range(2)]
            far = [theirs.enter_context(there) for _, there in pairs]
            try:
                process = self._run(far)
            except BaseException:
                for near, _ in pairs:
                    near.close()
                raise
        self._adopt(*(near for near, _ in pairs))
        return process

    def _run(self, inherited: list[socket.socket]) -> "subprocess.Popen[bytes]":
        numbers = [sock.fileno() for sock in inherited]
        more = ["--inherited", ",".join(map(str, numbers))] if numbers else []
        with self._lock:
            if self._closed:
                raise LeaseError("the launcher is closed")
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
    """That of this process without its secrets, with one thread, and this siafu."""
    paths = [str(Path(siafu.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    own = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    return {**own, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def _told(code: int, said: str) -> str:
    if code < 0:
        return f"its process was killed by signal {-code}"
    return said.splitlines()[-1] if said else f"its process ended with {code}"
