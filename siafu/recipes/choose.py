"""Choose recipes for a run: the candidates of its race, the first of which is the default."""

from math import ceil
from typing import Any

from siafu.config import Config, build, merge
from siafu.data.config import DataConfig
from siafu.graph import Graph
from siafu.methods import METHODS
from siafu.methods.sampled.config import SampledConfig
from siafu.methods.static_work import TRAIN_PASSES, build_for_work, layer_works, whole_graph_work
from siafu.recipes.plan import Candidate
from siafu.recipes.recipe import Recipe, recipes_for
from siafu.recipes.traits import Traits, traits_of
from siafu.training import inputs
from siafu.training.task import Task

AUTO_KINDS = ("gcn", "sage", "gat")  # that model.kind auto stands for
_FEWEST_EPOCHS = 10  # of patience


def choose_candidates(
    given: Config, resolved: Config, graph: Graph, task: Task
) -> tuple[Traits, list[Candidate]]:
    """Choose the candidates of a run on a graph that does not change.

    ``given`` holds the user's settings, none of which changes; ``resolved`` is the same config, resolved for the graph.
    """
    traits = traits_of(graph, task)
    kinds = AUTO_KINDS if given.model.kind == "auto" else (given.model.kind,)
    found: dict[Config, str] = {}
    each = {kind: recipes_for(kind, traits) for kind in kinds}
    for place in range(max(map(len, each.values()))):
        for kind, recipes in each.items():
            if place < len(recipes):
                name = recipes[place].name if len(kinds) == 1 else f"{kind} {recipes[place].name}"
                config = _with_recipe(given, resolved, recipes[place], kind, graph, task)
                found.setdefault(config, name)
    return traits, [
        Candidate(name, config, _work(config, given.data, graph, task)) for config, name in found.items()
    ]


def steps_per_epoch(config: Config, task: Task) -> int:
    """The number of steps of the optimiser in an epoch."""
    if config.method != "sampled":
        return 1
    return ceil(task.count["train"] / config.of(SampledConfig).batch_size)


def _with_recipe(
    given: Config, resolved: Config, recipe: Recipe, kind: str, graph: Graph, task: Task
) -> Config:
    """Take the settings of a recipe that the user did not give."""
    patience = max(_FEWEST_EPOCHS, ceil(100 / steps_per_epoch(resolved, task)))
    asked: dict[str, Any] = given.model_dump(exclude_unset=True)
    mine = build({"train": {"patience": patience}}, recipe.tables, merge(asked, {"model": {"kind": kind}}))
    train = mine.train.model_copy(update={"search": "off"})
    data = resolved.data.model_copy(update={"normalize": mine.data.normalize, "layout": given.data.layout})
    return _with_layout(
        resolved.model_copy(update={"model": mine.model, "train": train, "data": data}), graph
    )


def _with_layout(config: Config, graph: Graph) -> Config:
    """Resolve the layout of features anew, which depends on the model."""
    reads_sparse = METHODS[config.method].reads_sparse_inputs(config)
    return config.model_copy(update={"data": inputs.resolve(config.data, graph, reads_sparse=reads_sparse)})


def _work(config: Config, asked: DataConfig, graph: Graph, task: Task) -> float:
    """The work of one epoch on the whole graph, by the method that races."""
    method = METHODS[config.method].race_method or config.method
    data = config.data.model_copy(update={"layout": asked.layout})
    raced = _with_layout(config.model_copy(update={"method": method, "data": data}), graph)
    return TRAIN_PASSES * whole_graph_work(
        layer_works(build_for_work(raced, graph, task), graph, raced), graph
    )
