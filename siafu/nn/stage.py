"""The tensor work of a model between two aggregates: a stage. Row by row, on any rows, without a graph."""

from collections.abc import Mapping

import torch
from torch import Tensor

from siafu.graph import Block
from siafu.nn.layer import Layer
from siafu.nn.model import Gnn


def stage(
    model: Gnn, number: int, rows: Mapping[str, Tensor], *, kept: bool, first: tuple[bool, ...]
) -> tuple[Tensor, Tensor]:
    """What the next layer is given, and what it aggregates: h and z; both are the outputs after the last layer.

    ``first`` says of each layer whether it aggregates before it projects. ``rows`` are ``m``, ``x``, ``h1``, … and
    ``row_id``, as :class:`siafu.workers.task.Task` has them; they are not overwritten. The same as ``model`` does
    between its aggregates.
    """
    row_id = rows["row_id"]
    if number == 0:
        h = model.drops[0](rows["x"], row_id)
    else:
        h = _after_aggregate(
            model, number - 1, rows, joined=first[number - 1] or (number == 1 and kept), kept=kept
        )
    if number < len(model.layers):
        return h, h if first[number] else _layer(model, number).project(h)
    if model.head is not None:
        earlier = [rows[f"h{place}"] for place in range(1, number)]
        few = _no_edges(row_id)
        h = model.head(few, model.joined([*earlier, h], few.num_dst))
    return h, h


def _after_aggregate(
    model: Gnn, place: int, rows: Mapping[str, Tensor], *, joined: bool, kept: bool
) -> Tensor:
    """The rest of a layer once its aggregate is there, and what follows it."""
    layer, few = _layer(model, place), _no_edges(rows["row_id"])
    m_dst, x_dst = rows["m"], rows.get("x")
    x_given = m_dst.new_empty(m_dst.shape[0], 0) if x_dst is None else x_dst
    x_read = x_given
    if place == 0 and kept:
        m_dst = model.drops[0](m_dst, rows["row_id"])
    if place == 0 and layer.reads_dst:  # the skip connection reads the inputs as they are
        x_read = model.drops[0](x_given, rows["row_id"])
    z_dst = layer.join(m_dst, x_read) if joined else layer.update(m_dst, x_read)
    return model.finish(place, few, z_dst, x_given, in_place=z_dst is not rows["m"])


def _layer(model: Gnn, place: int) -> Layer:
    layer = model.layers[place]
    assert isinstance(layer, Layer)
    return layer


def _no_edges(row_id: Tensor) -> Block:
    """A block of some nodes without their edges."""
    indptr = torch.zeros(row_id.numel() + 1, dtype=torch.int64)
    return Block(indptr, torch.empty(0, dtype=torch.int32), row_id.numel(), node_id=row_id)
