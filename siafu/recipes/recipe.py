"""``Recipe``: settings of model, training and inputs that go together; which ones suit a graph.

The first recipe that suits is the default. The others are candidates of the race (:mod:`siafu.race`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from siafu.nn.config import ModelConfig
from siafu.nn.layers import LAYERS
from siafu.recipes.traits import Traits

FEW_LABELS = 2_000  # training nodes; fewer want the strong regularisation of small citation graphs
MANY_LABELS = 20_000  # training nodes; more want little regularisation
UNLIKE = 0.1  # homophily below which neighbours are unlike

Tables = Mapping[str, Mapping[str, Any]]


class Recipe(NamedTuple):
    """A recipe.

    Attributes:
        name: one word.
        model, train: its settings.
        counts: how features that are counts are prepared: sparse ones, and dense ones.
    """

    name: str
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    counts: tuple[str, str] = ("none", "standard")


def recipes_for(kind: str, traits: Traits) -> tuple[Recipe, ...]:
    """Return the recipes that suit a kind of model and a graph; the first is the default."""
    if not traits.in_features:  # a row is learned for each node, as wide as the hidden rows
        return (_SMALL,)
    if traits.num_train < FEW_LABELS:
        broad = _SMALL._replace(name="broad", model={"hidden": 256})
        full_bags = (
            traits.counts and traits.dense
        )  # too few labels to standardise by, too much signal for few columns
        return (_WIDE._replace(counts=broad.counts), broad) if full_bags else (_SMALL, broad)
    decayed = _decayed(traits.num_train)
    found = (decayed, _WIDE) if traits.num_train < MANY_LABELS else (_WIDE, decayed)
    if kind not in LAYERS:  # they have no norm and no skip connections, and SGC no hidden rows to drop
        return tuple(_without_dropout(recipe) for recipe in found) if kind == "sgc" else found
    return (*found, _DEEP)


def _without_dropout(recipe: Recipe) -> Recipe:
    return recipe._replace(model={key: value for key, value in recipe.model.items() if key != "dropout"})


def kinds_for(traits: Traits) -> tuple[str, ...]:
    """Return the kinds of models that race where the user names none; the first is the default.

    Layers that keep a node's own row apart may be better where neighbours are unlike, or labels many.
    """
    alike = traits.homophily is None or traits.homophily >= UNLIKE
    few = traits.num_train < FEW_LABELS
    return ("gcn",) if not traits.in_features or (few and alike) else ("gcn", "sage")


def narrowed(recipe: Recipe) -> Recipe:
    """Return a recipe of half the width: other kinds than GCN then take about as much work."""
    width = recipe.model.get("hidden", ModelConfig().hidden)
    return recipe._replace(model={**recipe.model, "hidden": width // 2})


def tables_of(recipe: Recipe, traits: Traits) -> Tables:
    """Return the settings of a recipe for a graph, as tables."""
    of_sparse, of_dense = recipe.counts if traits.counts else ("none", "standard")
    normalize = of_dense if traits.dense else of_sparse
    return {"model": recipe.model, "train": recipe.train, "data": {"normalize": normalize}}


# The defaults of each kind of model, as published for few labels: 64 columns, 2 layers, dropout by kind.
_SMALL = Recipe("small", {}, {"weight_decay": 5e-4}, ("rows", "none"))
_WIDE = Recipe("wide", {"hidden": 256, "layers": 2, "dropout": 0.2}, {"weight_decay": 0.0})
# Norm and skip connections, as in https://arxiv.org/abs/2406.08993.
_DEEP = Recipe(
    "deep",
    {"hidden": 256, "layers": 3, "dropout": 0.5, "norm": "layer", "residual": True},
    {"weight_decay": 5e-5},
)


def _decayed(num_train: int) -> Recipe:
    """Weight decay as of a prior over the weights: against a mean loss, it falls with the number of labels."""
    decay = float(f"{2 / num_train:.1g}")
    return Recipe("decayed", {"hidden": 256, "layers": 2, "dropout": 0.5}, {"weight_decay": decay})
