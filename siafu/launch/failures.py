"""Failures of ranks: the report that a rank writes, and the error that the launcher raises from it."""

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from siafu.comm import CommError, PeerFailed, PeerLost, PeerProtocolError
from siafu.files import write_atomically
from siafu.terminal import escape_control_chars

FailureKind = Literal["error", "lost_peer", "killed", "memory"]

EXIT_ERROR = 1
EXIT_LOST_PEER = 75  # EX_TEMPFAIL: this rank is fine; the group can be restarted

# Of several failures those of the first of these kinds are reported: the others follow from them.
_KINDS_BY_PRIORITY: tuple[FailureKind, ...] = ("memory", "error", "killed", "lost_peer")
_REPORT = "TORCHELASTIC_ERROR_FILE"  # where torch's agent, ours or torchrun's, expects it
LAUNCHER = "SIAFU_LAUNCHER"


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The failure of one rank.

    Attributes:
        rank: the rank.
        host: the host that it ran on.
        kind: ``error`` (it raised an error of its own), ``lost_peer`` (it ended because a peer was lost), ``killed``
            (ended by a signal) or ``memory`` (killed by the kernel for lack of memory).
        message: the description for a user.
        error: the name of the exception's type, empty without one.
        where: the rank's traceback, empty without one.
    """

    rank: int
    host: str
    kind: FailureKind
    message: str
    error: str = ""
    where: str = ""


class RanksFailed(RuntimeError):
    """A group of ranks failed.

    Attributes:
        failures: all failures, in the order in which the ranks ended.
        reported: the failures in the message; the others are their consequences.
        summary: the first clause of the message.
    """

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        self.failures = tuple(failures)
        kind = min((failure.kind for failure in failures), key=_KINDS_BY_PRIORITY.index)
        self.reported = tuple(failure for failure in failures if failure.kind == kind)
        sentences = list(_sentences(self.reported))
        self.summary = sentences[0].partition("; ")[0]
        super().__init__("\n".join(sentences))
        for where in dict.fromkeys(failure.where for failure in self.reported if failure.where):
            self.add_note(where)


def _sentences(failures: Sequence[RankFailure]) -> Iterator[str]:
    """Yield a sentence for each distinct message; ranks with the same message are named together."""
    for message in dict.fromkeys(failure.message for failure in failures):
        same = sorted((failure for failure in failures if failure.message == message), key=_rank)
        who = " and ".join(f"rank {failure.rank} on {failure.host}" for failure in same[:2])
        who += f" and {len(same) - 2} more" if len(same) > 2 else ""
        match same[0].kind:
            case "error":
                yield f"{who}: {message}"
            case "lost_peer":  # names both sides itself
                yield message
            case _:
                yield f"{who} {'was' if len(same) == 1 else 'were'} {message}"


def _rank(failure: RankFailure) -> int:
    return failure.rank


def is_secondary_failure(error: BaseException) -> bool:
    """Return whether an error is only the consequence of another rank's failure."""
    return isinstance(error, PeerLost | PeerFailed | PeerProtocolError)


def describe_error(error: BaseException) -> str:
    """Format an error for a user."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ValueError | OSError | CommError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def failure_from_error(error: BaseException, *, rank: int) -> RankFailure:
    """Make the failure of this process's rank from an error."""
    kind: FailureKind = "lost_peer" if is_secondary_failure(error) else "error"
    where = "".join(traceback.format_exception(error))
    return RankFailure(rank, socket.gethostname(), kind, describe_error(error), type(error).__name__, where)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a rank after an error."""
    return EXIT_LOST_PEER if is_secondary_failure(error) else EXIT_ERROR


@contextmanager
def report_errors(environ: Mapping[str, str]) -> Iterator[None]:
    """Wrap a rank's program: on an error, write a report and end the process with its exit code.

    Siafu's launcher prints the report; under another launcher, the rank prints the error itself.
    """
    try:
        yield
    except Exception as error:
        write_report(environ, error)
        if environ.get(LAUNCHER) != str(os.getppid()):
            _print_error(environ, error)
        sys.exit(exit_code(error))


def _print_error(environ: Mapping[str, str], error: Exception) -> None:
    if not isinstance(error, ValueError | OSError | CommError):
        traceback.print_exception(error)
    rank = environ.get("RANK", environ.get("SLURM_PROCID", "?"))
    text = f"error: rank {rank} on {socket.gethostname()}: {describe_error(error)}"
    print(escape_control_chars(text), file=sys.stderr, flush=True)


def write_report(environ: Mapping[str, str], error: BaseException) -> None:
    """Write the error report where torch's agent expects it, in the agent's format, atomically."""
    if not environ.get(_REPORT):
        return
    failure = failure_from_error(error, rank=-1)
    said = {
        "message": failure.message,
        "kind": failure.kind,
        "error": failure.error,
        "extraInfo": {"py_callstack": failure.where, "timestamp": str(int(time.time()))},
    }
    path = Path(environ[_REPORT])
    with suppress(OSError):  # the launcher then reports that there is no report
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, json.dumps({"message": said}).encode())


def failure_from_exit(rank: int, *, code: int, report: Path, host: str) -> RankFailure:
    """Make the failure of a rank from its exit code (negative: ended by a signal) and its report, if there is one."""
    if code < 0:
        name = _signal_name(-code)
        message = f"killed ({name}); find out who sent the signal, then resume the run"
        if -code in _CRASHES:
            message = f"ended by a crash ({name}), a fault of siafu or of a library; its output may say more"
        return RankFailure(rank, host, "killed", message)
    said = _read_report(report)
    if said is None:
        if code == EXIT_LOST_PEER:
            return RankFailure(rank, host, "lost_peer", f"rank {rank} on {host} lost a peer; resume the run")
        message = f"ended with exit code {code} without saying why; its output may say more"
        return RankFailure(rank, host, "error", message)
    where = str(said["extraInfo"]["py_callstack"])
    return RankFailure(rank, host, said["kind"], said["message"], said["error"], where)


_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read_report(path: Path) -> dict[str, Any] | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))["message"]
    except (OSError, ValueError, KeyError):
        return None
    return said if isinstance(said, dict) and {"message", "kind", "error"} <= said.keys() else None
