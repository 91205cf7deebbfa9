"""Write predictions to a Parquet or CSV file, with the user's own ids and class names."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from torch import Tensor

from siafu.dynamic import DynamicGraph
from siafu.files import write_atomically
from siafu.graph import Graph

_ENDINGS = (".parquet", ".csv")


def check_out(path: Path) -> None:
    """Refuse a file that could not be written, before any work is done for it."""
    if path.suffix.lower() not in _ENDINGS:
        found = f"ends with {path.suffix}" if path.suffix else "has no ending"
        raise ValueError(f"{path}: {found}; expected a name that ends with {' or '.join(_ENDINGS)}")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; make it first, or name another file")
    if path.is_dir():
        raise ValueError(f"{path}: a folder stands there; name another file")


def write_predictions(
    path: Path, graph: Graph | DynamicGraph, predicted: dict[str, Tensor], *, kind: str, names: Sequence[str]
) -> None:
    """Write one row per node: ``id``, then columns of the task.

    Tasks write ``class`` and ``probability``, ``labels`` and ``probability``, ``value``, or ``embedding``. ``names``
    are the class names of the training data; without them, classes are numbers.
    """
    columns: dict[str, pa.Array] = {"id": _ids(graph), **_columns(predicted, names, kind)}
    if "embedding" in predicted:
        columns["embedding"] = _lists(predicted["embedding"])
    _write(path, pa.table(columns))


def write_pairs(path: Path, src: pa.ChunkedArray, dst: pa.ChunkedArray, score: Tensor) -> None:
    """Write one row per pair: ``src`` and ``dst`` as given, ``score`` (a logit), and ``probability`` of an edge."""
    scores = {"score": score.numpy(), "probability": score.sigmoid().numpy()}
    _write(path, pa.table({"src": src, "dst": dst, **scores}))


def _write(path: Path, table: pa.Table) -> None:
    check_out(path)
    buffer = pa.BufferOutputStream()
    if path.suffix.lower() == ".csv":
        pa.csv.write_csv(_flat(table), buffer)
    else:
        pq.write_table(table, buffer)
    write_atomically(path, buffer.getvalue().to_pybytes())


def _flat(table: pa.Table) -> pa.Table:
    """Replace list columns, which CSV does not have, by one column per element, such as ``name_0``."""
    names, columns = list[str](), list[pa.ChunkedArray]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_fixed_size_list(column.type):
            names, columns = [*names, name], [*columns, column]
            continue
        rows = column.combine_chunks().flatten().to_numpy().reshape(len(table), column.type.list_size)
        names += [f"{name}_{place}" for place in range(rows.shape[1])]
        columns += [
            pa.chunked_array([np.ascontiguousarray(rows[:, place])]) for place in range(rows.shape[1])
        ]
    return pa.table(columns, names=names)


def _columns(predicted: dict[str, Tensor], names: Sequence[str], kind: str) -> dict[str, pa.Array]:
    output = predicted["output"]
    match kind:
        case "class":
            guess = pa.array(predicted["class"].numpy())
            named = pa.array(names).take(guess) if names else guess
            return {"class": named, "probability": _lists(output.softmax(1))}
        case "labels":
            return {"labels": _lists((output > 0).byte()), "probability": _lists(output.sigmoid())}
        case "link":
            return {"embedding": _lists(output)}
    return {"value": pa.array(output[:, 0].numpy()) if output.shape[1] == 1 else _lists(output)}


def _ids(graph: Graph | DynamicGraph) -> pa.Array:
    return graph.node_names if graph.node_names is not None else pa.array(np.arange(graph.num_nodes))


def _lists(rows: Tensor) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.contiguous().view(-1).numpy()), rows.shape[1])
