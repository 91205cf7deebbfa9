"""The command line: parses, calls, prints. Results go to standard output, progress and messages to standard error."""

import errno
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import siafu
from siafu.signals import deferred_stop, exit_code, exit_on_signal, resume_hint
from siafu.sites.cli import address_of, site
from siafu.terminal import escape_control_chars

if TYPE_CHECKING:
    from siafu.training.procedure import Callbacks

app = typer.Typer(
    name="siafu",
    help="Train graph neural networks on ordinary CPU machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
functions = typer.Typer(no_args_is_help=True, help="Workers as AWS Lambda functions.")
app.add_typer(functions, name="lambda")
app.add_typer(site, name="site")

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
]


class FeatureDType(StrEnum):
    """How features are stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


class LabelKind(StrEnum):
    """The kinds of labels."""

    class_ = "class"
    multilabel = "multilabel"
    number = "number"


class Reorder(StrEnum):
    """Whether neighbours are put near each other."""

    auto = "auto"
    on = "on"
    off = "off"


RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="A.B=C", help="Any setting, such as model.norm=layer.")
]


class WrongUse(ValueError):
    """What was asked for cannot be: exit code 2."""


def main() -> None:
    """Run the command; a mistake of the user becomes one message and exit code 1 or 2, never a traceback."""
    traceback = "--traceback" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--traceback"]
    with exit_on_signal():
        try:
            app()
        except Exception as error:
            if traceback:
                raise
            _say(f"error: {_explain(error)}")
            sys.exit(2 if isinstance(error, WrongUse) else 1)


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        advice = "; make room there and try again" if error.errno == errno.ENOSPC else ""
        return f"{error.filename}: {error.strerror}{advice}"
    if isinstance(error, ValueError | OSError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(
        error
    ):  # torch has no error of its own
        return "not enough memory; lower --hidden or --layers, or use a machine with more"
    if _of_ranks(error):
        notes = [note for note in getattr(error, "__notes__", []) if "Traceback" not in note]
        return "\n".join([str(error), *notes])
    return f"{type(error).__name__}: {error} (a fault of siafu; --traceback shows where)"


def _of_ranks(error: Exception) -> bool:
    """Whether ranks were lost or failed; they say so themselves."""
    if not isinstance(error, RuntimeError):
        return False
    from siafu.comm import CommError
    from siafu.launch.failures import RanksFailed

    return isinstance(error, CommError | RanksFailed)


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
    """Train a model and print what it reached."""
    from siafu import run

    flags = {
        "model": {"kind": model, "hidden": hidden, "layers": layers, "dropout": dropout},
        "train": {"epochs": epochs, "lr": lr},
        **{"method": method, "ranks": ranks, "engine": engine, "task": task, "seed": seed, "seeds": seeds},
        "baseline": baseline or None,
    }
    settings = _tables(config, sets, flags)
    with _callbacks() as callbacks:
        trained = run.train(data, out=out, config=settings, callbacks=callbacks)
    if trained_run.rank == 0:
        _print_metrics(trained_run.metrics, as_json, again=run.how_to_resume(trained))
    _exit_if_stopped(callbacks, trained_run.metrics)


@app.command()
def resume(path: RunPath, as_json: Json = False) -> None:
    """Go on with a run that was stopped or killed."""
    with resume_hint(f"siafu resume {shlex.quote(str(path))}"):  # also while the rest is loaded
        from siafu import run

        with _callbacks() as callbacks:
            trained = run.resume(path, callbacks=callbacks)
    _print_metrics(trained_run.metrics, as_json, again=run.how_to_resume(trained))
    _exit_if_stopped(callbacks, trained_run.metrics)


@app.command()
def predict(
    path: RunPath,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="By default what the run trained on.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write: .parquet or .csv.")] = Path(
        "predictions.parquet"
    ),
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="Also write the last hidden rows.")
    ] = False,
    pairs: Annotated[
        Path | None, typer.Option(help="Score pairs of nodes: Parquet, CSV, TSV or .npy with src and dst.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write what a trained model says of every node, or of given pairs."""
    from siafu.inference import trained_run
    from siafu.inference.export import check_out
    from siafu.results.progress import LiveProgress

    check_out(out)
    run = trained_run.open_run(path)
    with LiveProgress() as progress:
        graph = trained_run.source_graph(run, data, progress=progress)
    if pairs is not None:
        count = trained_run.predict_pairs(run, graph, pairs, out=out)
        _print(
            {"run": str(path), "out": str(out), "pairs": count},
            as_json,
            f"wrote the scores of {count:,} pairs to {out}",
        )
        return
    trained_run.predict(run, graph, embeddings=embeddings, out=out)
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

    runs = [each for path in paths for each in sorted(path.glob("seed-[0-9]*"), key=_number) or [path]]
    records = [read_run(path) for path in runs]
    write_report(records, out)
    damaged = {str(record.path): list(record.damage) for record in records if record.damage}
    for path, texts in damaged.items():
        _say("\n".join(f"{path}: {text}" for text in texts))
    found = {"out": str(out), "runs": [str(path) for path in runs], "damaged": damaged}
    _print(found, as_json, f"wrote {out}")


@app.command()
def worker(
    lease: Annotated[
        Path, typer.Argument(metavar="LEASE", help="A lease that a pipeline run wrote into its folder.")
    ],
    as_json: Json = False,
) -> None:
    """Do tensor tasks of a pipeline run, on this machine or another, until the run ends."""
    from dataclasses import asdict

    from siafu.workers.lease import Lease
    from siafu.workers.worker import CannotServe, serve

    try:
        report = serve(Lease.from_json(lease.read_bytes()))
    except CannotServe as error:
        raise ValueError(str(error)) from error
    _print(asdict(report), as_json, f"{report.tasks:,} tasks in {report.seconds:.1f} s; {report.reason}")


@app.command()
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
    """Train with the sites of a federation; a run that was stopped or killed goes on."""
    from siafu.sites.coordinator import federate as run

    with _callbacks() as callbacks:
        found = run(
            config, addresses=dict(map(address_of, address or [])), out=out, callbacks=callbacks
        ).metrics
    _print_metrics(found, as_json, again=f"siafu federate {config}")
    _exit_if_stopped(callbacks, found)


@functions.command("package")
def package(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write into.")] = Path("lambda"),
    architecture: Annotated[str, typer.Option(help="x86_64 or arm64.")] = "x86_64",
    memory_mb: Annotated[int, typer.Option(help="Memory of the function.")] = 1769,
    python: Annotated[str, typer.Option(help="The function's Python, 3.12 or newer.")] = "3.13",
    as_json: Json = False,
) -> None:
    """Write the zip of the worker for AWS Lambda, and an AWS SAM template that deploys it."""
    from siafu.workers.lambda_package import LambdaConfig, write_package, write_sam

    function = LambdaConfig(architecture=architecture, memory_mb=memory_mb, python=python)  # type: ignore[arg-type]
    size = write_package(out / "worker.zip", function=function)
    write_sam(out / "template.json", package=out / "worker.zip", function=function)
    found = {"package": str(out / "worker.zip"), "template": str(out / "template.json"), "bytes": size}
    text = (
        f"wrote {found['package']} ({size:,} bytes) and {found['template']}\n"
        f"deploy it with: sam deploy --guided --template-file {found['template']}\n"
        "it asks for LeaseKey, the key that leases are signed with (make one: openssl rand -hex 32), and for "
        "LeaseAddresses, the hosts and networks that the function may dial"
    )
    _print(found, as_json, text)


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
    edges: Annotated[
        Path | None, typer.Option(help="Parquet, CSV, TSV, .npy, .npz, or an OGB folder.")
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="Edges with times, of a graph that changes: Parquet, CSV, TSV, .npz.")
    ] = None,
    step: Annotated[float | None, typer.Option(help="Events: the length of a step of time.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Events: how many steps to cut time into, instead.")
    ] = None,
    features: Annotated[Path | None, typer.Option(help="Parquet, CSV or .npy.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Parquet, CSV or .npy.")] = None,
    split: Annotated[Path | None, typer.Option(help="0 train, 1 validation, 2 test, 3 none.")] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add reverse edges, drop repeated ones.")
    ] = False,
    feature_dtype: Annotated[
        FeatureDType, typer.Option(help="How features are stored.")
    ] = FeatureDType.float32,
    label_kind: Annotated[
        LabelKind | None, typer.Option(help="What labels are; needed where whole numbers leave it open.")
    ] = None,
    max_line_bytes: Annotated[int, typer.Option(min=1 << 10, help="The longest line of a text.")] = 1 << 22,
    max_ratio: Annotated[
        int, typer.Option(min=1, help="Data beyond 1 GiB may unpack to so many times their file.")
    ] = 500,
    max_nodes: Annotated[
        int | None,
        typer.Option(min=1, help="The most nodes that a bare count may claim [default: 100 an edge]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn tables of edges or of events, features and labels into a store."""
    from siafu.data.importing import Limits
    from siafu.data.importing.column_roles import format_column_roles
    from siafu.results.progress import LiveProgress

    how: dict[str, Any] = {
        "label_kind": label_kind and label_kind.value,
        "limits": Limits(max_line_bytes, max_ratio, max_nodes),
    }
    _check_import(edges, events, split, {"--step": step, "--steps": steps}, feature_dtype)
    with LiveProgress() as progress:
        store: Any
        if events is not None:
            from siafu.data.importing import import_events

            store = import_events(
                out,
                events=events,
                step=step,
                steps=steps,
                features=features,
                labels=labels,
                undirected=undirected,
                progress=progress,
                say=_say,
                **how,
            )
        else:
            from siafu.data.importing import import_graph

            assert edges is not None
            store = import_graph(
                out,
                edges=edges,
                features=features,
                labels=labels,
                split=split,
                undirected=undirected,
                feature_dtype=feature_dtype.value,
                progress=progress,
                **how,
            )
    about, columns = store.describe(), store.manifest.provenance.columns
    for line in format_column_roles(columns):
        _say(f"read {line}")
    found = {"store": str(out), **about, "columns": columns}
    _print(found, as_json, "\n".join([f"wrote {out}", *_aligned(about)]))


def _check_import(
    edges: Path | None,
    events: Path | None,
    split: Path | None,
    of_events: dict[str, Any],
    feature_dtype: FeatureDType,
) -> None:
    """Refuse options that do not go together."""
    if (edges is None) == (events is None):
        raise WrongUse("give either --edges, or --events for a graph that changes over time")
    given = [option for option, value in of_events.items() if value is not None]
    if events is None and given:
        raise WrongUse(f"{given[0]} cuts the time of --events; edges have none")
    if events is not None and len(given) == 2:
        raise WrongUse("give either --step or --steps")
    if events is not None and split is not None:
        raise WrongUse("--split goes with --edges; a graph that changes over time is split by time")
    if events is not None and feature_dtype is not FeatureDType.float32:
        raise WrongUse("--feature-dtype goes with --edges; features beside events are kept in float32")


@app.command()
def info(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A store.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compute every checksum anew.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a store holds."""
    from siafu.data.importing.column_roles import format_column_roles
    from siafu.store import open_any
    from siafu.store_partitions import list_partitions

    store = open_any(path)
    if verify:
        store.verify()
    partitions = list_partitions(path, verify=verify)
    about = store.describe() | {"partitions": partitions} | ({"verified": True} if verify else {})
    shown = about | {"partitions": ", ".join(partitions) or None}
    columns = store.manifest.provenance.columns
    lines = [*_aligned(shown), *(f"read {line}" for line in format_column_roles(columns))]
    _print({"store": str(path), **about, "columns": columns}, as_json, "\n".join(lines))


@app.command()
def partition(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A store.")],
    parts: Annotated[int, typer.Option(help="Number of parts: one a rank.")],
    by: Annotated[
        str, typer.Option(help="stream, metis, kaminpar, hash, or a file with the part of each node.")
    ] = "stream",
    fold: Annotated[int, typer.Option(help="Which split's training nodes are balanced.")] = 0,
    reorder: Annotated[
        Reorder,
        typer.Option(help="Put neighbours near each other; off saves time where there are no communities."),
    ] = Reorder.auto,
    as_json: Json = False,
) -> None:
    """Cut a store into parts, one for each rank; "siafu train --ranks N" does so by itself where there are none."""
    from siafu.results.progress import LiveProgress
    from siafu.store_partitions import partition_store

    with LiveProgress() as progress:
        about = partition_store(
            path, parts=parts, by=by, fold=fold, reorder=reorder.value, say=_say, progress=progress
        )
    _print({"store": str(path), **about}, as_json, "\n".join(_aligned(about)))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has, and what is missing."""
    from dataclasses import asdict

    from siafu.doctor import examine

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
    from siafu.config import build, from_assignments, merge, read_toml

    try:
        layers = [read_toml(config) if config else {}, from_assignments(sets or []), _given(flags)]
        build(*layers)
    except ValueError as error:
        raise WrongUse(str(error)) from None
    return merge(*layers)


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _given(value) if isinstance(value, dict) else value for key, value in flags.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


@contextmanager
def _callbacks() -> "Iterator[Callbacks]":
    """Show progress, and let the first SIGTERM or Ctrl-C stop the run at the end of its epoch."""
    from siafu.results.progress import TrainingProgress
    from siafu.training.procedure import Callbacks

    notice = "stopping after this epoch; once more to stop at once"
    with deferred_stop(notice) as stop, TrainingProgress() as progress:
        yield Callbacks(
            progress.epoch, lambda: stop.reason, progress=progress, say=_say, on_training=stop.begin
        )


def _exit_if_stopped(callbacks: "Callbacks", found: dict[str, Any]) -> None:
    """End with the exit code of the signal that stopped the run here or on another rank, or came as it ended."""
    if code := exit_code(callbacks.should_stop() or found["stopped_by"]):
        raise typer.Exit(code)


def _print_metrics(found: dict[str, Any], as_json: bool, *, again: str) -> None:
    if not found["finished"]:
        stopped = f"stopped by {found['stopped_by']} after epoch {found['epochs']}"
        print(
            escape_control_chars(f"{stopped}; go on with: {again}"),
            file=sys.stderr if as_json else sys.stdout,
        )
    if as_json:
        print(_json(found))
    elif found["finished"]:
        print(escape_control_chars("\n".join(_summary(found))))


def _summary(found: dict[str, Any]) -> list[str]:
    """What a run reached, in a few lines."""
    from siafu.results.format import fmt_bytes, fmt_seconds

    many = f", mean of {found['seeds']} seeds" if "seeds" in found else ""
    lines = [f"{found['model']:8} {_scores(found, found['metric'])}{many}"]
    if "baseline" in found:
        without = found["baseline"]
        lines.append(f"{without['model']:8} {_scores(without, found['metric'])} (the same without the graph)")
    kept = f", the weights of epoch {found['best_epoch']}" if found["best_epoch"] and not many else ""
    time = f"{found['epochs']:.0f} epochs of {fmt_seconds(found['epoch_seconds'])}{kept}"
    lines.append(f"{'time':8} {time}; peak memory {fmt_bytes(found['peak_rss_bytes'])}")
    return [*lines, f"{'run':8} {found['run']}", f"{'next':8} siafu report {found['run']}"]


def _scores(found: dict[str, Any], metric: str) -> str:
    from siafu.results.format import fmt_metric, fmt_score

    test, val = (
        fmt_score(found[f"{split}_score"], metric, std=found.get(f"{split}_score_std"))
        for split in ("test", "val")
    )
    return f"test {fmt_metric(metric)} {test}" + (
        f", validation {val}" if found["val_score"] is not None else ""
    )


def _json(found: dict[str, Any]) -> str:
    return json.dumps(found, allow_nan=False)


def _number(path: Path) -> int:
    """The number at the end of a folder's name."""
    return int(path.name.rpartition("-")[2])


def _print(found: dict[str, Any], as_json: bool, text: str) -> None:
    print(_json(found) if as_json else escape_control_chars(text))


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
    print(escape_control_chars(text), file=sys.stderr)
