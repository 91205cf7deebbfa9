"""Choose recipes for a run: the candidates of its race, the first of which is the default."""

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from math import ceil
from typing import Any

from siafu.config import Config, Tables, build, merge
from siafu.graph import Graph
from siafu.methods import METHODS
from siafu.methods.sampled.config import SampledConfig
from siafu.methods.static_work import TRAIN_PASSES, build_for_work, layer_works, whole_graph_work
from siafu.nn.config import AUTO_KINDS
from siafu.recipes.plan import Candidate
from siafu.recipes.recipe import Recipe, kinds_for, narrowed, recipes_for, tables_of
from siafu.recipes.traits import Traits, traits_of
from siafu.training import inputs
from siafu.training.task import Task

_PATIENCE_STEPS, _PATIENCE_EPOCHS = 100, 10  # the least of each


@dataclass(frozen=True, eq=False)
class Chooser:
    """Chooses the candidates of a run on a graph that does not change.

    Attributes:
        given: the user's settings, none of which changes.
        resolved: the same config, resolved for the graph.
        graph: the graph.
        task: its task.
    """

    given: Config
    resolved: Config
    graph: Graph
    task: Task

    @cached_property
    def traits(self) -> Traits:
        """The facts that recipes follow from."""
        return traits_of(self.graph, self.task)

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of the optimiser in an epoch."""
        if self.resolved.method != "sampled":
            return 1
        return ceil(self.task.count["train"] / self.resolved.of(SampledConfig).batch_size)

    def candidates(self) -> list[Candidate]:
        """Choose all candidates; recipes that the user's settings make equal are one."""
        kinds = self._kinds()
        found: dict[Config, str] = {}
        for of_place in zip_longest(*(recipes_for(each, self.traits) for each in kinds)):
            for each, recipe in zip(kinds, of_place, strict=True):
                if recipe is None:
                    continue
                fitted = narrowed(recipe) if len(kinds) > 1 and each != "gcn" else recipe
                name = recipe.name if len(kinds) == 1 else f"{each} {recipe.name}"
                found.setdefault(self._config(fitted, each), name)
        return [Candidate(name, config, self._work(config)) for config, name in found.items()]

    def _kinds(self) -> tuple[str, ...]:
        """Return the kinds of models that race."""
        if "kind" not in self.given.model.model_fields_set:
            return kinds_for(self.traits)
        kind = self.given.model.kind
        return AUTO_KINDS if kind == "auto" else (kind,)

    def _config(self, recipe: Recipe, kind: str) -> Config:
        """Take the settings of a recipe that the user did not give."""
        patience = max(_PATIENCE_EPOCHS, ceil(_PATIENCE_STEPS / self.steps_per_epoch))
        own = build({"train": {"patience": patience}}, tables_of(recipe, self.traits), self._asked(kind))
        normalize = own.data.normalize
        if normalize == "standard" and self.resolved.data.inputs == "stream" and not self._asks_to_normalize:
            normalize = "none"
        return self._with_layout(
            self.resolved.model_copy(
                update={
                    "model": own.model,
                    "train": own.train.model_copy(update={"search": "off"}),
                    "data": self.resolved.data.model_copy(update={"normalize": normalize}),
                }
            )
        )

    def _asked(self, kind: str) -> Tables:
        """Return the user's settings, and those that follow from them."""
        asked: dict[str, Any] = merge(self.given.model_dump(exclude_unset=True), {"model": {"kind": kind}})
        fanout = self.given.of(SampledConfig).fanout
        return merge({"model": {"layers": len(fanout)}}, asked) if fanout else asked

    @property
    def _asks_to_normalize(self) -> bool:
        return "normalize" in self.given.data.model_fields_set

    def _with_layout(self, config: Config) -> Config:
        """Resolve the layout of features again, which depends on the model."""
        data = config.data.model_copy(update={"layout": self.given.data.layout})
        reads_sparse = METHODS[config.method].reads_sparse_inputs(config)
        return config.model_copy(update={"data": inputs.resolve(data, self.graph, reads_sparse=reads_sparse)})

    def _work(self, config: Config) -> float:
        """Count the work of one epoch on the whole graph, by the method that races."""
        method = METHODS[config.method].race_method or config.method
        raced = self._with_layout(config.model_copy(update={"method": method}))
        works = layer_works(build_for_work(raced, self.graph, self.task), self.graph, raced)
        return TRAIN_PASSES * whole_graph_work(works, self.graph)
