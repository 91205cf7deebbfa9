"""Link prediction on a static graph with PyG and DGL, for ``whole.py``: a GCN, a dot product, one negative per edge."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from side import Arrays
from torch import Tensor, nn
from whole_side import Model, inputs, train


def train_with_pyg(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """PyG's convolution."""
    from torch_geometric.nn import GCNConv

    def build(width: int, hidden: int, edges: Tensor, _: int) -> tuple[Model, list[Any]]:
        layers = [GCNConv(width, hidden, cached=True), GCNConv(hidden, hidden, cached=True)]
        model = Model(layers, lambda layer, edges, h: layer(h, edges), dropout=0.0, elu=False)
        return model, [edges] * 2

    return _train(case, folder, out, build)


def train_with_dgl(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """DGL's convolution."""
    import dgl as library
    from dgl.nn.pytorch import GraphConv

    def build(width: int, hidden: int, edges: Tensor, num_nodes: int) -> tuple[Model, list[Any]]:
        graph = library.add_self_loop(library.graph((edges[0], edges[1]), num_nodes=num_nodes))
        layers = [GraphConv(width, hidden), GraphConv(hidden, hidden)]
        model = Model(layers, lambda layer, graph, h: layer(graph, h), dropout=0.0, elu=False)
        return model, [graph] * 2

    return _train(case, folder, out, build)


def _train(case: dict[str, Any], folder: Path, out: Path, build: Callable[..., Any]) -> dict[str, Any]:
    arrays = Arrays(folder)
    split = torch.from_numpy(np.load(folder / "edge_split.npy"))
    edges, x = [arrays.edges[:, split == number] for number in range(3)], inputs(arrays)
    model, graphs = build(x.shape[1], case["hidden"], edges[0], arrays.num_nodes)
    fixed = [_negatives(part.shape[1], arrays.num_nodes) for part in edges]

    def logits(z: Tensor, pairs: Tensor) -> Tensor:
        return (z[pairs[0]] * z[pairs[1]]).sum(1)

    def step() -> list[Tensor]:
        z, other = model(graphs, x), _negatives(edges[0].shape[1], arrays.num_nodes)
        both = torch.cat([logits(z, edges[0]), logits(z, other)])
        y = (torch.arange(both.numel()) < edges[0].shape[1]).float()
        return [nn.functional.binary_cross_entropy_with_logits(both, y)]

    def scores() -> Tensor:
        z = model(graphs, x)
        return torch.stack([_area(logits(z, edges[number]), logits(z, fixed[number])) for number in (1, 2)])

    result = train(model, case, out, step, scores)
    with torch.no_grad():  # siafu's scores of the final weights include the filtered ranks among all targets
        result["test_mrr"] = _filtered_mrr(model(graphs, x), edges[2], arrays.edges)
    return result


def _negatives(count: int, num_nodes: int) -> Tensor:
    return torch.randint(num_nodes, (2, count))


def _area(positive: Tensor, negative: Tensor) -> Tensor:
    """The area under the ROC curve."""
    ordered = negative.sort().values
    below, up_to = (torch.searchsorted(ordered, positive, right=right) for right in (False, True))
    return (below + up_to).double().mean() / (2 * negative.numel())


def _filtered_mrr(z: Tensor, edges: Tensor, known: Tensor) -> float:
    """The mean reciprocal rank of edges among all targets of their source that are no edges."""
    scores = z @ z.T
    wanted = scores[edges[0], edges[1]]
    scores[known[0], known[1]] = -torch.inf
    scores.fill_diagonal_(-torch.inf)
    above = torch.cat(
        [(scores[e] > w[:, None]).sum(1) for e, w in zip(edges[0].split(256), wanted.split(256), strict=True)]
    )
    return float((1 / (1 + above)).mean())
