"""Encode the columns of a graph as features: statistics come from training nodes, and a run keeps them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from siafu.columns import Columns
from siafu.data.columns.encoders import ENCODERS, AnyEncoder
from siafu.graph import Graph
from siafu.native import SparseRows
from siafu.sparse_input import MOST_SPARSE

_CHUNK_VALUES = 1 << 23


class Encoder(BaseModel):
    """The fitted encoders of all columns, in the order of their features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: tuple[AnyEncoder, ...]

    @property
    def features(self) -> list[str]:
        """The names of all features."""
        return [name for each in self.columns for name in each.features]

    @staticmethod
    def parse(fields: dict[str, Any], what: str) -> "Encoder":
        """Read an encoder from JSON; ``what`` names it in errors."""
        try:
            return Encoder.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"{what}: {place}: {first['msg']}; put the right file back") from None

    def matching(self, columns: Columns, what: str) -> Columns:
        """Return the columns in the order of the encoders; refuse missing, unknown and different ones."""
        wanted, found = {each.name: each.kind for each in self.columns}, {c.type.name: c for c in columns}
        missing = [name for name in wanted if name not in found]
        unknown = [name for name in found if name not in wanted]
        if missing or unknown:
            problems = [f"lacks the column {name!r}" for name in missing[:1]]
            problems += [f"has the column {name!r}, which the model does not know" for name in unknown[:1]]
            raise ValueError(
                f"{what}: {' and '.join(problems)}; the model was trained on {', '.join(wanted)}"
            )
        for name, kind in wanted.items():
            if found[name].type.kind != kind:
                raise ValueError(
                    f"{what}: column {name!r} is a {found[name].type.kind} here, but a {kind} in the training data; "
                    "import it with the schema of the training data (siafu import --schema, which --schema-out "
                    "writes)"
                )
        return tuple(found[name] for name in wanted)


def fit_encoder(columns: Columns, train_rows: np.ndarray | None = None) -> Encoder:
    """Fit encoders to the values of training nodes; None: of all nodes."""
    train = columns if train_rows is None else [column.take(train_rows) for column in columns]
    return Encoder(columns=tuple(ENCODERS[column.type.kind].fit(column) for column in train))


def encode_columns(columns: Columns, encoder: Encoder, what: str) -> Tensor | SparseRows:
    """Encode columns as (N, F) float32; sparse rows if most numbers are zero. ``what`` names them in errors."""
    columns = encoder.matching(columns, what)
    _check_lists(columns, encoder, what)
    columns = tuple(each.placed(column) for column, each in zip(columns, encoder.columns, strict=True))
    widths = [len(each.features) for each in encoder.columns]
    rows, width = len(columns[0]), sum(widths)
    step = max(1, _CHUNK_VALUES // max(1, width))
    parts: list[Tensor | SparseRows] = []
    for start in range(0, rows, step):
        x = _encode_rows(columns, encoder, widths, slice(start, min(rows, start + step)))
        sparse = isinstance(parts[0], SparseRows) if parts else _is_sparse(x)
        parts.append(SparseRows.from_dense(x) if sparse else x)
    if isinstance(parts[0], Tensor):
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    return _joined([part for part in parts if isinstance(part, SparseRows)])


def encode_graph(graph: Graph, encoder: Encoder | None = None) -> tuple[Graph, Encoder | None]:
    """Return a graph with its columns encoded as ``x``, and the encoder, fitted to training nodes if not given.

    A graph without columns comes back as it is.
    """
    if graph.columns is None:
        return graph, None
    if encoder is None:
        mask = graph.train_mask
        train = mask.nonzero()[:, 0].numpy() if mask is not None and bool(mask.any()) else None
        encoder = fit_encoder(graph.columns, train)
    x = encode_columns(graph.columns, encoder, graph.name)
    return replace(graph, x=x, columns=None), encoder


def _encode_rows(columns: Columns, encoder: Encoder, widths: Sequence[int], rows: slice) -> Tensor:
    """Encode a range of rows, (n, F)."""
    x = np.zeros((rows.stop - rows.start, sum(widths)), dtype=np.float32)
    end = 0
    for column, each, width in zip(columns, encoder.columns, widths, strict=True):
        each.encode(column.take(rows), x[:, end : end + width])
        end += width
    return torch.from_numpy(x)


def _check_lists(columns: Columns, encoder: Encoder, what: str) -> None:
    for column, each in zip(columns, encoder.columns, strict=True):
        if each.kind == "list" and column.values.shape[1] != len(each.scalings):
            raise ValueError(
                f"{what}: column {each.name!r} has lists of {column.values.shape[1]} numbers; the model was trained on "
                f"lists of {len(each.scalings)}"
            )


def _is_sparse(x: Tensor) -> bool:
    return int(x.count_nonzero()) <= MOST_SPARSE * x.numel()


def _joined(parts: Sequence[SparseRows]) -> SparseRows:
    """Join sparse rows below each other."""
    ends = np.cumsum([0, *(part.values.numel() for part in parts)])
    offsets = [part.indptr[1:] + int(end) for part, end in zip(parts, ends[:-1], strict=True)]
    return SparseRows(
        torch.cat([parts[0].indptr[:1], *offsets]),
        torch.cat([part.indices for part in parts]),
        torch.cat([part.values for part in parts]),
        parts[0].width,
    )
