"""The commands about data: ``data``, ``import``, ``info`` and ``partition``."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from siafu.cli.errors import WrongUse
from siafu.cli.output import Json, aligned, format_value, print_result, say, table

T = TypeVar("T")


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


class Combine(StrEnum):
    """How repeated edges become one."""

    first = "first"
    sum = "sum"
    mean = "mean"


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
        list[Path] | None,
        typer.Option(help="Parquet, CSV, TSV (several with the same columns), .npy, .npz, or an OGB folder."),
    ] = None,
    nodes: Annotated[
        list[Path] | None,
        typer.Option(
            help="Tables of nodes with columns of any kind: numbers, categories, dates, lists, text."
        ),
    ] = None,
    events: Annotated[
        list[Path] | None,
        typer.Option(help="Edges with times, of a graph that changes: Parquet, CSV, TSV, .npz."),
    ] = None,
    step: Annotated[float | None, typer.Option(help="Events: the length of a step of time.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Events: how many steps to cut time into, instead.")
    ] = None,
    features: Annotated[list[Path] | None, typer.Option(help="Numbers: Parquet, CSV or .npy.")] = None,
    labels: Annotated[list[Path] | None, typer.Option(help="Parquet, CSV or .npy.")] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|SHARES",
            help="0 train, 1 validation, 2 test, 3 none; or shares of the labelled nodes such as 80/10/10 "
            "[default: 60/20/20].",
        ),
    ] = None,
    split_seed: Annotated[int, typer.Option(min=0, help="The seed of a split by shares.")] = 0,
    id_column: Annotated[
        str | None, typer.Option("--id", help="The column of ids in tables of nodes and labels.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels, in --nodes or --labels.")] = None,
    split_column: Annotated[str | None, typer.Option(help="The column of the split, in --nodes.")] = None,
    source: Annotated[str | None, typer.Option(help="The column of sources, in --edges.")] = None,
    target: Annotated[str | None, typer.Option(help="The column of targets, in --edges.")] = None,
    weight_column: Annotated[
        str | None, typer.Option(help="The column of edge weights [default: weight, if there is one].")
    ] = None,
    combine: Annotated[
        Combine | None, typer.Option(help="Make repeated edges one: the first weight, their sum or mean.")
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="A file (TOML) that says what columns are.")] = None,
    schema_out: Annotated[
        Path | None, typer.Option(help="Write the schema that was found, to be edited or used again.")
    ] = None,
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
    """Turn tables of edges or of events, nodes, features and labels into a store."""
    from siafu.data.importing import Limits
    from siafu.data.importing.column_roles import format_column_roles
    from siafu.results.progress import LiveProgress

    events_path, features_path = _only_one("--events", events), _only_one("--features", features)
    labels_path, split_given = _only_one("--labels", labels), _only_one("--split", split)
    how: dict[str, Any] = {
        "label_kind": label_kind and label_kind.value,
        "limits": Limits(max_line_bytes, max_ratio, max_nodes),
        "features": features_path,
        "labels": labels_path,
        "undirected": undirected,
        "say": say,
    }
    how_edges: dict[str, Any] = {"combine": combine and combine.value, "schema_out": schema_out}
    said = {
        "nodes": {"id": id_column, "label": label, "split": split_column},
        "edges": {"source": source, "target": target, "weight": weight_column},
    }
    of_edges: dict[str, Any] = {
        "--nodes": nodes,
        "--combine": combine,
        "--schema": schema,
        "--schema-out": schema_out,
    }
    of_edges |= {"--id": id_column, "--label": label, "--split-column": split_column, "--source": source}
    of_edges |= {"--target": target, "--weight-column": weight_column, "--split": split}
    _check_import(edges, events_path, of_edges, {"--step": step, "--steps": steps})
    if split_column is not None and split is not None:
        raise WrongUse("give either --split or --split-column")
    if events is not None and (feature_dtype, feature_layout) != (FeatureDType.float32, FeatureLayout.auto):
        raise WrongUse(
            "--feature-dtype and --feature-layout go with --edges; features beside events are dense float32"
        )
    with LiveProgress() as progress:
        store: Any
        if events_path is not None:
            from siafu.data.importing import import_events

            store = import_events(out, events=events_path, step=step, steps=steps, progress=progress, **how)
        else:
            from siafu.data.importing import import_graph

            store = import_graph(
                out,
                edges=edges or [],
                nodes=nodes,
                split=split_given,
                split_seed=split_seed,
                schema=_schema(schema, said),
                **how_edges,
                feature_dtype=feature_dtype.value,
                feature_layout=feature_layout.value,
                progress=progress,
                **how,
            )
    about, columns = store.describe(), store.manifest.provenance.columns
    for line in format_column_roles(columns):
        say(line if " column " in line.partition(":")[0] else f"read {line}")
    found = {"store": str(out), **about, "columns": columns}
    print_result(found, as_json, "\n".join([f"wrote {out}", *aligned(about)]))


def _only_one(option: str, given: list[T] | None) -> T | None:
    """Return the value of an option that is given once; several would be dropped in silence."""
    if given is not None and len(given) > 1:
        raise WrongUse(f"{option} was given {len(given)} times; expected once")
    return given[0] if given else None


def _schema(path: Path | None, said: dict[str, dict[str, str | None]]) -> Any:
    """Read the schema file, if there is one; options come before it."""
    from siafu.data.columns import TableSchema, read_schema

    schema = TableSchema() if path is None else read_schema(path)
    parts = {
        table: getattr(schema, table).model_copy(
            update={key: value for key, value in fields.items() if value is not None}
        )
        for table, fields in said.items()
    }
    return schema.model_copy(update=parts)


def _check_import(
    edges: list[Path] | None,
    events: Path | None,
    of_edges: dict[str, Any],
    of_events: dict[str, Any],
) -> None:
    """Refuse options that do not go together."""
    if bool(edges) == (events is not None):
        raise WrongUse("give either --edges, or --events for a graph that changes over time")
    given = [option for option, value in of_events.items() if value is not None]
    if events is None and given:
        raise WrongUse(f"{given[0]} cuts the time of --events; edges have none")
    if events is not None and len(given) == 2:
        raise WrongUse("give either --step or --steps")
    if events is not None and of_edges["--split"]:
        raise WrongUse("--split goes with --edges; a graph that changes over time is split by time")
    wrong = [option for option, value in of_edges.items() if value]
    if events is not None and wrong:
        raise WrongUse(f"{wrong[0]} goes with --edges; events have features and labels of numbers alone")


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
