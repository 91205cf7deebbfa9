"""Read a user's arrays into tensors, and refuse those that cannot be trained on with the reason."""

import warnings

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

MAX_NODES = 2**31 - 1
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_edges(edges: Tensor, num_nodes: int, name: str) -> None:
    """Refuse edges that name a node outside the graph."""
    if num_nodes > MAX_NODES:
        raise ValueError(
            f"{name}: {num_nodes} nodes; at most {MAX_NODES} fit one graph, so cut it into parts"
        )
    if num_nodes < 1:
        raise ValueError(f"{name}: the graph has no node; expected at least one")
    if edges.numel() == 0:
        return
    low, high = int(edges.min()), int(edges.max())
    if low < 0:
        raise ValueError(f"{name}: edge_index holds {low}; node ids start at 0")
    if high >= num_nodes:
        raise ValueError(
            f"{name}: edge_index names node {high}, but there are {num_nodes} nodes (0 to {num_nodes - 1}); "
            "add its features or drop the edge"
        )


def check_finite(rows: Tensor, what: str) -> None:
    """Refuse NaN and infinite numbers; the error names row and column."""
    for start in range(0, rows.shape[0], 65536):  # by ranges: a memory-mapped array is read once, not copied
        bad = ~torch.isfinite(rows[start : start + 65536])
        if bool(bad.any()):
            row, col = bad.nonzero()[0].tolist()
            found = float(rows[start + row, col])
            raise ValueError(f"{what}: row {start + row}, column {col} is {found}; expected a finite number")


def read_numbers(values: ArrayLike | Tensor, name: str) -> Tensor:
    """Read an array of numbers into a tensor on the CPU."""
    if isinstance(values, Tensor):
        unsigned = values.dtype in (torch.uint16, torch.uint32, torch.uint64)
        return (values.to(torch.int64) if unsigned else values).detach().cpu()
    array = np.asarray(values)
    if array.dtype == object or array.dtype.kind not in "biuf":
        raise ValueError(f"{name} is an array of {array.dtype}; expected numbers")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    with warnings.catch_warnings():  # nobody writes to an array that is mapped for reading
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array, array.dtype.newbyteorder("="), order="C"))


def largest_id(edges: Tensor) -> int:
    """Return the largest node id in the edges; -1 where there are none."""
    return int(edges.max()) if edges.numel() else -1


def read_edges(edge_index: ArrayLike | Tensor, name: str) -> Tensor:
    """Read (2, E) integers of any dtype, sources above targets."""
    edges = read_numbers(edge_index, "edge_index")
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.numel() and edges.dtype not in INTEGERS):
        raise ValueError(
            f"{name}: edge_index is {tuple(edges.shape)} {edges.dtype}; expected two rows of integers, "
            "sources above targets"
        )
    return edges


def read_edge_weight(edge_weight: ArrayLike | Tensor, num_edges: int, name: str) -> Tensor:
    """Read one finite weight per edge, (E,) float32."""
    weight = read_numbers(edge_weight, "edge_weight").to(torch.float32)
    if weight.shape != (num_edges,):
        raise ValueError(f"{name}: edge_weight is {tuple(weight.shape)}; expected ({num_edges},)")
    if not bool(weight.isfinite().all()):
        edge = int((~weight.isfinite()).nonzero()[0])
        raise ValueError(f"{name}: edge_weight[{edge}] is {float(weight[edge])}; expected a finite number")
    return weight


def read_edge_split(edge_split: ArrayLike | Tensor, num_edges: int, name: str) -> Tensor:
    """Read the split of each edge, (E,) uint8: 0 train, 1 validation, 2 test."""
    split = read_numbers(edge_split, "edge_split")
    if split.shape != (num_edges,):
        raise ValueError(f"{name}: edge_split is {tuple(split.shape)}; expected ({num_edges},)")
    bad = ~((split == 0) | (split == 1) | (split == 2))
    if bool(bad.any()):
        edge = int(bad.nonzero()[0])
        raise ValueError(
            f"{name}: edge_split[{edge}] is {split[edge].item()}; expected 0 train, 1 validation or 2 test"
        )
    return split.to(torch.uint8)


def read_distinct_rows(values: ArrayLike | Tensor, num_rows: int, name: str) -> Tensor:
    """Read distinct rows, given as a list of them or as a mask of all rows: (R,) int64."""
    rows = read_numbers(values, name)
    if rows.ndim != 1 or (rows.numel() and rows.is_floating_point()):
        raise ValueError(f"{name} is {tuple(rows.shape)} {rows.dtype}; expected a list of rows, or a mask")
    if rows.dtype == torch.bool:
        if rows.numel() != num_rows:
            raise ValueError(
                f"{name} is a mask of {rows.numel()} rows; expected {num_rows}, one value a node"
            )
        return rows.nonzero()[:, 0]
    rows = rows.long()
    if rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= num_rows):
        found = int(rows.min()) if int(rows.min()) < 0 else int(rows.max())
        raise ValueError(f"{name} names node {found}; expected 0 to {num_rows - 1}")
    count = torch.bincount(rows, minlength=1)
    if int(count.max()) > 1:
        raise ValueError(f"{name} names node {int(count.argmax())} twice; expected each node once")
    return rows


def read_node_rows(values: ArrayLike | Tensor, name: str) -> Tensor:
    """Read a node field (``x``, ``y`` or a mask) into the dtype and layout that a graph stores."""
    rows = read_numbers(values, name)
    if rows.ndim == 0:
        raise ValueError(f"{name} is one number; expected a row for each node")
    match name:
        case "x":
            return _features(rows)
        case "y":
            return _labels(rows)
    return _mask(rows, name)


def _features(x: Tensor) -> Tensor:
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2:
        raise ValueError(f"x is {tuple(x.shape)}; expected a row of features for each node")
    return x.contiguous() if x.dtype == torch.bfloat16 else x.to(torch.float32).contiguous()


def _labels(y: Tensor) -> Tensor:
    if y.ndim > 2:
        raise ValueError(f"y is {tuple(y.shape)}; expected one value a node, or a row of them")
    if y.is_floating_point():
        return y.to(torch.float32).contiguous()
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 1:
        return y.to(torch.int64).contiguous()
    _check_zero_or_one(y, "y", "expected 0 or 1 in each column, a column a label")
    return y.to(torch.uint8).contiguous()


def _mask(mask: Tensor, name: str) -> Tensor:
    if mask.ndim != 1:
        raise ValueError(
            f"{name} is {tuple(mask.shape)}; expected one value a node (pick one fold of several)"
        )
    _check_zero_or_one(mask, name, "expected True or False for each node, not row numbers")
    return mask.to(torch.bool).contiguous()


def _check_zero_or_one(values: Tensor, name: str, expected: str) -> None:
    bad = ~((values == 0) | (values == 1))
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise ValueError(f"{name}{place} is {values[tuple(place)].item()}; {expected}")
