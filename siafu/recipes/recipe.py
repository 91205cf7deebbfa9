"""``Recipe``: settings of model, training and inputs that go together; which ones suit a graph.

The first recipe that suits is the default. The others are candidates of the race (:mod:`siafu.race`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from siafu.nn.layers import LAYERS
from siafu.recipes.traits import Traits

FEW_LABELS = 2_000  # training nodes; fewer want the strong regularisation of small citation graphs

Tables = Mapping[str, Mapping[str, Any]]


class Recipe(NamedTuple):
    """A recipe.

    Attributes:
        name: one word.
        model, train: its settings.
    """

    name: str
    model: Mapping[str, Any]
    train: Mapping[str, Any]


# Kipf and Welling (https://arxiv.org/abs/1609.02907), for few labels.
SMALL = Recipe("small", {"hidden": 64, "layers": 2, "dropout": 0.5}, {"weight_decay": 5e-4})
DECAYED = Recipe("decayed", {"hidden": 256, "layers": 2, "dropout": 0.5}, {"weight_decay": 5e-4})
WIDE = Recipe("wide", {"hidden": 256, "layers": 2, "dropout": 0.2}, {"weight_decay": 0.0})
# Norm and skip connections, as in https://arxiv.org/abs/2406.08993.
DEEP = Recipe(
    "deep",
    {"hidden": 256, "layers": 3, "dropout": 0.5, "norm": "layer", "residual": True},
    {"weight_decay": 5e-5},
)
# All hidden layers side by side, for neighbours of other classes (https://arxiv.org/abs/1806.03536).
JUMPING = Recipe(
    "jumping",
    {"hidden": 256, "layers": 2, "dropout": 0.5, "norm": "layer", "jump": "cat"},
    {"weight_decay": 5e-5},
)


def recipes_for(kind: str, traits: Traits) -> tuple[Recipe, ...]:
    """Return the recipes that suit a kind of model and a graph; the first is the default."""
    found: tuple[Recipe, ...] = (WIDE, DECAYED, DEEP, JUMPING)
    if not traits.in_features:  # a row is learned for each node, as wide as the hidden rows
        found = (SMALL,)
    elif traits.num_train < FEW_LABELS:
        found = (SMALL, DECAYED, JUMPING)
    if kind not in LAYERS:  # no norm, no skip connections
        found = tuple(recipe for recipe in found if "norm" not in recipe.model)
    return found


def tables_of(recipe: Recipe, traits: Traits) -> Tables:
    """Return the settings of a recipe for a graph, as tables."""
    plain = "standard" if traits.dense else "none"
    normalize = "rows" if traits.words and recipe in (SMALL, DECAYED) else plain
    return {"model": recipe.model, "train": recipe.train, "data": {"normalize": normalize}}
