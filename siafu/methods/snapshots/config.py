"""Settings of training on snapshots."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, Field

from siafu.conditions import Applies, when
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig

# Defaults of other settings under this method.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"kind": "evolvegcn-o", "hidden": 100},
    "train": {"weight_decay": 0.0, "lr": 0.005, "epochs": 100, "patience": 20},
}

_OVER_TIME = when("method", "snapshots", note=", for graphs that change over time")


class SnapshotsConfig(BaseModel):
    """Settings of time steps, samples and memory.

    None means the value of the data set's protocol, see :class:`siafu.dynamic.Protocol`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    step: float | None = Field(None, gt=0)  # length of a step, in the time unit of the events
    edge_life: int | None = Field(None, ge=1)  # number of steps for which an edge exists
    window: int | None = Field(None, ge=0)  # steps before its own that a sample reads; 0: all
    batch: int = Field(1, ge=1)  # samples per optimiser step, with a window; without one, all samples
    blocks: int = Field(0, ge=0)  # checkpoint segments of a pass; 0: as few as fit the memory
    room_mb: int = Field(2048, ge=1)  # memory of a rank: at most half for segments, the rest to cache graphs
    weighted: bool = False  # edges have the weights of their events

    applies: ClassVar[Applies] = {
        "step": (_OVER_TIME,),
        "edge_life": (_OVER_TIME,),
        "window": (_OVER_TIME,),
        "batch": (_OVER_TIME,),
        "blocks": (_OVER_TIME,),
        "room_mb": (_OVER_TIME,),
        "weighted": (_OVER_TIME,),
    }


@dataclass(frozen=True)
class TaskConfig:
    """The settings of a run that define a temporal task.

    Attributes:
        task: link, edge (classes of events) or node (labels of nodes).
        snapshots, link: their settings.
        seed: seed of everything random.
        train: metric, loss and classes.
    """

    task: str
    snapshots: SnapshotsConfig
    link: LinkConfig
    seed: int
    train: TrainConfig = field(default_factory=TrainConfig)


class _Config(Protocol):
    """The parts of a run's config that define a temporal task."""

    @property
    def task(self) -> str:
        """Link, edge or node."""

    @property
    def seed(self) -> int:
        """Seed of everything random."""

    @property
    def train(self) -> TrainConfig:
        """Metric, loss and classes."""

    @property
    def link(self) -> LinkConfig:
        """Link prediction."""

    def of(self, settings: type[SnapshotsConfig]) -> SnapshotsConfig:
        """The settings of this method."""


def task_config_of(config: _Config) -> TaskConfig:
    """The settings of a temporal task, from the config of a run."""
    return TaskConfig(config.task, config.of(SnapshotsConfig), config.link, config.seed, config.train)
