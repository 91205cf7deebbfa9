"""How graphs that change over time are trained on."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from siafu.training.config import Metric, TrainConfig
from siafu.training.link.config import LinkConfig

# What other settings are where nobody gave them.
DEFAULTS: dict[str, dict[str, Any]] = {
    "model": {"kind": "evolvegcn-o", "hidden": 100},
    "train": {"weight_decay": 0.0, "lr": 0.005, "epochs": 100, "patience": 20},
}


class SnapshotsConfig(BaseModel):
    """How time is cut into steps, what a sample sees of it, and what is kept for gradients.

    What is None is as the data set's protocol says, and else as :class:`siafu.dynamic.Protocol` does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    step: float | None = Field(None, gt=0)  # length of a step, in the unit of the events' times
    edge_life: int | None = Field(None, ge=1)  # steps for which an edge lives
    window: int | None = Field(None, ge=0)  # steps before its own that a sample sees; 0: all there are
    batch: int = Field(1, ge=1)  # samples a step of the optimiser, where they see a window; else all samples
    blocks: int = Field(0, ge=0)  # of time, between which the state is kept for gradients; 0: by the budget
    room_mb: int = Field(2048, ge=1)  # memory of a rank: half at most for blocks, the rest to keep graphs
    weighted: bool = False  # edges weigh what their events do


@dataclass(frozen=True)
class Wanted:
    """What is to be learned, as a run's settings say it.

    Attributes:
        task: links, classes of events, or labels of nodes.
        snapshots, link: their settings.
        seed: of everything random.
        metric: the score that selects the best weights.
        class_weights: whether rare classes weigh more in the loss.
    """

    task: str
    snapshots: SnapshotsConfig
    link: LinkConfig
    seed: int
    metric: Metric = "auto"
    class_weights: Literal["none", "balanced"] = "none"


class _Config(Protocol):
    """The parts of a run's config that say what is learned over time."""

    @property
    def task(self) -> str:
        """Links, classes of events, or labels of nodes."""

    @property
    def seed(self) -> int:
        """Seed of everything random."""

    @property
    def train(self) -> TrainConfig:
        """Metric and class weights."""

    @property
    def link(self) -> LinkConfig:
        """Link prediction."""

    def of(self, settings: type[SnapshotsConfig]) -> SnapshotsConfig:
        """The settings of this method."""


def wanted_of(config: _Config) -> Wanted:
    """What the config of a run says is to be learned."""
    return Wanted(
        config.task,
        config.of(SnapshotsConfig),
        config.link,
        config.seed,
        metric=config.train.metric,
        class_weights=config.train.class_weights,
    )
