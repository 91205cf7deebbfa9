"""Search for the recipe of a run: resolve its candidates, run their race, and take the best one's config."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from siafu.config import Config, parse_toml
from siafu.data.columns import Encoder
from siafu.engines import Engine, EventFollower, TrainingJob
from siafu.graph import Graph
from siafu.load_graph import AnyGraph
from siafu.methods import METHODS
from siafu.preview import AnyTask, preview_task
from siafu.recipes.choose import Chooser
from siafu.recipes.plan import Candidate, RacePlan, plan_race
from siafu.recipes.race_folder import RaceFolder
from siafu.recipes.traits import Traits
from siafu.resolve import LoadedGraph, encode, load_source, resolve_config, resolve_for_graph, resolve_scoring
from siafu.run_folder import RunFolder
from siafu.training.procedure import Callbacks
from siafu.training.task import task_of


class ResolvedRun(NamedTuple):
    """A run before it is written.

    Attributes:
        graph: its graph.
        config: its resolved config; that of the first candidate where there is a race.
        task: its task on the whole graph.
        race: the race that chooses the config, or None.
        choice: a sentence about the recipe; empty where there is none to choose.
        encoder: the encoders of its columns, fitted to the training nodes; None where features are plain.
    """

    graph: AnyGraph
    config: Config
    task: AnyTask
    race: RacePlan | None = None
    choice: str = ""
    encoder: Encoder | None = None


def resolve_run(
    graph: AnyGraph | LoadedGraph | str | Path,
    config: Config,
    module: nn.Module | None,
    callbacks: Callbacks,
    asked: Iterable[str] = (),
) -> ResolvedRun:
    """Load and encode the graph of a run, resolve every setting that depends on it, and build its task.

    A setting in ``asked`` that does not apply is refused; others that do not apply are left out.
    """
    graph, source = load_source(graph, config, callbacks.progress)
    graph, config, encoder = encode(graph, resolve_for_graph(config, graph, asked))
    return _resolve_loaded(graph, source, config, module)._replace(encoder=encoder)


def _resolve_loaded(graph: AnyGraph, source: str, config: Config, module: nn.Module | None) -> ResolvedRun:
    """Resolve every setting that depends on the data of a run, and build its task."""
    resolved = resolve_config(config, graph, source)
    METHODS[resolved.method].check(resolved)
    if not _has_recipes(resolved, module):
        return _without_recipes(graph, resolved, module)
    assert isinstance(graph, Graph)
    task = task_of(graph, resolved.train)
    chooser = Chooser(config, resolved, graph, task)
    candidates = [
        each._replace(config=resolve_scoring(each.config, graph, task)) for each in chooser.candidates()
    ]
    preview_task(graph, candidates[0].config, module)
    race = _plan(chooser, candidates)
    chosen = candidates[0].config
    if race is not None:
        chosen = chosen.model_copy(update={"train": chosen.train.model_copy(update={"search": "auto"})})
    return ResolvedRun(graph, chosen, task, race, _describe(chooser.traits, candidates[0]))


def _has_recipes(config: Config, module: nn.Module | None) -> bool:
    """Whether defaults of a run follow from its data: for node tasks on graphs that do not change."""
    static = not METHODS[config.method].over_time
    return static and config.task == "node" and module is None and config.model.kind != "custom"


def _without_recipes(graph: AnyGraph, config: Config, module: nn.Module | None) -> ResolvedRun:
    if config.model.kind == "auto":
        raise ValueError(
            "model.kind is auto, but kinds of models race for node tasks on graphs that do not change; name a kind"
        )
    config = config.model_copy(update={"train": config.train.model_copy(update={"search": "off"})})
    task = preview_task(graph, config, module)
    return ResolvedRun(graph, resolve_scoring(config, graph, task), task)


def _plan(chooser: Chooser, candidates: list[Candidate]) -> RacePlan | None:
    """Plan the race of a run; None where nothing is to be chosen, or nothing to choose by."""
    config = chooser.resolved
    if (
        config.train.search == "off"
        or not METHODS[config.method].race_method
        or not chooser.task.count["val"]
    ):
        return None
    return plan_race(candidates, num_nodes=chooser.graph.num_nodes, steps_per_epoch=chooser.steps_per_epoch)


def run_race(job: TrainingJob, engine: Engine, callbacks: Callbacks) -> tuple[TrainingJob, dict[str, Any]]:
    """Run the race of a job; returns the job of its best candidate, and the result.

    A race that is over already is not run again.
    """
    assert job.race is not None
    folder = RaceFolder(job.folder)
    result = folder.read_result()
    if result is None:
        callbacks.say(_announce(job.race))
        result, _ = engine.train(job, callbacks)
        if not result["finished"]:
            return job, result
    is_one_training = job.config.seeds == 1 and job.config.train.ensemble == 1
    goes_on = METHODS[job.config.method].race_method == job.config.method and is_one_training
    folder.install(result["chosen"], goes_on=goes_on)
    if goes_on:
        EventFollower(job.folder, callbacks, total=job.config.max_epochs, from_start=True).poll()
    config = parse_toml(job.folder.read_config())
    return replace(job, config=config, race=None, resumed=goes_on), {"finished": True}


def race_metrics(folder: RunFolder) -> dict[str, Any]:
    """Return the metrics of the race of a run; none where there was no race."""
    result = RaceFolder(folder).read_result()
    if result is None:
        return {}
    return {
        "recipe": result["names"][result["chosen"]],
        "candidates": len(result["names"]),
        "search_seconds": result["seconds"],
        "search_bytes": result["bytes"],
    }


def _announce(race: RacePlan) -> str:
    names = ", ".join(each.name for each in race.candidates)
    until = " and ".join(map(str, race.rounds))
    return (
        f"race of {len(race.candidates)} recipes: {names}; compared after {until} epochs "
        "(train.search=off takes the first)"
    )


def _describe(traits: Traits, chosen: Candidate) -> str:
    """Describe the recipe that a run begins with, and the facts that it follows from."""
    model, train = chosen.config.model, chosen.config.train
    on_inputs = f" ({model.input_rate:g} on inputs)" if model.input_rate != model.dropout else ""
    parts = [
        f"{model.hidden} columns",
        f"{model.layers} layers",
        *([f"{model.norm} norm"] if model.norm != "none" else []),
        *(["residual"] if model.residual else []),
        *([f"jump {model.jump}"] if model.jump != "none" else []),
        f"dropout {model.dropout:g}{on_inputs}",
        f"weight decay {train.weight_decay:g}",
        f"lr {train.lr:g}",
        f"features {_PREPARED[chosen.config.data.normalize]}",
    ]
    return f"recipe {chosen.name} ({_reasons(traits)}): {', '.join(parts)}"


def _reasons(traits: Traits) -> str:
    alike = "" if traits.homophily is None else f", homophily {traits.homophily:.2f}"
    features = "counts of words" if traits.counts else f"{traits.in_features} features"
    return f"{traits.num_train:,} training nodes, {features if traits.in_features else 'no features'}{alike}"


_PREPARED = {
    "rows": "scaled by row",
    "standard": "standardised",
    "none": "as they are",
    "auto": "as they are",
}
