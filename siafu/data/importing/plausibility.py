"""Checks that a file is what it was given as: edges, nodes, labels or a split."""

import numpy as np
import pyarrow as pa

from siafu.data.columns.schema import EdgeSchema
from siafu.data.importing.tables import Table
from siafu.store.splits import MASKS

_RARE = 0.05  # a share of ones below which 0 and 1 are labels, not a split
_FEW_EDGES = 20


def refuse_edge_table(table: Table, role: str) -> None:
    """Refuse a table of nodes that has the ends of edges; ``role`` is the option that named it."""
    if {"src", "dst"} <= set(table.names):
        raise ValueError(
            f"{table.path} was given as --{role}, but has columns src and dst, as edges have; did you mean --edges?"
        )


def refuse_node_table(table: Table, schema: EdgeSchema) -> None:
    """Refuse a table of edges without named ends whose first two columns cannot be ends."""
    if schema.source is not None or {"src", "dst"} & set(table.names) or len(table.names) < 2:
        return
    first, second = table.names[:2]
    if first == "id" and table.header | (not table.csv):
        raise ValueError(
            f"{table.path} was given as --edges, and {first!r} and {second!r} would be the ends; did you mean "
            "--nodes? Else name the columns of the ends with --source and --target"
        )
    for name in (first, second):
        kind = table.type_of(name)
        if pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
            raise ValueError(
                f"{table.path} was given as --edges, but column {name!r}, which would be an end, holds {kind}; did you "
                "mean --nodes? Else name the columns of the ends with --source and --target"
            )


def refuse_node_rows(sources: np.ndarray, targets: np.ndarray, columns: tuple[str, str], what: str) -> None:
    """Refuse edges that look like rows of nodes: each source stands once, and no source is a target.

    ``sources`` and ``targets`` count the edges of each node; ``columns`` were not named by the user.
    """
    num_edges = int(sources.sum())
    once = int(sources.max(initial=0)) == 1 and not bool(((sources > 0) & (targets > 0)).any())
    if once and num_edges >= _FEW_EDGES and np.count_nonzero(targets) <= num_edges / 2:
        raise ValueError(
            f"{what} was given as --edges, but each of the {num_edges:,} values of {columns[0]!r} stands once and "
            f"none occurs in {columns[1]!r}, as in a table of nodes; did you mean --nodes? Else name the columns of "
            "the ends with --source and --target"
        )


def refuse_labels_as_split(masks: dict[str, np.ndarray], *, labelled: bool, named: bool, what: str) -> None:
    """Refuse a split of 0 and 1 alone that looks like labels; ``named`` if its column is called split."""
    train, val, test = (masks[name] for name in MASKS)
    ones, both = int(val.sum()), int(train.sum() + val.sum())
    if named or test.any() or not ones or ones == both:
        return
    if not labelled or ones < _RARE * both:
        raise ValueError(
            f"{what}: split holds 0 and 1 with {100 * ones / both:.2g} % ones, that is no test node; did you mean "
            "--labels? Expected 0 train, 1 validation, 2 test, 3 none"
        )
