"""The faults of a chaos run: how each strikes, how it is lifted, and how a command that it hit must end."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos_draw import EPOCHS, STAGES, Fault
from chaos_runs import LIMIT_S, Stage

SIGNALS = {
    "kill": signal.SIGKILL,
    "damage": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "pause": signal.SIGSTOP,
    "interrupt": signal.SIGINT,
    "terminate": signal.SIGTERM,
}
EXIT_CODES = {"interrupt": 130, "terminate": 143}
LOSSES = ("kill", "stop", "cut")  # kinds that take a peer away
_TOLD = re.compile(
    r"lost|killed|stopped|gone|starting again|could not|no worker|no more workers|error", re.IGNORECASE
)
_ROOM_BYTES = 64 << 20  # what memory.limit leaves above what the run holds
_LOOK_S = 0.1
_EPOCHS_LATER = 2  # the first may have been almost done
_FLIPS = 3  # bytes of a damaged file
_HOG = """\
import pathlib, sys
group = pathlib.Path(sys.argv[1])
(group / "cgroup.procs").write_text("0")
count = lambda: (group / sys.argv[2]).read_text().split("oom_kill ")[1].split()[0]
before, held = count(), []
while count() == before and len(held) < 1000:
    held.append(b"x" * (4 << 20))
"""


@dataclass
class Strike:
    """A fault that struck.

    Attributes:
        at_s: when, by the monotonic clock.
        pids: the processes it hit.
        pids_before, notes_before, epochs_before, sizes_before: processes, notes, epochs, bytes of messages until then.
    """

    at_s: float
    pids: set[int] = field(default_factory=set)
    pids_before: set[int] = field(default_factory=set)
    notes_before: int = 0
    epochs_before: int = 0
    sizes_before: list[int] = field(default_factory=list)


def wait_for_moment(stage: Stage, fault: Fault, seconds: float, began_s: float) -> bool:
    """Whether the moment of a fault came before the run ended."""
    if fault.moment == "epoch":
        method = stage.setup.method
        wanted = max(1, int(fault.share * EPOCHS[method] * STAGES.get(method, 1)))
        return stage.wait(lambda: stage.epochs() >= wanted, seconds=LIMIT_S)
    until_s = began_s + fault.share * seconds
    return stage.wait(lambda: time.monotonic() >= until_s, seconds=LIMIT_S)


def strike(stage: Stage, fault: Fault) -> Strike | None:
    """Let the fault happen; None where the run ended before."""
    struck = Strike(
        time.monotonic(),
        pids_before=stage.pids(),
        notes_before=stage.notes(),
        epochs_before=stage.epochs(),
        sizes_before=[each.errors.stat().st_size for each in stage.commands],
    )
    match fault.kind:
        case "cut":
            host = stage.hosts[1 if fault.target == "worker" else fault.pick % stage.setup.ranks]
            _link(host.namespace, host.interface, "down")
        case "disk":
            _fill(stage.home / "filler")
        case "memory":
            return struck if _exhaust_memory(stage) else None
        case _:
            return _signal(stage, fault, struck)
    return struck


def _signal(stage: Stage, fault: Fault, struck: Strike) -> Strike | None:
    number = SIGNALS[fault.kind]
    role = fault.target if fault.target in ("rank", "worker") else "command"
    if not stage.wait(lambda: bool(stage.processes(role)), seconds=LIMIT_S):
        return None
    found = stage.processes(role)
    if not found:
        return None
    chosen = found[fault.pick % len(found)]
    struck.at_s, struck.pids = time.monotonic(), {chosen.pid}
    with suppress(psutil.Error, ProcessLookupError):
        if fault.target == "group":
            os.killpg(chosen.pid, number)
        else:
            chosen.send_signal(number)
        if fault.kind == "pause":
            time.sleep(fault.pause_s)
            chosen.resume()
    return struck


def noticed(stage: Stage, fault: Fault, struck: Strike) -> bool:
    """Whether the run knows: a message, an event or a new process; a run that lost a worker may also just go on.

    Of ranks on hosts of their own each must have said so or ended.
    """
    if stage.setup.engine == "torchrun":
        return all(_has_told(stage, struck))
    if stage.notes() > struck.notes_before or any(_has_told(stage, struck)):
        return True
    if fault.target == "worker" and stage.epochs() >= struck.epochs_before + _EPOCHS_LATER:
        return True
    return bool(stage.pids() - struck.pids_before - struck.pids)


def _has_told(stage: Stage, struck: Strike) -> list[bool]:
    """Of each command, whether it told of a loss since the fault, or ended."""
    told = [
        _TOLD.search(each.errors.read_bytes()[size:].decode("utf-8", "replace"))
        for each, size in zip(stage.commands, struck.sizes_before, strict=True)
    ]
    return [
        bool(said) or each.process.poll() is not None for said, each in zip(told, stage.commands, strict=True)
    ]


def wait_until_noticed(stage: Stage, fault: Fault, struck: Strike) -> float:
    """Seconds from the fault until the run knows of it."""
    while not stage.ended and time.monotonic() < struck.at_s + LIMIT_S:
        if noticed(stage, fault, struck):
            break
        time.sleep(_LOOK_S)
    return time.monotonic() - struck.at_s


def lift(stage: Stage, fault: Fault) -> None:
    """Take away what a fault left behind: the link is up, the disk has room, memory is unlimited."""
    if fault.kind == "cut":
        for host in stage.hosts:
            _link(host.namespace, host.interface, "up")
    (stage.home / "filler").unlink(missing_ok=True)
    if stage.group is not None:
        _limit_file(stage.group).write_text(_unlimited(stage.group))


def judge(stage: Stage, fault: Fault, codes: list[int]) -> list[str]:
    """Everything wrong about how commands ended that a fault hit."""
    text, wrong = stage.messages(), []
    if "Traceback (most recent call last)" in text:
        wrong.append("a traceback")
    for code in codes:
        if code not in _allowed(stage, fault):
            wrong.append(
                f"exit code {code}, expected {' or '.join(map(str, sorted(_allowed(stage, fault))))}"
            )
    if fault.kind == "disk" and 1 in codes and "No space left on device" not in text:
        wrong.append("the full disk is not named")
    if fault.kind == "memory" and 1 in codes and "memory" not in text:
        wrong.append("the lack of memory is not named")
    if fault.kind in EXIT_CODES and not stage.finished and (stage.run / "config.toml").is_file():
        wrong += [] if "siafu resume" in text else ["the resume command is not printed"]
    return wrong


def _allowed(stage: Stage, fault: Fault) -> set[int]:
    """The exit codes of a command that a fault hit; 0 where the run could go on."""
    done = {0} if stage.finished else set()
    if fault.kind in ("kill", "damage") and fault.target not in ("rank", "worker"):
        return {-signal.SIGKILL} | done
    if fault.kind in EXIT_CODES:
        begun = (stage.run / "config.toml").is_file()
        by_signal = (
            set() if begun else {-SIGNALS[fault.kind]}
        )  # it may strike before Python runs any of our code
        return {EXIT_CODES[fault.kind]} | by_signal | done
    if fault.kind == "cut":
        return {0, 1} if stage.setup.engine == "torchrun" else {0}
    return {"disk": {1} | done, "memory": {1, -signal.SIGKILL} | done}.get(fault.kind, {0})


# Damage to a file


def damage(stage: Stage, fault: Fault) -> tuple[Path, bytes]:
    """Flip bytes of a file; returns its path and its content before."""
    dice = random.Random(fault.pick)
    path = dice.choice(_candidates(stage, fault.target))
    before = path.read_bytes()
    after = bytearray(before)
    for place in dice.sample(range(len(after)), min(_FLIPS, len(after))):
        after[place] ^= 1 << dice.randrange(8)
    path.write_bytes(after)
    return path, before


def _candidates(stage: Stage, target: str) -> list[Path]:
    """The files that a target means; the settings where it has none yet."""
    roots = {
        "parts": [stage.run / "parts", stage.folder / "store" / "parts"],
        "store": [stage.folder / "store"],
    }
    roots |= {"checkpoint": [stage.run / "checkpoint"]}
    found = [path for root in roots.get(target, []) for path in sorted(root.rglob("*")) if path.is_file()]
    if target == "store":
        found = [path for path in found if "parts" not in path.parts]
    found = found or [stage.run / target]
    found = [path for path in found if path.is_file() and path.stat().st_size]
    return found or [stage.run / "config.toml"]


# The disk, the link, memory


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * (1 << 16))


def _link(namespace: str, interface: str, state: str) -> None:
    subprocess.run(["ip", "-n", namespace, "link", "set", "dev", interface, state], check=True)


def _exhaust_memory(stage: Stage) -> bool:
    """Let a neighbour in the control group take memory until the kernel kills a process of the run.

    False where the run has ended, so that the kernel killed the neighbour.
    """
    group = stage.group
    assert group is not None
    counter = "memory.oom_control" if _is_v1(group) else "memory.events"
    _limit_file(group).write_text(str(_held_bytes(group) + _ROOM_BYTES))
    hog = subprocess.run([sys.executable, "-c", _HOG, str(group), counter], check=False, timeout=LIMIT_S)
    _limit_file(group).write_text(_unlimited(group))
    if hog.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"no memory could be taken in {group}: exit code {hog.returncode}")
    return hog.returncode == 0


def _held_bytes(group: Path) -> int:
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(fields["rss" if _is_v1(group) else "anon"])


def _is_v1(group: Path) -> bool:
    return (group / "memory.limit_in_bytes").exists()


def _unlimited(group: Path) -> str:
    return "-1" if _is_v1(group) else "max"


def _limit_file(group: Path) -> Path:
    return group / ("memory.limit_in_bytes" if _is_v1(group) else "memory.max")


@contextmanager
def control_group() -> Iterator[Path]:
    """A group below our own, whose memory can be limited."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    v1 = [path for _, controllers, path in own if "memory" in controllers.split(",")]
    v2 = [path for number, _, path in own if number == "0"]
    parent = Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup") / (v1 or v2)[0].strip("/")
    group = parent / f"siafu-chaos-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a control group as soon as its last process is gone."""
    for _ in range(200):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)
    raise RuntimeError(f"{group}: still in use by {(group / 'cgroup.procs').read_text().split()}")
