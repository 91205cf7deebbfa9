"""The command ``tune``: search recipes and models."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siafu.cli.callbacks import tune_callbacks
from siafu.cli.errors import WrongUse
from siafu.cli.output import Json, print_result, say
from siafu.cli.train import Sets, read_settings
from siafu.interpreter import quick_imports
from siafu.signals import exit_code

if TYPE_CHECKING:
    from siafu.tuning import Search


def tune(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set's name, a store, or an .npz file.")],
    time: Annotated[str | None, typer.Option(help="Time of the search, such as 30m or 1h30m.")] = None,
    trials: Annotated[
        int | None, typer.Option(help="Number of trials; 50 if neither this nor --time is given.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric of the validation nodes that chooses, such as macro_f1.")
    ] = None,
    space: Annotated[Path | None, typer.Option(help="Settings to vary, with their values, TOML.")] = None,
    model: Annotated[str | None, typer.Option(help="A kind of model; by default several are tried.")] = None,
    method: Annotated[str | None, typer.Option(help="full, sampled, pipeline or lazy.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Number of ranks of each run.")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs per trial.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search and of each run.")] = None,
    task: Annotated[str | None, typer.Option(help="node, link or edge.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in a TOML file; they are not varied.")] = None,
    sets: Sets = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the search: a new one, or one to go on with.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Search recipes and models; the best trial, by its validation score, is an ordinary run."""
    flags: dict[str, Any] = {
        "model": {"kind": model},
        "train": {"epochs": epochs, "metric": metric},
        **{"method": method, "ranks": ranks, "seed": seed, "task": task},
    }
    settings = read_settings(config, sets, flags)
    with quick_imports():
        from siafu.tuning.budget import Wanted
        from siafu.tuning.search import search
        from siafu.tuning.space_file import read_space
    try:
        wanted = Wanted.of(trials=trials, time=time)
        if space is not None:
            read_space(space, fixed=settings.tables)
    except ValueError as error:
        raise WrongUse(str(error)) from None
    with tune_callbacks() as callbacks:
        found = search(
            data, given=settings, space=space, wanted=wanted, out=out, callbacks=callbacks, hint=_command
        )
    stopped = exit_code(found.stopped_by)
    if stopped:
        say(f"stopped by {found.stopped_by}; go on with: {_command(found.directory)}")
    print_result(found.summary, as_json, "\n".join(_lines(found)))
    if stopped:
        raise typer.Exit(stopped)


def _command(path: Path) -> str:
    """Return the command that goes on with this search."""
    arguments = sys.argv[1:]
    given = any(argument == "--out" or argument.startswith("--out=") for argument in arguments)
    return shlex.join(["siafu", *arguments, *([] if given else ["--out", str(path)])])


def _lines(found: "Search") -> list[str]:
    """Summarize a search in a few lines."""
    from siafu.results.format import fmt_metric, fmt_score, fmt_seconds
    from siafu.tuning.lines import describe_settings

    result = found.summary
    tried = f"{result['trials']} trials compared, of which {result['pruned']} were stopped early"
    tried += f"; {result['failed']} failed" if result["failed"] else ""
    lines = [f"{'search':8} {found.directory}: {tried}, in {fmt_seconds(found.seconds)}"]
    if found.best is None:
        return [*lines, f"{'best':8} none yet: no trial is completed"]
    test, val = (fmt_score(result[key], found.metric) for key in ("test_score", "val_score"))
    run = result["run"]
    return [
        f"{result['model']:8} test {fmt_metric(found.metric)} {test}, validation {val}",
        f"{'settings':8} {describe_settings(result['settings'])}",
        *lines,
        f"{'run':8} {run}",
        f"{'next':8} siafu predict {shlex.quote(run)}, siafu report {shlex.quote(str(found.directory))}",
    ]
