"""The command line: parses, calls, prints. Results go to standard output, progress and messages to standard error."""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import siafu

if TYPE_CHECKING:
    from siafu.run import Onlooker

app = typer.Typer(
    name="siafu",
    help="Train graph neural networks on ordinary CPU machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
]


class FeatureDType(StrEnum):
    """How features are stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"


RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Any setting, such as model.norm=layer.")
]


def main() -> None:
    """Run the command; a mistake of the user becomes one message and exit code 1 or 2, never a traceback."""
    traceback = "--traceback" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--traceback"]
    try:
        app()
    except (ValueError, OSError) as error:
        if traceback:
            raise
        _say(f"error: {error}")
        sys.exit(1)
    except MemoryError:
        _say("error: not enough memory; see the needs of the data with: siafu info DATA")
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")] = False,
) -> None:
    if version:
        print(siafu.__version__)
        raise typer.Exit


@app.command()
def train(
    data: Annotated[str, typer.Argument(metavar="DATA", help="A data set's name, a store, or an .npz file.")],
    model: Annotated[str | None, typer.Option(help="gcn, sage, gat, gatv2, gin or mlp.")] = None,
    method: Annotated[str | None, typer.Option(help="full.")] = None,
    ranks: Annotated[int | None, typer.Option(help="Number of ranks.")] = None,
    engine: Annotated[str | None, typer.Option(help="local.")] = None,
    epochs: Annotated[int | None, typer.Option(help="At most so many epochs.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of the hidden layers.")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of elements dropped.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    seeds: Annotated[
        int, typer.Option(help="Train with so many seeds; print mean and deviation.", min=1)
    ] = 1,
    task: Annotated[str | None, typer.Option(help="node.")] = None,
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
    """Train a model and print what it reached."""
    from siafu import run

    flags = {
        "model": {"kind": model, "hidden": hidden, "layers": layers, "dropout": dropout},
        "train": {"epochs": epochs, "lr": lr},
        **{"method": method, "ranks": ranks, "engine": engine, "task": task, "seed": seed},
        "baseline": baseline or None,
    }
    settings = _tables(config, sets, flags)
    kind = settings.get("model", {}).get("kind", "gcn")
    with _onlooker() as onlooker:
        if seeds == 1:
            found = run.train(data, model=kind, out=out, config=settings, onlooker=onlooker).metrics
        else:
            found = run.train_seeds(
                data, seeds=seeds, model=kind, out=out, config=settings, onlooker=onlooker
            )
    _print_metrics(found, as_json)


@app.command()
def resume(path: RunPath, as_json: Json = False) -> None:
    """Go on with a run that was stopped or killed."""
    from siafu import run

    with _onlooker() as onlooker:
        found = run.resume(path, onlooker=onlooker).metrics
    _print_metrics(found, as_json)


@app.command()
def predict(
    path: RunPath,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="By default what the run trained on.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")] = Path("predictions.parquet"),
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Also write the last hidden rows.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write what a trained model says of every node."""
    from siafu import run
    from siafu.predictions import write_predictions

    trained = run.open_run(path)
    graph = run.source_graph(trained, data)
    predicted = run.predict(trained, graph, embeddings=embeddings)
    write_predictions(out, graph, predicted, kind=trained.metrics["task"])
    found = {"run": str(path), "out": str(out), "nodes": graph.num_nodes}
    _print(found, as_json, f"wrote the predictions of {graph.num_nodes:,} nodes to {out}")


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run, or several side by side.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML page about one run or several."""
    from siafu.results.read import read_run
    from siafu.results.report import write_report

    write_report([read_run(path) for path in paths], out)
    _print({"out": str(out), "runs": [str(path) for path in paths]}, as_json, f"wrote {out}")


@app.command()
def data(as_json: Json = False) -> None:
    """List the data sets that are here, and those that can be had."""
    from dataclasses import asdict

    from siafu.data import available, data_home

    home = data_home(os.environ)
    rows = available(home)
    lines = [f"data home: {home} (set SIAFU_DATA to change it)", ""]
    lines += _table([{key: _short(value) for key, value in asdict(row).items()} for row in rows])
    _print({"home": str(home), "data": [asdict(row) for row in rows]}, as_json, "\n".join(lines))


@app.command("import")
def import_(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The store to write.")],
    edges: Annotated[Path, typer.Option(help="Parquet, CSV, TSV, .npy, .npz, or an OGB folder.")],
    features: Annotated[Path | None, typer.Option(help="Parquet, CSV or .npy.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Parquet, CSV or .npy.")] = None,
    split: Annotated[Path | None, typer.Option(help="0 train, 1 validation, 2 test, 3 none.")] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add reverse edges, drop repeated ones.")
    ] = False,
    feature_dtype: Annotated[
        FeatureDType, typer.Option(help="How features are stored.")
    ] = FeatureDType.float32,
    as_json: Json = False,
) -> None:
    """Turn tables of edges, features and labels into a store."""
    from siafu.data.importing import import_graph
    from siafu.results.progress import LiveProgress

    with LiveProgress() as progress:
        store = import_graph(
            out,
            edges=edges,
            features=features,
            labels=labels,
            split=split,
            undirected=undirected,
            feature_dtype=feature_dtype.value,
            progress=progress,
        )
    about = store.describe()
    _print({"store": str(out), **about}, as_json, "\n".join([f"wrote {out}", *_aligned(about)]))


@app.command()
def info(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A store.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compute every checksum anew.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a store holds."""
    from siafu.store import open_store

    store = open_store(path)
    if verify:
        store.verify()
    about = store.describe() | ({"verified": True} if verify else {})
    _print({"store": str(path), **about}, as_json, "\n".join(_aligned(about)))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what is missing."""
    from dataclasses import asdict

    from siafu.results.doctor import examine

    findings = examine(os.environ)
    marks = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.level]}  {finding.name:22} {finding.value}")
        if finding.advice:
            lines.append(f"{'':33}{finding.advice}")
    _print({"findings": [asdict(finding) for finding in findings]}, as_json, "\n".join(lines))


def _tables(config: Path | None, sets: list[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as tables: the file, then --set, then flags that were given; checked, so that mistakes end here."""
    from siafu.settings import build, from_assignments, merge, read_toml

    layers = [read_toml(config) if config else {}, from_assignments(sets or []), _given(flags)]
    try:
        build(*layers)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return merge(*layers)


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _given(value) if isinstance(value, dict) else value for key, value in flags.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


@contextmanager
def _onlooker() -> "Iterator[Onlooker]":
    """Show progress, and let the first SIGTERM or Ctrl-C stop the run at the end of its epoch."""
    from siafu.results.progress import TrainingProgress
    from siafu.run import Onlooker

    received: list[str] = []

    def stop(number: int, _: object) -> None:
        received.append(signal.Signals(number).name)
        signal.signal(number, before[number])  # the second one acts as ever

    before = {int(number): signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with TrainingProgress() as progress:
            yield Onlooker(on_epoch=progress.epoch, should_stop=lambda: received[0] if received else None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_metrics(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(found))
        return
    if not found["finished"]:
        print(
            f"stopped by {found['stopped_by']} after epoch {found['epochs']}; go on with: siafu resume {found['run']}"
        )
        return
    print("\n".join(_summary(found)))


def _summary(found: dict[str, Any]) -> list[str]:
    """What a run reached, in a few lines."""
    from siafu.results.format import fmt_bytes, fmt_metric, fmt_score, fmt_seconds

    metric, spread = found["metric"], found.get("test_score_std")
    lines = [
        f"{found['model']:10} test {fmt_metric(metric)} {fmt_score(found['test_score'], metric, std=spread)}"
    ]
    if "baseline" in found:
        without = found["baseline"]
        score = fmt_score(without["test_score"], metric)
        lines.append(
            f"{without['model']:10} test {fmt_metric(metric)} {score}   (the same without the graph)"
        )
    epochs = f"{found['epochs']:g} epochs of {fmt_seconds(found['epoch_seconds'])}"
    lines.append(f"{'':10} {epochs}, peak memory {fmt_bytes(found['peak_rss_bytes'])}")
    return [*lines, f"{'':10} written to {found['run']}"]


def _print(found: dict[str, Any], as_json: bool, text: str) -> None:
    print(json.dumps(found) if as_json else text)


def _aligned(about: dict[str, Any]) -> list[str]:
    return [f"{key:14} {_short(value)}" for key, value in about.items()]


def _table(rows: list[dict[str, str]]) -> list[str]:
    """Columns as wide as their widest cell; the first and the last to the left, numbers between to the right."""
    cells = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *between, last in cells:
        middle = [text.rjust(width) for text, width in zip(between, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *middle, last]))
    return lines


def _short(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
    return str(value)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
