"""A run that has ended: its metrics and its model, loaded from the run's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from siafu.config import Config, parse_toml
from siafu.data.columns import Encoder
from siafu.event_log import Progress, no_progress
from siafu.load_graph import AnyGraph, load
from siafu.methods import METHODS
from siafu.nn.ensemble import Ensemble
from siafu.nn.propagated import Propagated
from siafu.results.format import fmt_metric
from siafu.run_folder import RunFolder, existing_folder
from siafu.store.tensors import load_tensors


@dataclass(frozen=True)
class Run:
    """A trained model and its metrics.

    Attributes:
        directory: the folder of the run.
        settings: the resolved config.
        metrics: the object that ``--json`` prints.
        model: the model with its best weights; None if the run was stopped before its end, or had several seeds.
        rank: the rank of this process in its group; rank 0 has the folder and reports to the user.
    """

    directory: Path
    settings: Config
    metrics: dict[str, Any]
    model: nn.Module | None
    rank: int = 0

    @property
    def test_accuracy(self) -> float:
        """The share of test nodes that are classified correctly."""
        accuracy = self.metrics.get("test_accuracy")
        if accuracy is None:
            raise AttributeError(
                f"no test accuracy: this run measured {self.metrics['metric']}; see run.metrics"
            )
        return accuracy

    @property
    def decision(self) -> str:
        """How a class is predicted where it is not the most probable one; else empty."""
        threshold = self.metrics.get("threshold")
        if threshold is None:
            return ""
        rule = str(self.metrics["threshold_rule"])
        chosen = "given" if rule == "given" else f"chosen on validation labels by {fmt_metric(rule)}"
        return f"class {self.metrics['positive_class']} from a probability of {threshold:.4g} on ({chosen})"


def open_run(run: Path | str, *, model: nn.Module | None = None) -> Run:
    """Load a finished run; give ``model`` if it trained a module of your own."""
    folder = existing_folder(Path(run))
    if not folder.finished:
        raise ValueError(
            f'{folder.path}: this run has not ended; continue it with "siafu resume {folder.path}"'
        )
    config, metrics = parse_toml(folder.read_config()), folder.read_metrics()
    if config.seeds > 1:
        return Run(folder.path, config, metrics, None)
    return Run(folder.path, config, metrics, load_weights(folder, config, model))


def source_graph(run: Run, source: Path | str | None = None, *, progress: Progress = no_progress) -> AnyGraph:
    """Load the graph ``source``, or the graph that a run was trained on."""
    source = source or run.settings.source
    if not source:
        raise ValueError(f"{run.directory}: trained on a graph given in Python; name the data to predict")
    step = run.settings.snapshots.step
    return load(source, fold=run.settings.data.fold, step=step, progress=progress)


def read_encoder(folder: RunFolder) -> Encoder | None:
    """Read the encoders of columns of a run; None where it was trained on plain features."""
    fields = folder.read_encoder()
    return None if fields is None else Encoder.parse(fields, str(folder.encoder))


def load_weights(folder: RunFolder, config: Config, model: nn.Module | None) -> nn.Module:
    """Load the model of a run with its weights; ``model`` is the module if it was the user's own."""
    try:
        weights, shape = load_tensors(folder.weights)
    except ValueError as error:
        raise ValueError(
            f'{error}; delete it and "siafu resume {folder.path}" writes it again from the checkpoint'
        ) from None
    if model is None:
        if config.model.kind == "custom":
            raise ValueError(f"{folder.path}: trained a module of your own; open it from Python with model=")
        if shape.keys() != {"in_features", "out_features", "num_nodes"}:
            raise ValueError(f"{folder.weights}: not the weights of a run; put the right file back")
        model = _build_model(config, shape)
    try:
        if isinstance(model, Propagated):
            return Propagated.of_state(weights)
        model.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{folder.weights}: its weights do not fit the model ({error})") from None
    return model


def _build_model(config: Config, shape: dict[str, int]) -> nn.Module:
    """Build the model of a run, or all members of an ensemble, without weights."""
    method, count = METHODS[config.method], config.train.ensemble
    members = [method.build_model(config, **shape) for _ in range(count)]
    return members[0] if count == 1 else Ensemble(members)
