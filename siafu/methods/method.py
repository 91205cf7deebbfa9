"""``Method``: what the rest of the package asks of a training method. ``siafu.methods.METHODS`` names all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel
from torch import nn

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.data.config import DataConfig
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.nn.config import ModelConfig
from siafu.partition.config import PartitionConfig
from siafu.partition.cut import Part
from siafu.partition.distribute import distribute_part
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.procedure import Procedure
from siafu.training.scoring_interval import EpochWork

S = TypeVar("S", bound=BaseModel)


class ConfigLike(Protocol):
    """The config of a run as methods read it; see :class:`siafu.config.Config`."""

    @property
    def method(self) -> str:
        """The name of the method."""

    @property
    def task(self) -> str:
        """Node, link or edge."""

    @property
    def seed(self) -> int:
        """Seed of everything random."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""

    @property
    def data(self) -> DataConfig:
        """The settings of inputs."""

    @property
    def model(self) -> ModelConfig:
        """The model."""

    @property
    def train(self) -> TrainConfig:
        """Optimisation."""

    @property
    def partition(self) -> PartitionConfig:
        """The settings of the partition."""

    @property
    def comm(self) -> CommConfig:
        """The settings of communication."""

    @property
    def link(self) -> LinkConfig:
        """Link prediction."""

    def of(self, settings: type[S]) -> S:
        """The table of one component, such as ``LazyConfig``."""


@dataclass(frozen=True, eq=False)
class RankContext:
    """Everything that a procedure is built from on one rank.

    Attributes:
        comm: the group of ranks.
        part: this rank's part of the graph, or its share of a graph that changes over time.
        config: the config of the run.
        module: the user's own module, or None.
        scratch: a folder for arrays that do not fit into memory.
    """

    comm: Comm
    part: Part | DynamicGraph
    config: ConfigLike
    module: nn.Module | None
    scratch: Path

    @property
    def static_part(self) -> Part:
        """The part of a graph that does not change."""
        assert isinstance(self.part, Part)
        return self.part


class Method:
    """A training method.

    Attributes:
        tasks: the tasks that it learns.
        defaults: tables of settings that differ from the usual ones; what a user gives stands.
        trains_modules: whether it trains a user's own module.
        over_time: whether it trains on graphs that change over time, and on no others.
        race_method: the method that trains the candidates of a race; empty where there is none.
    """

    tasks: ClassVar[tuple[str, ...]] = ("node",)
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    trains_modules: ClassVar[bool] = False
    over_time: ClassVar[bool] = False
    race_method: ClassVar[str] = ""

    def check(self, config: ConfigLike) -> None:
        """Refuse settings with which this method cannot train, before anything is written."""

    def build(self, rank: RankContext) -> Procedure:
        """Build the procedure of one rank. Collective."""
        raise NotImplementedError

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        """Build the model of a run, without its weights."""
        raise NotImplementedError

    def max_epochs(self, config: ConfigLike) -> int:
        """The most epochs that a run can have."""
        return config.train.epochs

    def epoch_work(self, config: ConfigLike, graph: Graph | DynamicGraph, task: Any) -> EpochWork | None:
        """The work of training and of scoring; None where scoring takes less than a third of it after every epoch."""
        return None

    def reads_sparse_inputs(self, config: ConfigLike) -> bool:
        """Return whether the method keeps features that are mostly zero as sparse rows."""
        return False

    def streams_inputs(self, config: ConfigLike) -> bool:
        """Say whether inputs that do not fit into memory may stay on disk."""
        return config.model.kind != "custom" and not (
            config.model.kind == "sage" and config.model.reduce == "max"
        )

    def receive_part(self, comm: Comm, path: Path, config: ConfigLike) -> Part | DynamicGraph:
        """Receive this rank's part of the partition in ``path``, which rank 0 reads. Collective."""
        return distribute_part(comm, path)
