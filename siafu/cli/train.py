"""The commands that train: ``train``, ``resume`` and ``federate``."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siafu.cli.callbacks import command_callbacks, exit_if_stopped, print_metrics
from siafu.cli.errors import WrongUse
from siafu.cli.output import Json
from siafu.interpreter import quick_imports
from siafu.signals import resume_hint
from siafu.sites.cli import address_of

if TYPE_CHECKING:
    from siafu.config import GivenSettings

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Any setting, such as model.norm=layer.")
]


def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set's name, a store, or an .npz file.")],
    model: Annotated[
        str | None, typer.Option(help="gcn, sage, gat, gatv2, gin, appnp, sgc, gcn2 or mlp.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="full, sampled, pipeline or lazy.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Number of ranks.")] = None,
    engine: Annotated[str | None, typer.Option(help="local, processes, torchrun or ray.")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of the hidden layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of elements dropped.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Train with so many seeds; print mean and deviation.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="node, link or edge.")] = None,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Also train a model without the graph.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file.")] = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; by default a new one under runs/.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a model and print its metrics."""
    with quick_imports():
        from siafu import run

    flags = {
        "model": {"kind": model, "hidden": hidden, "layers": layers, "dropout": dropout},
        "train": {"epochs": epochs, "lr": lr},
        **{"method": method, "ranks": ranks, "engine": engine, "task": task, "seed": seed, "seeds": seeds},
        "baseline": baseline or None,
    }
    settings = read_settings(config, sets, flags)
    with command_callbacks() as callbacks:
        trained = run.train_given(data, settings, out=out, callbacks=callbacks)
    if trained.rank == 0:
        print_metrics(trained.metrics, as_json, resume_with=run.resume_command(trained))
    exit_if_stopped(callbacks, trained.metrics)


def resume(path: RunPath, as_json: Json = False) -> None:
    """Resume a run that was stopped or killed."""
    with resume_hint(
        f"siafu resume {shlex.quote(str(path))}"
    ):  # imports take time: a signal then gets the hint, too
        with quick_imports():
            from siafu import run

        with command_callbacks() as callbacks:
            trained = run.resume(path, callbacks=callbacks)
    print_metrics(trained.metrics, as_json, resume_with=run.resume_command(trained))
    exit_if_stopped(callbacks, trained.metrics)


def federate(
    config: Annotated[Path, typer.Argument(metavar="FEDERATION", help="The federation's settings, TOML.")],
    address: Annotated[
        list[str] | None, typer.Option("--address", metavar="SITE=HOST:PORT", help="Where a site is reached.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run, instead of that in the settings.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train with the sites of a federation; a run that was stopped or killed is resumed."""
    from siafu.sites.coordinator import federate as run

    with command_callbacks() as callbacks:
        addresses = dict(map(address_of, address or []))
        metrics = run(config, addresses=addresses, out=out, callbacks=callbacks).metrics
    print_metrics(metrics, as_json, resume_with=f"siafu federate {config}")
    exit_if_stopped(callbacks, metrics)


def read_settings(config: Path | None, sets: list[str] | None, flags: Mapping[str, Any]) -> "GivenSettings":
    """Read settings: the file, then --set, then the given flags; they are checked here, as wrong use."""
    from siafu.config import GivenSettings, from_assignments, merge, read_toml

    try:
        file = read_toml(config) if config else {}
        given = GivenSettings(file, merge(from_assignments(sets or []), _given_flags(flags)))
        given.check()
    except ValueError as error:
        raise WrongUse(str(error)) from None
    return given


def _given_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _given_flags(value) if isinstance(value, dict) else value for key, value in flags.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}
