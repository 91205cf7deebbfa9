"""Runs for a chaos trial: real commands with a /tmp and a /dev/shm of their own, all below one folder. Needs root.

Everything that a run starts carries a mark in its environment, so that orphans are found; everything that it writes
lies below the trial's folder, so that leftovers are found by comparison with an undisturbed run.
"""

import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos_draw import EPOCHS, Setup
from emulators import emulators, listening
from namespaces import Host, hosts_on_a_switch

SIAFU = (sys.executable, "-m", "siafu")
MARK = "SIAFU_CHAOS"
DEADLINE_S = 5.0
LIMIT_S = 120.0  # of each command; one that takes longer hangs
ORPHAN_S = 3.0  # after which whatever still runs is an orphan
DISK_MB = 48
_LOOK_S = 0.01
_UNSET = (
    "TMPDIR",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
)  # without compiled modules each start takes seconds longer
_PORT = 29500
_REPOSITORY = Path(__file__).resolve().parents[1]
_DATA = "community:nodes=600,degree=8,classes=4,features=16"
_CHANGING = "transactions:nodes=60,steps=12,events=1500,seed=0"
_RUN_FILES = ("config.toml", "events.jsonl", "metrics.json", "model.safetensors", "trace.json", "checkpoint")
_RUN_FILES += ("parts", "graph", ".lock")
_PRIVATE = """\
set -e
mount --bind "$CHAOS_FOLDER/tmp" /tmp
mount --bind "$CHAOS_FOLDER/shm" /dev/shm
if [ -n "$CHAOS_GROUP" ]; then
    echo $$ > "$CHAOS_GROUP/cgroup.procs"
    echo 1000 > /proc/self/oom_score_adj  # the kernel kills these first
fi
exec "$@"
"""


@dataclass
class Started:
    """A process that the trial started itself; ``errors`` collects its standard error."""

    process: "subprocess.Popen[bytes]"
    errors: Path

    @property
    def text(self) -> str:
        """The messages so far."""
        return self.errors.read_text("utf-8", "replace")


@dataclass
class Stage:
    """The place of one run and the processes in it.

    Attributes:
        setup: the run.
        folder: everything of the trial.
        group: a control group for the commands, or None.
        hosts: network namespaces, empty where the run has none.
        helpers: processes that the harness starts beside the run: workers by hand, functions.
        commands: ``siafu train`` or ``resume``; with engine torchrun one a rank.
    """

    setup: Setup
    folder: Path
    group: Path | None = None
    hosts: tuple[Host, ...] = ()
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    helpers: list[Started] = field(default_factory=list)
    commands: list[Started] = field(default_factory=list)
    emulator_pids: list[int] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    port: int = 0
    hung: bool = False
    _number: int = 0

    @property
    def home(self) -> Path:
        """The folder that holds the run's folder."""
        return self.folder / "home"

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.home / "run"

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.run / "metrics.json").is_file() and (self.run / "model.safetensors").is_file()

    # Starting

    def start(self) -> None:
        """Start the run, or go on with it where its settings are written."""
        self.serve_function()
        begun = (self.run / "config.toml").is_file()
        count = self.setup.ranks if self.setup.engine == "torchrun" else 1
        arguments = ["resume", str(self.run), "--json"] if begun and count == 1 else self._train()
        self.commands = [self._spawn([*SIAFU, *arguments], host=place, rank=place) for place in range(count)]

    def _train(self) -> list[str]:
        setup = self.setup
        source = str(self.folder / "store") if setup.source == "store" else data_of(setup)
        command = ["train", source, "--method", setup.method, "--engine", setup.engine, "--json"]
        command += ["--epochs", str(EPOCHS[setup.method]), "--hidden", "8", "--out", str(self.run)]
        command += [] if setup.engine == "torchrun" else ["--ranks", str(setup.ranks)]
        return [
            *command,
            *(word for pair in self.settings.items() for word in ("--set", f"{pair[0]}={pair[1]}")),
        ]

    def serve_function(self) -> None:
        """Have a function that is called by HTTP where the run wants one."""
        if self.setup.workers != "http" or any(each.process.poll() is None for each in self.helpers):
            return
        server = [sys.executable, str(Path(__file__).with_name("function_server.py")), str(self.port)]
        self.helpers.append(self._spawn(server))
        self.wait(lambda: _listens(self.port), seconds=LIMIT_S)

    def start_worker(self) -> None:
        """Start a worker by hand, with the lease that the run wrote."""
        self.helpers.append(self._spawn([*SIAFU, "worker", str(self.run / "lease-0.json")], host=1))

    def _spawn(self, command: list[str], *, host: int = 0, rank: int | None = None) -> Started:
        """Start a process in the trial's folder, on one of the hosts if there are any."""
        self._number += 1
        errors = self.folder.parent / f"{self.folder.name}-{self._number}.log"
        at = ["ip", "netns", "exec", self.hosts[host].namespace] if self.hosts else []
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PRIVATE, "sh"]
        with errors.open("wb") as file:
            process = subprocess.Popen(
                [*at, *private, *command],
                **{"cwd": self.folder / "cwd", "env": self._environ(rank), "start_new_session": True},
                **{"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": file},
            )
        return Started(process, errors)

    def _environ(self, rank: int | None) -> dict[str, str]:
        environ = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environ |= {MARK: self.mark, "CHAOS_FOLDER": str(self.folder), "OMP_NUM_THREADS": "1"}
        environ |= {"CHAOS_GROUP": str(self.group) if self.group and rank is not None else ""}
        environ |= {
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        if rank is not None and self.setup.engine == "torchrun":
            place = {"RANK": rank, "WORLD_SIZE": self.setup.ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
            environ |= {name: str(value) for name, value in place.items()}
            environ |= {"MASTER_ADDR": self.hosts[0].address, "MASTER_PORT": str(_PORT)}
            environ |= {"SIAFU_SECRET": self.mark * 2}
        return environ

    # Watching

    def wait(self, until: Callable[[], bool], *, seconds: float) -> bool:
        """Whether something came true in time, and before the commands ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if until():
                return True
            if self.commands and self.ended:
                return False
            time.sleep(_LOOK_S)
        return False

    @property
    def ended(self) -> bool:
        """Whether all commands have ended."""
        return all(each.process.poll() is not None for each in self.commands)

    def wait_for_end(self) -> list[int]:
        """The exit codes of the commands; one that takes too long is ended, and the run counts as hung."""
        end = time.monotonic() + LIMIT_S
        while not self.ended and time.monotonic() < end:
            time.sleep(_LOOK_S)
        if not self.ended:
            self.hung = True
            self.kill_all()
        return [each.process.wait() for each in self.commands]

    def epochs(self) -> int:
        """Epochs that were written, those done twice included."""
        return _count(self.run / "events.jsonl", b'"phase":"epoch"')

    def notes(self) -> int:
        """Events that tell of a fault."""
        events = self.run / "events.jsonl"
        return _count(events, b'"phase":"note"') + _count(events, b'"phase":"resume"')

    def messages(self) -> str:
        """Whatever the commands of the moment said."""
        return "\n".join(each.text for each in self.commands)

    def processes(self, role: str) -> list[psutil.Process]:
        """The processes of a role that run now, in the order of their start."""
        if role == "command":
            return [psutil.Process(each.process.pid) for each in self.commands if each.process.poll() is None]
        if role == "worker" and self.setup.workers in ("http", "hand"):
            return [psutil.Process(each.process.pid) for each in self.helpers if each.process.poll() is None]
        roots = (
            self.emulator_pids
            if role == "worker" and self.setup.workers == "lambda"
            else self._command_pids()
        )
        word = {"rank": "siafu.rank", "worker": "worker"}[role]
        found = [
            each
            for root in roots
            for each in _children(root)
            if _named(each, word) or root in self.emulator_pids
        ]
        return sorted(found, key=lambda each: each.pid)

    def _command_pids(self) -> list[int]:
        return [each.process.pid for each in self.commands if each.process.poll() is None]

    def pids(self) -> set[int]:
        """All processes below the commands."""
        return {child.pid for root in self._command_pids() for child in _children(root)}

    # The end

    def orphans(self) -> list[str]:
        """The commands of processes that outlive the run by more than a moment; they are ended here."""
        own = {each.process.pid for each in self.helpers}
        end = time.monotonic() + ORPHAN_S
        while (left := [each for each in self._marked() if each.pid not in own]) and time.monotonic() < end:
            time.sleep(0.05)
        found = [_command_line(each) for each in left]
        for each in left:
            with suppress(psutil.Error):
                each.kill()
        return found

    def kill_all(self) -> None:
        """End every process of this trial."""
        for each in self._marked():
            with suppress(psutil.Error):
                each.kill()
        for started in (*self.commands, *self.helpers):
            started.process.wait()

    def _marked(self) -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if _mark_of(each) == self.mark]

    def leftovers(self) -> list[str]:
        """Files of the trial that no run should leave, relative to its folder."""
        files = [path.relative_to(self.folder) for path in self.folder.rglob("*") if not path.is_dir()]
        return sorted(str(path) for path in files if _is_leftover(path))

    def digest(self) -> str:
        """The checksum of the trained weights, empty where there are none."""
        path = self.run / "model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def data_of(setup: Setup) -> str:
    """The generated graph that a setup trains on."""
    return _CHANGING if setup.method == "snapshots" else _DATA


@contextmanager
def stage_for(setup: Setup, folder: Path, *, stores: Path, disk: bool = False) -> Iterator[Stage]:
    """Prepare everything that a run needs, and remove it afterwards."""
    with ExitStack() as stack:
        for name in ("home", "tmp", "shm", "cwd"):
            (folder / name).mkdir(parents=True)
        stack.callback(shutil.rmtree, folder)
        if setup.source == "store":
            shutil.copytree(
                stores / ("changing" if setup.method == "snapshots" else "static"), folder / "store"
            )
        if disk:
            stack.enter_context(_mounted(folder / "home"))
        stage = Stage(setup, folder)
        if setup.hosts:
            stage.hosts = stack.enter_context(
                hosts_on_a_switch(max(2, setup.ranks), rate="1gbit", whole_packets=False)
            )
        stack.callback(stage.kill_all)
        stage.settings = _settings(stage, stack)
        yield stage


def _settings(stage: Stage, stack: ExitStack) -> dict[str, object]:
    setup = stage.setup
    settings: dict[str, object] = {"threads": 1, "comm.deadline": DEADLINE_S, "train.patience": 0}
    settings |= {"train.checkpoint_seconds": 0.1}
    if setup.method == "sampled":
        settings |= {"sampled.batch_size": 64}
    if setup.method == "snapshots":
        settings |= {"link.evaluation": 10, "snapshots.window": 0}
    if setup.method != "pipeline":
        return settings
    settings |= {
        "pipeline.intervals": 4,
        "pipeline.staleness": setup.staleness,
        "pipeline.num_workers": setup.ranks,
    }
    settings |= {"pipeline.workers": "processes" if setup.workers == "hand" else setup.workers}
    if setup.workers == "hand" and setup.hosts:
        settings |= {"pipeline.host": stage.hosts[0].address}
    if setup.workers == "http":
        stage.port = _free_port()
        settings |= {"pipeline.function": f"http://127.0.0.1:{stage.port}/"}
    if setup.workers == "lambda":
        handler = "siafu.workers.handler.handler"
        places = stack.enter_context(emulators(setup.ranks, _REPOSITORY, handler=handler))
        stage.emulator_pids = [pid for _, pid in places]
        settings |= {"pipeline.function": "function", "pipeline.endpoint": ",".join(listening(places))}
    return settings


@contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    """A disk of its own, in memory, as a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _is_leftover(path: Path) -> bool:
    """Whether a file is none of the run's own, nor of its store."""
    temporary = path.name.endswith(".tmp") or any(part.startswith(".") for part in path.parts)
    if path.parts[:2] == ("home", "run"):
        return path.parts[2] not in _RUN_FILES or (temporary and path.name != ".lock")
    return path.parts[0] != "store" or temporary


def _count(path: Path, text: bytes) -> int:
    try:
        return path.read_bytes().count(text)
    except OSError:
        return 0


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _named(process: psutil.Process, word: str) -> bool:
    try:
        return any(word in argument for argument in process.cmdline())
    except psutil.Error:
        return False


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK) if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return str(process.pid)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
