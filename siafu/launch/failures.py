"""What went wrong on which rank: the failure, the report that a rank leaves of it, and the error that a user reads."""

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

from siafu.comm import CommError, FrameError, PeerFailed, PeerLost
from siafu.files import write_atomically
from siafu.terminal import escape_control_chars

Kind = Literal["error", "lost_peer", "killed", "memory"]

EXIT_ERROR = 1
EXIT_LOST_PEER = 75  # EX_TEMPFAIL: nothing is wrong with this rank; start the group again

# Of several failures the first of these kinds is told: the others follow from it.
_TELLING: tuple[Kind, ...] = ("memory", "error", "killed", "lost_peer")
_REPORT = "TORCHELASTIC_ERROR_FILE"  # where torch's agent looks for it, ours or the one of torchrun
LAUNCHER = "SIAFU_LAUNCHER"


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How one rank failed.

    Attributes:
        rank: the rank.
        host: the host that it ran on.
        kind: ``error`` (it raised something of its own), ``lost_peer`` (it ended since a peer was lost), ``killed``
            (ended by a signal) or ``memory`` (killed by the kernel for lack of memory).
        message: what happened, for a user to read.
        error: the name of the exception's type, empty where there was none.
        where: the rank's traceback, empty where there was none.
    """

    rank: int
    host: str
    kind: Kind
    message: str
    error: str = ""
    where: str = ""


class RanksFailed(RuntimeError):
    """A group of ranks failed.

    Attributes:
        failures: those that failed, in the order in which they ended.
        told: those of them that the message tells, the others being what follows.
        brief: what happened, in a clause.
    """

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        self.failures = tuple(failures)
        kind = min((failure.kind for failure in failures), key=_TELLING.index)
        self.told = tuple(failure for failure in failures if failure.kind == kind)
        sentences = list(_tell(self.told))
        self.brief = sentences[0].partition("; ")[0]
        super().__init__("\n".join(sentences))
        for where in dict.fromkeys(failure.where for failure in self.told if failure.where):
            self.add_note(where)


def _tell(failures: Sequence[RankFailure]) -> Iterator[str]:
    """A sentence for each message; ranks that failed alike are named together."""
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


def is_echo(error: BaseException) -> bool:
    """Whether an error says no more than that another rank failed."""
    return isinstance(error, PeerLost | PeerFailed | FrameError)


def explain(error: BaseException) -> str:
    """What a user should read of an error."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ValueError | OSError | CommError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def failure_from(error: BaseException, *, rank: int) -> RankFailure:
    """What an error means for the rank of this process."""
    kind: Kind = "lost_peer" if is_echo(error) else "error"
    where = "".join(traceback.format_exception(error))
    return RankFailure(rank, socket.gethostname(), kind, explain(error), type(error).__name__, where)


def exit_code(error: BaseException) -> int:
    """With which code a rank ends after an error."""
    return EXIT_LOST_PEER if is_echo(error) else EXIT_ERROR


@contextmanager
def report_errors(environ: Mapping[str, str]) -> Iterator[None]:
    """The whole of a rank's program: an error leaves a report and ends the process with its exit code.

    The launcher tells what the report says; where the rank has another launcher than ours, it tells itself.
    """
    try:
        yield
    except Exception as error:
        write_report(environ, error)
        if environ.get(LAUNCHER) != str(os.getppid()):
            _tell_here(environ, error)
        sys.exit(exit_code(error))


def _tell_here(environ: Mapping[str, str], error: Exception) -> None:
    if not isinstance(error, ValueError | OSError | CommError):
        traceback.print_exception(error)
    rank = environ.get("RANK", environ.get("SLURM_PROCID", "?"))
    text = f"error: rank {rank} on {socket.gethostname()}: {explain(error)}"
    print(escape_control_chars(text), file=sys.stderr, flush=True)


def write_report(environ: Mapping[str, str], error: BaseException) -> None:
    """Leave what went wrong where the agent above looks for it, in the form that it knows; whole or not at all."""
    if not environ.get(_REPORT):
        return
    failure = failure_from(error, rank=-1)
    said = {
        "message": failure.message,
        "kind": failure.kind,
        "error": failure.error,
        "extraInfo": {"py_callstack": failure.where, "timestamp": str(int(time.time()))},
    }
    path = Path(environ[_REPORT])
    with suppress(OSError):  # the launcher says then that nothing was said
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, json.dumps({"message": said}).encode())


def failure_of(rank: int, *, code: int, report: Path, host: str) -> RankFailure:
    """How a rank failed that ended with an exit code (negative: by a signal) and perhaps left a report."""
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
