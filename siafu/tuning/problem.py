"""``Problem``: the data of a search, the settings that the user fixed, and the space of the others."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from siafu.applying import explain_unmet, unmet_condition
from siafu.config import Config, GivenSettings, build, check_applying, merge
from siafu.data.config import DataConfig
from siafu.dynamic import DynamicGraph
from siafu.graph import chunks
from siafu.load_graph import AnyGraph
from siafu.machine import usable_memory_bytes
from siafu.methods.lazy.config import LazyConfig
from siafu.native import SparseRows
from siafu.preview import AnyTask
from siafu.recipes.recipe import FEW_LABELS
from siafu.resolve import LoadedGraph, load_source, resolve_engine
from siafu.results.record import flatten
from siafu.search import resolve_run
from siafu.training.procedure import Callbacks
from siafu.tuning.space import (
    RECIPES,
    RECIPES_FEW_LABELS,
    Limits,
    Settings,
    Space,
    active,
    default_space,
    kind_within,
    kinds_of,
    restrict,
    without_fixed,
)
from siafu.tuning.space_file import nested, read_space, space_to_plain

Tables = dict[str, Any]
Recipe = tuple[str, Settings, Settings]
_REPORTS = 20  # of a trial's score, over as many epochs as a run has by default
_OFF: Tables = {"train": {"search": "off"}}  # a trial trains one recipe


@dataclass(frozen=True)
class Problem:
    """A search, before it is started or continued.

    Attributes:
        loaded: the graph and its source.
        fixed: tables of the settings that the user gave; no trial changes them.
        config: the resolved config of a run with the defaults.
        task: the task of that run.
        space: the settings to search.
        own_space: whether the space is the user's.
    """

    loaded: LoadedGraph
    fixed: Tables
    config: Config
    task: AnyTask
    space: Space
    own_space: bool

    @property
    def graph(self) -> AnyGraph:
        """The graph."""
        return self.loaded.graph

    @property
    def kind(self) -> str:
        """The kind of model where a trial names none."""
        return self.config.model.kind

    @property
    def interval(self) -> int:
        """The number of epochs from one report of a trial's score to the next."""
        return max(1, self.config.max_epochs // _REPORTS)

    @property
    def prunes(self) -> bool:
        """Whether trials are stopped early; not if a run has stages, since their scores do not compare by epoch."""
        return self.config.max_epochs == self.config.train.epochs

    @cached_property
    def identity(self) -> Tables:
        """Everything that all trials of a search share, as plain JSON values."""
        plain = {
            "fingerprint": self.config.fingerprint,
            "fixed": flatten(self.fixed),
            "own_space": space_to_plain(self.space) if self.own_space else None,
            "seed": self.config.seed,
        }
        return json.loads(json.dumps(plain))

    def tables(self, settings: Mapping[str, Any]) -> Tables:
        """Return the tables of settings of a trial's run."""
        return merge(_OFF, nested(settings), self.fixed)

    def recipes(self) -> list[Recipe]:
        """Return the trials to queue: of each its name, the settings to try, and their place in the space."""
        defaults = flatten(self.config.model_dump())
        found, seen = [], set[str]()
        few = self.task.count["train"] < FEW_LABELS
        for name, recipe in (RECIPES_FEW_LABELS if few else RECIPES).items():
            settings = restrict(recipe, self.space, kind=self.kind)
            place = restrict(defaults | settings, self.space, kind=self.kind)
            key = json.dumps(place | settings, sort_keys=True)
            if key not in seen and (not self.own_space or self._covers(place, settings)):
                found.append((name, settings, place))
            seen.add(key)
        return found

    def searched(self, config: Config) -> Settings:
        """Return the values of the searched settings in the config of a run."""
        values = flatten(config.model_dump())
        return {entry.key: values.get(entry.key) for entry in active(self.space, config.model.kind)}

    def _covers(self, place: Settings, settings: Settings) -> bool:
        """Whether the user's space holds the values of all of its settings."""
        kind = kind_within(defaults := {"model.kind": self.kind} | place, self.space, "")
        searched = any(entry.key == "model.kind" for entry in self.space)
        entries = active(self.space, kind if searched else self.kind)
        return (bool(kind) or not searched) and all(entry.key in defaults | settings for entry in entries)


def pose(
    graph: AnyGraph | str | Path,
    *,
    given: GivenSettings,
    space: Path | str | Mapping[str, Any] | None,
    callbacks: Callbacks,
) -> Problem:
    """Load the graph, resolve the settings, and check that there is something to search."""
    fixed = _without_auto(given.tables)
    chosen = resolve_engine(build(_OFF, fixed), os.environ)
    _check(chosen, fixed)
    own = None if space is None else read_space(space, fixed=fixed)
    loaded = LoadedGraph(*load_source(graph, chosen, callbacks.progress))
    resolved = resolve_run(loaded, chosen, None, callbacks)
    config, task = resolved.config, resolved.task
    if not task.count["val"]:
        raise ValueError(
            f"{loaded.graph.name}: no validation nodes, by which a search chooses; give a split with some "
            '("siafu import --split"), or train with settings of your own by "siafu train"'
        )
    whole = default_space(_limits(loaded.graph, config)) if own is None else own
    found = without_fixed(whole, flatten(fixed), kind=config.model.kind)
    check_applying(config, given.asked_keys, kinds=kinds_of(found, config.model.kind))
    _check_space(found, own, space, config)
    return Problem(loaded, fixed, config, task, found, own is not None)


def _without_auto(given: Tables) -> Tables:
    """Leave out ``model.kind = "auto"``: the search chooses the kind anyway."""
    model = given.get("model", {})
    if not isinstance(model, Mapping) or model.get("kind") != "auto":
        return merge(given)
    return merge(given) | {"model": {key: value for key, value in model.items() if key != "kind"}}


def _check(config: Config, given: Tables) -> None:
    """Refuse settings with which no search can run."""
    if config.seeds > 1 or config.baseline:
        name = "seeds" if config.seeds > 1 else "baseline"
        raise ValueError(
            f"{name} is set, but each trial of a search is one run; leave it out, and train the best trial again with "
            "its config.toml"
        )
    if config.engine in ("torchrun", "sites"):
        raise ValueError(
            f"engine is {config.engine}, which siafu tune does not start; use local, processes or ray"
        )
    if config.model.kind == "custom":
        raise ValueError("model is a module of your own; siafu tune searches over siafu's own models")
    if given.get("train", {}).get("search", "off") != "off":
        raise ValueError("train.search is set, but each trial of siafu tune trains one recipe; leave it out")


def _check_space(found: Space, own: Space | None, space: Any, config: Config) -> None:
    """Refuse a space with settings that no model has, or with nothing to search."""
    where = "space" if isinstance(space, Mapping) else space
    kinds = kinds_of(own or (), config.model.kind)
    searched = {entry.key for entry in own or ()} - {"model.kind"}
    for key in searched:
        unmet = unmet_condition(config, key, kinds=kinds, undecided=searched)
        if unmet is not None and unmet.key != "model.kind":
            raise ValueError(f"{where}: {explain_unmet(config, key, unmet, kinds=kinds)}")
    unused = [entry.key for entry in own or () if entry not in found]
    if unused:
        raise ValueError(
            f"{where}: {unused[0]} is no setting of {', '.join(kinds)}; leave it out, or add a model.kind that has it"
        )
    if config.method == "lazy" and config.of(LazyConfig).recipe == "frugal" and own is None:
        raise ValueError("lazy.recipe is frugal, which has no settings of the default space; give --space")
    if not found:
        raise ValueError(
            "nothing is left to search: you fixed all settings of the space; leave some out, or give --space"
        )


def _limits(graph: AnyGraph, config: Config) -> Limits:
    x = None if isinstance(graph, DynamicGraph) else graph.x
    return Limits(
        method=config.method,
        num_nodes=graph.num_nodes,
        normalize=() if x is None else _suitable(x, config),
        memory_bytes=usable_memory_bytes(),
    )


def _suitable(x: Tensor | SparseRows, config: Config) -> tuple[str, ...]:
    """Return the ways to prepare features that neither divide by sums around zero nor make sparse rows dense."""
    unsuitable = {"auto"}
    if config.data.layout == "sparse" or config.data.inputs == "stream":
        unsuitable.add("standard")
    if any(bool((part < 0).any()) for part in ([x.values] if isinstance(x, SparseRows) else chunks(x))):
        unsuitable.add("rows")
    known = get_args(DataConfig.model_fields["normalize"].annotation)
    return tuple(value for value in known if value not in unsuitable)
