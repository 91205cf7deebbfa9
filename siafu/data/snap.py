"""Read data sets of the Stanford Network Analysis Project: GitHub developers (MUSAE), and ratings over time."""

import csv
import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siafu.data.random_split import random_splits
from siafu.data.text_files import both_directions, lines, one_file, wrong

SPLIT = "no public split in this archive: made 10 of 60 / 20 / 20 % with seed 0"
Arrays = dict[str, NDArray[Any]]


def read_musae(folder: Path) -> Arrays:
    """Read ``…_edges.csv`` (id_1, id_2), ``…_features.json`` (id: words), ``…_target.csv`` (id, name, class)."""
    target = one_file(folder, "_target.csv")
    rows = _table(target, "id", "name", "ml_target")
    people = sorted((int(number), name, int(label)) for number, name, label in rows)
    if [person[0] for person in people] != list(range(len(people))) or not people:
        raise ValueError(f"{target.name}: {len(people)} ids; expected 0, 1, 2 and so on, each once")
    edges = one_file(folder, "_edges.csv")
    pairs = [(int(one), int(other)) for one, other in _table(edges, "id_1", "id_2")]
    if any(end >= len(people) for pair in pairs for end in pair):
        raise ValueError(f"{edges.name}: names somebody who is not among the {len(people)} of {target.name}")
    y = np.array([person[2] for person in people])
    return {
        "edge_index": both_directions(pairs),
        "undirected": np.array(1, dtype=np.uint8),
        "num_nodes": np.array(len(people)),
        **_words(one_file(folder, "_features.json"), len(people)),
        "y": y,
        **random_splits(y, seed=0, folds=10),
        "node_names": np.array([person[1] for person in people]),
        "note": np.array(f"SNAP MUSAE; {SPLIT}"),
    }


def read_ratings(path: Path, *, limit_bytes: int) -> Arrays:
    """Read a ``.csv.gz`` of source, target, rating, time: the arrays of a graph that changes over time."""
    try:
        with gzip.open(path) as file:
            text = file.read(limit_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path.name}: not a whole gzip file ({error}); download it again") from error
    if len(text) > limit_bytes:
        raise ValueError(
            f"{path.name}: unpacks to more than {limit_bytes} bytes; it is not what it should be"
        )
    try:
        table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path.name}: expected four numbers a line ({error})") from None
    if table.shape[1:] != (4,) or not len(table):
        raise ValueError(f"{path.name}: {table.shape[1]} columns; expected source, target, rating, time")
    table = table[np.argsort(table[:, 3], kind="stable")]
    names, rows = np.unique(table[:, :2].astype(np.int64), return_inverse=True)
    src, dst = rows.reshape(-1, 2).T.astype(np.int32)
    return {
        **{"src": src, "dst": dst, "t": table[:, 3], "w": table[:, 2].astype(np.float32)},
        **{
            "num_nodes": np.array(len(names)),
            "node_names": names,
            "note": np.array("SNAP ratings over time"),
        },
    }


def _table(path: Path, *columns: str) -> list[list[str]]:
    """Read those columns of a csv file whose first line names them; all but ``name`` are whole numbers."""
    rows: list[list[str]] = []
    places: list[int] | None = None
    for number, line in lines(path):
        fields = next(csv.reader([line]))
        if places is None:
            if not set(columns) <= set(fields):
                raise wrong(path, number, f"a line that names the columns {', '.join(columns)}")
            places = [fields.index(column) for column in columns]
            continue
        row = [fields[place] if place < len(fields) else "" for place in places]
        if not all(_is_number(text) or column == "name" for column, text in zip(columns, row, strict=True)):
            raise wrong(path, number, f"a line of {', '.join(columns)}")
        rows.append(row)
    return rows


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _words(path: Path, rows: int) -> Arrays:
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
        listed = [sorted(set(words.get(str(row), []))) for row in range(rows)]
        columns = np.array([word for row in listed for word in row], dtype=np.int32)
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path.name}: expected an object of lists of numbers ({error})") from None
    if len(columns) == 0 or columns.min() < 0:
        raise ValueError(f"{path.name}: expected words numbered from 0, and at least one")
    return {
        "x_indptr": np.concatenate([[0], np.cumsum([len(row) for row in listed])]).astype(np.int64),
        "x_indices": columns,
        "x_data": np.ones(len(columns), dtype=np.float32),
        "x_shape": np.array([rows, columns.max() + 1], dtype=np.int64),
    }
