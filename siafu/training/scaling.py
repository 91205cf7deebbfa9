"""``Scaling``: the means and deviations of feature columns on the training nodes, by which inputs are standardised."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.graph import Graph, chunks
from siafu.nn.streamed import in_memory
from siafu.store.tensors import load_tensors, save_tensors

FILE = "inputs.safetensors"  # in the folder of a run
_LARGEST = 10.0  # deviations; values beyond are clipped


class Scaling(NamedTuple):
    """The scaling of columns.

    Attributes:
        mean: (F,) float32.
        deviation: (F,) float32; 1 where a column is constant.
    """

    mean: Tensor
    deviation: Tensor

    def apply(self, x: Tensor) -> Tensor:
        """Standardise rows: (N, F) -> (N, F) float32, within 10 deviations."""
        return x.float().sub(self.mean).div_(self.deviation).clamp_(-_LARGEST, _LARGEST)


def measure_scaling(graph: Graph, comm: Comm) -> Scaling:
    """Measure the columns on the training nodes of all ranks. Collective."""
    x = graph.features
    assert x is not None
    rows = in_memory(x)
    if graph.train_mask is not None:
        rows = rows[graph.train_mask]
    count = comm.all_reduce(torch.tensor([float(rows.shape[0])], dtype=torch.float64), label="scaling")
    mean = comm.all_reduce(_sum(rows, None), label="scaling") / count
    variance = comm.all_reduce(_sum(rows, mean), label="scaling") / count
    deviation = variance.sqrt()
    deviation = torch.where(deviation < 1e-6 * mean.abs().clamp(min=1e-6), 1.0, deviation)
    return Scaling(mean.float(), deviation.float())


def save_scaling(scaling: Scaling, folder: Path) -> None:
    """Write a scaling into the folder of a run."""
    save_tensors(folder / FILE, scaling._asdict(), {})


def load_scaling(folder: Path) -> Scaling:
    """Read the scaling of a run."""
    return Scaling(**load_tensors(folder / FILE)[0])


def _sum(rows: Tensor, mean: Tensor | None) -> Tensor:
    """Sum the columns, or their squared distances from a mean: (N, F) -> (F,) float64."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for chunk in chunks(rows):
        each = chunk.double()
        total += each.sum(0) if mean is None else (each - mean).square_().sum(0)
    return total
