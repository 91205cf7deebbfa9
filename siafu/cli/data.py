"""The commands about data: ``data``, ``import``, ``info`` and ``partition``."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from siafu.cli.errors import WrongUse
from siafu.cli.output import Json, aligned, format_value, print_result, say, table


class FeatureDType(StrEnum):
    """The numeric types of stored features."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


class FeatureLayout(StrEnum):
    """The layouts of stored features."""

    auto = "auto"
    sparse = "sparse"
    dense = "dense"


class LabelKind(StrEnum):
    """The kinds of labels."""

    class_ = "class"
    multilabel = "multilabel"
    number = "number"


class Reorder(StrEnum):
    """Whether nodes are ordered for locality."""

    auto = "auto"
    on = "on"
    off = "off"


def data(as_json: Json = False) -> None:
    """List the data sets on this machine, and others that are available."""
    from dataclasses import asdict

    from siafu.data import available, data_home

    home = data_home(os.environ)
    rows = available(home)
    lines = [f"data home: {home} (set SIAFU_DATA to change it)", ""]
    lines += table([{key: format_value(value) for key, value in asdict(row).items()} for row in rows])
    print_result({"home": str(home), "data": [asdict(row) for row in rows]}, as_json, "\n".join(lines))


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
    feature_layout: Annotated[
        FeatureLayout,
        typer.Option(help="Sparse stores non-zero features alone; auto: if at most 1 in 8 is not zero."),
    ] = FeatureLayout.auto,
    label_kind: Annotated[
        LabelKind | None,
        typer.Option(help="Kind of labels; needed where whole numbers may be classes or values."),
    ] = None,
    max_line_bytes: Annotated[int, typer.Option(min=1 << 10, help="The longest line of a text.")] = 1 << 22,
    max_ratio: Annotated[
        int, typer.Option(min=1, help="Data beyond 1 GiB may unpack to so many times their file.")
    ] = 500,
    max_nodes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Limit for a number of nodes that only a count gives [default: 100 per edge]."
        ),
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
    _check_import(edges, events, split, {"--step": step, "--steps": steps})
    if events is not None and (feature_dtype, feature_layout) != (FeatureDType.float32, FeatureLayout.auto):
        raise WrongUse(
            "--feature-dtype and --feature-layout go with --edges; features beside events are dense float32"
        )
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
                say=say,
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
                feature_layout=feature_layout.value,
                progress=progress,
                **how,
            )
    about, columns = store.describe(), store.manifest.provenance.columns
    for line in format_column_roles(columns):
        say(f"read {line}")
    found = {"store": str(out), **about, "columns": columns}
    print_result(found, as_json, "\n".join([f"wrote {out}", *aligned(about)]))


def _check_import(
    edges: Path | None,
    events: Path | None,
    split: Path | None,
    of_events: dict[str, Any],
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


def info(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A store.")],
    verify: Annotated[bool, typer.Option("--verify", help="Compute every checksum anew.")] = False,
    as_json: Json = False,
) -> None:
    """Describe a store."""
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
    lines = [*aligned(shown), *(f"read {line}" for line in format_column_roles(columns))]
    print_result({"store": str(path), **about, "columns": columns}, as_json, "\n".join(lines))


def partition(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="A store.")],
    parts: Annotated[int, typer.Option(help="Number of parts: one a rank.")],
    by: Annotated[
        str, typer.Option(help="stream, metis, kaminpar, hash, or a file with the part of each node.")
    ] = "stream",
    fold: Annotated[int, typer.Option(help="The split whose training nodes are balanced.")] = 0,
    reorder: Annotated[
        Reorder,
        typer.Option(help="Order nodes for locality; off saves time for graphs without communities."),
    ] = Reorder.auto,
    as_json: Json = False,
) -> None:
    """Cut a store into parts, one for each rank; "siafu train --ranks N" does so by itself where there are none."""
    from siafu.results.progress import LiveProgress
    from siafu.store_partitions import partition_store

    with LiveProgress() as progress:
        about = partition_store(
            path, parts=parts, by=by, fold=fold, reorder=reorder.value, say=say, progress=progress
        )
    print_result({"store": str(path), **about}, as_json, "\n".join(aligned(about)))
