"""The trials of a chaos run. Trial ``n`` of seed ``s`` is a function of (s, n) alone, whatever machine draws it."""

import random
from dataclasses import asdict, dataclass

METHODS = ("full", "sampled", "pipeline", "lazy", "snapshots")
WORKERS = ("inline", "threads", "processes", "http", "hand", "lambda")
FAULTS = ("kill", "stop", "pause", "cut", "disk", "damage", "memory", "interrupt", "terminate")
EPOCHS = {"full": 200, "sampled": 40, "pipeline": 60, "lazy": 40, "snapshots": 24}
STAGES = {"lazy": 2}  # each of them trains for so many epochs
_STALE_SHARE = 0.15  # of pipeline trials train asynchronously, and are not held to bit identity
_LONGEST_PAUSE_S = 3.0


@dataclass(frozen=True)
class Setup:
    """A run to disturb.

    Attributes:
        method: the training procedure.
        ranks: how many.
        engine: local, processes, or torchrun (a rank a network namespace).
        source: ``generated`` (the data are a name) or ``store`` (a folder).
        workers: the kind of worker of a pipeline; ``hand``: one more worker, which a person starts with a lease.
        staleness: of a pipeline; above 0 the result depends on timing.
        hosts: whether ranks, or the worker by hand, have network namespaces of their own.
    """

    method: str
    ranks: int
    engine: str
    source: str = "generated"
    workers: str = ""
    staleness: int = 0
    hosts: bool = False

    @property
    def key(self) -> str:
        """A name of the run."""
        parts = [self.method, f"{self.ranks}-{self.engine}", self.source]
        parts += [self.workers] if self.workers else []
        parts += [f"stale{self.staleness}"] if self.staleness else []
        return "-".join([*parts, *(["hosts"] if self.hosts else [])])

    @property
    def reference(self) -> "Setup":
        """The run that gives the same weights with the fewest processes.

        Engines, sources and kinds of worker agree bit for bit, but for workers that compute with NumPy.
        """
        numpy = self.workers in ("http", "lambda")
        workers = ("http" if numpy else "inline") if self.workers else ""
        return Setup(self.method, self.ranks, "local", workers=workers)

    @property
    def exact(self) -> bool:
        """Whether the run is bit-identical to its repetition."""
        return self.staleness == 0

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the run consists of; ``parts`` and ``store`` are folders of arrays."""
        parts = ("parts",) if self.engine == "processes" and self.method != "snapshots" else ()
        store = ("store",) if self.source == "store" else ()
        return ("config.toml", "events.jsonl", "checkpoint", "model.safetensors", *parts, *store)

    @property
    def roles(self) -> tuple[str, ...]:
        """The kinds of process that the run consists of."""
        ranks = ("rank",) if self.engine == "processes" else ()
        return (
            "command",
            *ranks,
            *(("worker",) if self.workers in ("processes", "http", "hand", "lambda") else ()),
        )


@dataclass(frozen=True)
class Fault:
    """A fault and its moment.

    Attributes:
        kind: one of ``FAULTS``.
        target: the role of the process it hits (``group``: the process group of a terminal), or a file to damage.
        moment: ``time`` (a share of the undisturbed duration) or ``epoch`` (a share of the epochs).
        share: of the duration or of the epochs, 0 to 1.
        pick: a large number that selects one of several processes, hosts or bytes.
        pause_s: how long a paused process stands still.
    """

    kind: str
    target: str
    moment: str
    share: float
    pick: int
    pause_s: float = 0.0


@dataclass(frozen=True)
class Trial:
    """A run and the fault that hits it."""

    seed: int
    number: int
    setup: Setup
    fault: Fault

    def __str__(self) -> str:
        fault = self.fault
        return f"{self.number:4} {self.setup.key:32} {fault.kind:9} {fault.target:12} {fault.moment} {fault.share:.2f}"

    def record(self) -> dict[str, object]:
        """The drawn values, as plain JSON."""
        return {
            "seed": self.seed,
            "trial": self.number,
            "setup": asdict(self.setup),
            "fault": asdict(self.fault),
        }


def draw(seed: int, number: int) -> Trial:
    """Draw a trial."""
    dice = random.Random(f"siafu chaos {seed} {number}")
    kind = dice.choice(FAULTS)
    setup = _cut_setup(dice) if kind == "cut" else _setup(dice, alone_allowed=kind != "stop")
    target = _target(dice, kind, setup)
    moment = "epoch" if kind == "cut" else dice.choice(("time", "epoch"))
    share, pick = round(dice.uniform(0.03, 1.0), 4), dice.randrange(1 << 30)
    pause_s = round(dice.uniform(0.2, _LONGEST_PAUSE_S), 3) if kind == "pause" else 0.0
    return Trial(seed, number, setup, Fault(kind, target, moment, share, pick, pause_s))


def _setup(dice: random.Random, *, alone_allowed: bool) -> Setup:
    method, ranks = dice.choice(METHODS), dice.choice((1, 1, 2, 2, 3))
    engine, source = dice.choice(("local", "processes")), dice.choice(("generated", "store"))
    workers = dice.choice(WORKERS) if method == "pipeline" else ""
    stale = int(method == "pipeline" and dice.random() < _STALE_SHARE)
    setup = Setup(method, ranks, engine, source, workers, stale)
    if not alone_allowed and setup.roles == ("command",):
        return Setup(method, ranks, "processes", source, workers, stale)
    return setup


def _cut_setup(dice: random.Random) -> Setup:
    """Ranks on hosts of their own, or a pipeline whose worker by hand has one."""
    if dice.random() < 0.25:
        return Setup("pipeline", dice.randint(1, 2), "local", "generated", "hand", hosts=True)
    method = dice.choice(METHODS)
    workers = dice.choice(("inline", "threads", "processes")) if method == "pipeline" else ""
    return Setup(method, dice.randint(2, 3), "torchrun", "store", workers, hosts=True)


def _target(dice: random.Random, kind: str, setup: Setup) -> str:
    if kind == "stop":
        return dice.choice(setup.roles[1:])  # nobody but its user can end a command that stands still
    if kind in ("kill", "pause"):
        return dice.choice(setup.roles)
    if kind in ("interrupt", "terminate"):
        return dice.choice(("command", "group"))
    if kind == "cut":
        return "worker" if setup.engine == "local" else "rank"
    if kind == "damage":
        return dice.choice(setup.files)
    return "run"
