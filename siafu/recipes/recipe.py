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
        name: a word or two.
        tables: its settings, by table.
    """

    name: str
    tables: Tables


# Kipf and Welling (arXiv 1609.02907): for few labels.
_SMALL = Recipe(
    "small",
    {
        "model": {"hidden": 64, "layers": 2, "dropout": 0.5},
        "train": {"weight_decay": 5e-4, "lr": 0.01},
    },
)
_WIDE_DECAYED = Recipe(
    "wide, decayed",
    {
        "model": {"hidden": 256, "layers": 2, "dropout": 0.5},
        "train": {"weight_decay": 5e-4, "lr": 0.01},
    },
)
_WIDE = Recipe(
    "wide",
    {
        "model": {"hidden": 256, "layers": 2, "dropout": 0.2},
        "train": {"weight_decay": 0.0, "lr": 0.01},
        "data": {"normalize": "none"},
    },
)
_DEEP = Recipe(
    "deep",
    {
        "model": {"hidden": 256, "layers": 3, "dropout": 0.5, "norm": "layer", "residual": True},
        "train": {"weight_decay": 5e-5, "lr": 0.01},
        "data": {"normalize": "none"},
    },
)
_JUMPING = Recipe(
    "jumping",
    {
        "model": {"hidden": 256, "layers": 2, "dropout": 0.5, "norm": "layer", "jump": "cat"},
        "train": {"weight_decay": 5e-5, "lr": 0.01},
        "data": {"normalize": "none"},
    },
)


def recipes_for(kind: str, traits: Traits) -> tuple[Recipe, ...]:
    """Return the recipes that suit a kind of model and a graph; the first is the default."""
    few = traits.num_train < FEW_LABELS
    found: tuple[Recipe, ...] = (
        (_SMALL, _WIDE_DECAYED, _JUMPING) if few else (_WIDE, _WIDE_DECAYED, _DEEP, _JUMPING)
    )
    if kind not in LAYERS:  # no norm, no skip connections
        found = tuple(recipe for recipe in found if "norm" not in recipe.tables["model"])
    return tuple(_with_inputs(recipe, traits) for recipe in found)


def _with_inputs(recipe: Recipe, traits: Traits) -> Recipe:
    """Add how features are prepared, where the recipe does not say it."""
    usual = "rows" if traits.counts else "none" if traits.scaled else "standard"
    if not traits.counts:
        return recipe._replace(tables={**recipe.tables, "data": {"normalize": usual}})
    return recipe._replace(tables={"data": {"normalize": usual}, **recipe.tables})
