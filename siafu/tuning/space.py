"""The search space: which settings a search varies, and between which values, by kind of model and method.

``ENTRIES`` is the default space, ``RECIPES`` are settings that are known to be good; the first trials try those.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from siafu.applying import conditions_of
from siafu.config import Config
from siafu.data.config import DataConfig
from siafu.nn.config import STACKS

Value = bool | int | float | str
Settings = dict[str, Any]  # by keys such as model.hidden

_TABLE_MODELS = ("appnp", "sgc", "gcn2")


@dataclass(frozen=True)
class Choices:
    """One of some values; numbers in ascending order are near each other, other values are not."""

    values: tuple[Value, ...]

    def __contains__(self, value: object) -> bool:
        return any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.values
        )

    def to_plain(self) -> list[Value]:
        """Return the values as TOML and JSON have them."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """A number from ``low`` to ``high``, both included; ``log``: sampled by its logarithm; ``step``: low + n steps."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def is_int(self) -> bool:
        """Whether the numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and self._on_step(value)

    def _on_step(self, value: float) -> bool:
        if self.step is None:
            return not self.is_int or isinstance(value, int)
        steps = (value - self.low) / self.step
        return abs(steps - round(steps)) < 1e-9

    def to_plain(self) -> dict[str, Any]:
        """Return the range as TOML and JSON have it."""
        step = {} if self.step is None else {"step": self.step}
        return {"low": self.low, "high": self.high, "log": self.log, **step}


Domain = Choices | Range


@dataclass(frozen=True)
class Entry:
    """A setting, its values, and the kinds of models it holds for; an empty ``kinds`` stands for every kind."""

    key: str
    domain: Domain
    kinds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the parameter in the search; a key may have other values for one kind than for the others."""
        return f"{self.key} of {self.kinds[0]}" if len(self.kinds) == 1 else self.key

    def holds_for(self, kind: str) -> bool:
        """Return whether a model of this kind has the setting, with these values."""
        if self.kinds:
            return kind in self.kinds
        return all(
            each.holds((kind,)) for each in conditions_of(Config, self.key) if each.key == "model.kind"
        )


Space = tuple[Entry, ...]

_RATES = Choices((0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8))

ENTRIES: Space = (
    Entry("model.kind", Choices(("gcn", "sage", "gat", "gcn2", "appnp"))),
    Entry("model.hidden", Choices((64, 128, 256, 512)), (*STACKS, "appnp", "gcn2")),
    Entry("model.layers", Choices((1, 2, 3, 4, 5, 6, 9)), STACKS),
    Entry("model.layers", Choices((1, 2, 3)), ("appnp",)),
    Entry("model.layers", Choices((1, 2, 3, 4)), ("sgc",)),
    Entry("model.layers", Choices((2, 4, 8, 16)), ("gcn2",)),
    Entry("model.hops", Choices((2, 5, 10, 20))),
    Entry("model.teleport", Choices((0.05, 0.1, 0.2, 0.5))),
    Entry("model.identity", Choices((0.5, 1.0, 1.5))),
    Entry("model.heads", Choices((1, 4, 8))),
    Entry("model.dropout", _RATES),
    Entry("model.input_dropout", _RATES),
    Entry("model.norm", Choices(("none", "layer", "batch"))),
    Entry("model.residual", Choices((False, True))),
    Entry("model.jump", Choices(("none", "cat", "max"))),
    Entry("train.lr", Range(0.0005, 0.05, log=True)),
    Entry("train.weight_decay", Choices((0.0, 1e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2))),
    Entry(
        "train.epochs", Choices((500,))
    ),  # low learning rates need them; train.patience ends the others early
    Entry("data.normalize", Choices(get_args(DataConfig.model_fields["normalize"].annotation))),
)

# Of method snapshots, whose models have no dropout and read features as they are.
TEMPORAL_ENTRIES: Space = (
    Entry("model.kind", Choices(("gcn-gru", "cd-gcn", "tm-gcn", "evolvegcn-o"))),
    Entry("model.hidden", Choices((16, 32, 64, 128))),
    Entry("train.lr", Range(0.0005, 0.05, log=True)),
    Entry("train.weight_decay", Choices((0.0, 1e-5, 1e-4, 5e-4, 1e-3))),
)

# Settings that are known to be good, with the defaults for all others. Those for few labels are of Luo et al. 2024
# (arXiv 2406.08993) for Cora and Citeseer, the deep one follows theirs for heterophilous graphs.
_WIDE: Settings = {
    "model.kind": "gcn",
    "model.hidden": 256,
    "model.dropout": 0.3,
    "model.input_dropout": 0.3,
    "train.weight_decay": 0.0,
    "data.normalize": "none",
}
_NORMED: Settings = {
    "model.kind": "gcn",
    "model.hidden": 256,
    "model.layers": 3,
    "model.dropout": 0.5,
    "model.input_dropout": 0.2,
    "model.norm": "layer",
    "model.residual": True,
    "train.lr": 0.005,
    "train.weight_decay": 0.0,
    "train.epochs": 500,
    "data.normalize": "none",
}
_FEW: Settings = {
    "model.kind": "gcn",
    "model.hidden": 512,
    "train.lr": 0.001,
    "train.epochs": 500,
}
RECIPES_FEW_LABELS: Mapping[str, Settings] = {
    "defaults": {},
    "few labels, 3 layers": {**_FEW, "model.layers": 3, "model.dropout": 0.7, "train.weight_decay": 5e-4},
    "few labels, 2 layers": {
        **_FEW,
        "model.layers": 2,
        "model.dropout": 0.5,
        "model.input_dropout": 0.0,
        "train.weight_decay": 1e-2,
        "data.normalize": "none",
    },
    "wide, no weight decay": _WIDE,
    "layer norm and residual": _NORMED,
}
RECIPES: Mapping[str, Settings] = {
    "defaults": {},
    "wide, no weight decay": _WIDE,
    "layer norm and residual": _NORMED,
    "deep, batch norm and residual": {
        **_NORMED,
        "model.layers": 9,
        "model.norm": "batch",
        "model.input_dropout": 0.0,
    },
    "GraphSAGE, layer norm and residual": {**_NORMED, "model.kind": "sage"},
}


@dataclass(frozen=True)
class Limits:
    """The properties of a graph and a machine by which values are left out of the default space.

    Attributes:
        method: the method of the runs.
        num_nodes: the nodes of the graph.
        normalize: the values of ``data.normalize`` that suit the features; empty for a graph without.
        memory_bytes: the memory of the machine.
    """

    method: str
    num_nodes: int
    normalize: tuple[str, ...]
    memory_bytes: int


_LARGE_FROM = 10_000  # nodes; from here on deeper stacks are searched, and not more epochs than by default
_HUGE_FROM = 100_000  # nodes; from here on the deepest stacks cost too much
_COPIES = 24  # arrays of one hidden width that training a deep model on the whole graph holds
_WHOLE_GRAPH = ("full", "pipeline", "lazy")


def default_space(limits: Limits) -> Space:
    """Return the default space of a method, without values that do not suit the graph."""
    if limits.method == "snapshots":
        return TEMPORAL_ENTRIES
    left_out = {
        "model.input_dropout": not limits.normalize,
        "data.normalize": not limits.normalize,
        "model.jump": limits.method == "lazy",
        "train.epochs": limits.method == "lazy" or limits.num_nodes >= _LARGE_FROM,
    }
    return tuple(_within(entry, limits) for entry in ENTRIES if not left_out.get(entry.key))


def _within(entry: Entry, limits: Limits) -> Entry:
    """Leave values out that the method refuses, or that would be too large for the graph."""
    domain = entry.domain
    if entry.key == "model.hidden" and isinstance(domain, Choices) and limits.method in _WHOLE_GRAPH:
        widest = limits.memory_bytes / 2 / (4 * _COPIES * limits.num_nodes)
        domain = Choices(tuple(v for v in domain.values if int(v) <= widest) or domain.values[:1])
    if entry.key == "model.layers" and entry.kinds == STACKS and isinstance(domain, Choices):
        most = 4 if limits.num_nodes < _LARGE_FROM else 6 if limits.num_nodes >= _HUGE_FROM else 9
        domain = Choices(tuple(value for value in domain.values if int(value) <= most))
    if entry.key == "data.normalize":
        domain = Choices(limits.normalize)
    refused = {
        ("model.norm", "pipeline"): ("batch",),
        ("model.norm", "lazy"): ("batch",),
        ("model.kind", "lazy"): _TABLE_MODELS,
    }.get((entry.key, limits.method), ())
    if refused and isinstance(domain, Choices):
        domain = Choices(tuple(value for value in domain.values if value not in refused))
    return Entry(entry.key, domain, entry.kinds)


def without_fixed(space: Space, fixed: Iterable[str], *, kind: str) -> Space:
    """Leave out settings that the user fixed, and those that no kind of model in the space has.

    ``kind`` is the kind of model where the space does not vary it.
    """
    fixed = set(fixed)
    free = tuple(entry for entry in space if entry.key not in fixed)
    kinds = kinds_of(free, kind)
    return tuple(entry for entry in free if any(entry.holds_for(each) for each in kinds))


def kinds_of(space: Space, kind: str) -> tuple[str, ...]:
    """Return the kinds of models that a space searches; ``kind`` if it does not vary them."""
    for entry in space:
        if entry.key == "model.kind" and isinstance(entry.domain, Choices):
            return tuple(str(value) for value in entry.domain.values)
    return (kind,)


def active(space: Space, kind: str) -> Space:
    """Return the entries that a model of this kind has."""
    return tuple(entry for entry in space if entry.holds_for(kind))


def kind_within(settings: Mapping[str, Any], space: Space, kind: str) -> str:
    """Return the kind of model that the settings name, if the space searches it; else ``kind``."""
    wanted = settings.get("model.kind")
    searched = any(entry.key == "model.kind" and wanted in entry.domain for entry in space)
    return str(wanted) if searched else kind


def restrict(settings: Mapping[str, Any], space: Space, *, kind: str) -> Settings:
    """Return those settings that lie within the space; ``kind`` is the kind of model where they name none."""
    return {
        entry.key: settings[entry.key]
        for entry in active(space, kind_within(settings, space, kind))
        if entry.key in settings and settings[entry.key] in entry.domain
    }
