"""The kernels that ``kernels.py`` times, and the graph they run on."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One kernel on rows of one size.

    Attributes:
        kind: gat or gatv2 (attention), spmm, product (x W), weights (the gradient of W).
        width: columns of the result, of a head.
        heads: of attention.
        inputs: columns of x, of products.
    """

    kind: str
    width: int
    heads: int = 1
    inputs: int = 0
    backward: bool = False

    @property
    def name(self) -> str:
        if self.inputs:
            return f"{self.kind}-{self.inputs}x{self.width}"
        sizes = f"{self.heads}x{self.width}" if "gat" in self.kind else str(self.width)
        return f"{self.kind}-{sizes}" + ("-backward" if self.backward else "")

    @property
    def columns(self) -> int:
        return self.heads * self.width

    @property
    def gathers(self) -> int:
        """How many rows of ``columns`` the kernel reads per edge."""
        return (3 if self.backward else 1) if self.kind == "gatv2" else 1

    def flops(self, num_nodes: int) -> float:
        return 2.0 * num_nodes * self.inputs * self.width


def _cases() -> list[Case]:
    heads = [(8, 8), (4, 64), (1, 47)]
    attention = [Case(k, w, h, backward=b) for k in ("gat", "gatv2") for h, w in heads for b in (False, True)]
    products = [
        Case(k, o, inputs=i) for k in ("product", "weights") for i, o in ((256, 47), (256, 48), (100, 256))
    ]
    return [*attention, *(Case("spmm", width) for width in (7, 47, 48, 64, 256)), *products]


CASES = {case.name: case for case in _cases()}


class Arrays:
    """A graph in a folder: CSR by destination and by source, (indptr, indices, origin or None) each."""

    def __init__(self, folder: Path) -> None:
        def read(name: str) -> Tensor:
            return torch.from_numpy(np.load(folder / f"{name}.npy"))

        self.csr = read("indptr"), read("indices"), None
        self.transposed = read("turned_indptr"), read("turned_indices"), read("turned_origin")
        self.num_nodes = self.csr[0].numel() - 1

    def rows(self, width: int) -> Tensor:
        return torch.randn(self.num_nodes, width, generator=torch.Generator().manual_seed(width))


def write_graph(folder: Path, *, nodes: int, degree: float, shuffle: bool) -> None:
    """Write a community graph for every side to read; shuffled, neighbours lie far apart in memory."""
    from siafu import native
    from siafu.data import community
    from siafu.graph import Block

    block = community(nodes, degree=degree, features=1, classes=2, seed=0).block
    if shuffle:
        order = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))
        csr = native.relabel(block.csr, order)
        block = Block(csr.indptr, csr.indices, nodes)
    csr, turned = block.csr, block.transposed
    assert turned.origin is not None
    arrays = {
        "indptr": csr.indptr,
        "indices": csr.indices,
        "turned_indptr": turned.indptr,
        "turned_indices": turned.indices,
        "turned_origin": turned.origin,
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.numpy())
