"""The role of each column and array of an import, for messages and for the provenance of a store."""

from collections.abc import Mapping, Sequence

import numpy as np

from siafu.data.columns.kinds import Found
from siafu.data.importing.edges import TableEdges
from siafu.data.importing.features import FeatureSource, TableFeatures
from siafu.data.importing.inputs import Inputs
from siafu.data.importing.labels import Labels
from siafu.data.importing.node_ids import IdMap, RowNumbers
from siafu.data.importing.nodes import NodeTable

Columns = dict[str, dict[str, str]]
_SHOWN = 4
_NO_KINDS: Mapping[str, Found] = {}


NODE_COLUMNS, EDGE_COLUMNS = "node columns", "edge columns"  # keys under which each column has its own entry


def column_roles(
    inputs: Inputs,
    ids: RowNumbers | IdMap,
    kinds: Mapping[str, Found] = _NO_KINDS,
    *,
    events: bool = False,
) -> Columns:
    """Return the columns of each input by role, such as ``{"edges": {"src": "from", "dst": "to"}}``.

    Typed columns of nodes, of ``kinds``, and of edges stand by name, with kind and a note on their values.
    """
    found = {"events" if events else "edges": inputs.edges.roles | {"ids": _kind_of(ids)}}
    if inputs.features is not None:
        found["features"] = _of_features(inputs.features)
    if inputs.nodes is not None:
        found["nodes"] = {"id": inputs.nodes.id_column}
        found[NODE_COLUMNS] = {name: _described(each) for name, each in kinds.items()}
    if isinstance(inputs.edges, TableEdges) and inputs.edges.more is not None and inputs.edges.more.found:
        found[EDGE_COLUMNS] = {name: _described(each) for name, each in inputs.edges.more.found.items()}
    for name, values, role in (("labels", inputs.labels, "y"), ("split", inputs.split, "split")):
        if isinstance(values, NodeTable):
            found[name] = {"id": values.id_column, role: _listed(values.columns)}
        elif isinstance(values, Labels | dict):
            found[name] = {role: "an array, a row a node"}
    return found


def label_description(y: np.ndarray) -> str:
    """Describe the kind of the labels."""
    if y.dtype.kind == "f":
        return "numbers"
    if y.dtype == np.uint8:
        return f"{y.shape[1]} labels of 0 or 1"
    return f"{int(y.max(initial=-1)) + 1} classes"


def format_column_roles(columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Format a line per input for people to read, then a line per typed column."""
    lines = [
        f"{name}: " + ", ".join(f"{role} = {column}" for role, column in roles.items())
        for name, roles in columns.items()
        if name not in (NODE_COLUMNS, EDGE_COLUMNS)
    ]
    for table in (NODE_COLUMNS, EDGE_COLUMNS):
        roles = columns.get(table, {})
        width = max(map(len, roles), default=0)
        of = table.split()[0]
        lines += [f"{of} column {name.ljust(width)}  {about}" for name, about in roles.items()]
    return lines


def _described(found: Found) -> str:
    kind = "ignored" if found.schema.kind == "ignore" else found.schema.kind
    return f"{kind}: {found.note}" if found.note else kind


def _kind_of(ids: RowNumbers | IdMap) -> str:
    if isinstance(ids, RowNumbers):
        return "row numbers"
    return "strings" if ids.strings else "integers of your own"


def _of_features(features: FeatureSource) -> dict[str, str]:
    if isinstance(features, TableFeatures):
        of_id = {} if features.id_column is None else {"id": features.id_column}
        return of_id | {"x": _listed(features.columns)}
    return {"x": f"an array of {len(features.columns)} columns"}


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{len(names)} columns, {names[0]} to {names[-1]}"
