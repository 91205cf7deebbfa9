"""One side of ``whole.py``: the whole script, which reads arrays, trains, scores, and writes weights and scores.

Its arguments are the side, the JSON of a case, the folder of the arrays and the folder of the results.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from side import Arrays, peak_rss_bytes
from torch import Tensor, nn

LR, DECAY, DROPOUT, FANOUT, BATCH = 0.01, 5e-4, 0.5, 10, 1024
Forward = Callable[[], Tensor]


def siafu(case: dict[str, Any], folder: Path, out: Path, *, search: bool = True) -> dict[str, Any]:
    """The script of a user of siafu, with default settings; ``search`` False sets ``train.search`` to off."""
    import numpy as np

    import siafu

    def read(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy")

    how: dict[str, Any] = {"epochs": case["epochs"], "hidden": case["hidden"], "patience": 0, "out": out}
    how |= {} if search else {"search": "off"}
    if case["kind"] == "evolvegcn-o":
        from whole_time import protocol

        graph = siafu.DynamicGraph.from_events(
            read("src"), read("dst"), read("step"), step=1, undirected=True, protocol=protocol()
        )
        run = siafu.train(graph, model=case["kind"], **how)
    else:
        masks = {f"{split}_mask": read(f"{split}_mask") for split in ("train", "val", "test")}
        extra = {"edge_split": read("edge_split")} if case["kind"] == "link" else {}
        graph = siafu.Graph.from_edges(read("edges"), x=read("x"), y=read("y"), **masks, **extra)
        match case["kind"]:
            case "link":
                run = siafu.train(graph, task="link", **how)
            case "sage":
                run = siafu.train(graph, model="sage", method="sampled", **how)
            case kind:
                run = siafu.train(graph, model=kind, **how)
    metrics = run.metrics
    return {
        "step_seconds": metrics["epochs"] * metrics["epoch_seconds"],
        "evaluate_every": run.settings.train.evaluate_every,
        **{name: metrics[name] for name in ("seconds", "score_seconds", "test_score", "epochs")},
    }


def siafu_off(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """Run siafu without its search over recipes."""
    return siafu(case, folder, out, search=False)


class Model(nn.Module):
    """A peer's two layers, with dropout before each and an activation between them."""

    def __init__(
        self, layers: list[nn.Module], call: Callable[..., Tensor], *, dropout: float, elu: bool
    ) -> None:
        super().__init__()
        self.layers, self._call, self._dropout = nn.ModuleList(layers), call, dropout
        self._activation = nn.functional.elu if elu else nn.functional.relu

    def forward(self, graphs: Iterable[Any], h: Tensor) -> Tensor:
        for place, (layer, graph) in enumerate(zip(self.layers, graphs, strict=True)):
            h = self._activation(h) if place else h
            h = self._call(layer, graph, nn.functional.dropout(h, self._dropout, training=self.training))
        return h


def inputs(arrays: Arrays) -> Tensor:
    """The features; of bags of words each row divided by its sum, as siafu and PyG's examples do."""
    x = arrays.x.float()
    counts = bool((x >= 0).all()) and float((x == 0).float().mean()) > 0.5
    return x / x.sum(1, keepdim=True).clamp(min=1e-12) if counts else x


def train(
    model: nn.Module, case: dict[str, Any], out: Path, steps: Callable[[], Iterable[Tensor]], scores: Forward
) -> dict[str, Any]:
    """The loop that users write; ``scores`` gives the validation and the test score of the weights as they are."""
    decay = 0.0 if case["kind"] == "link" else DECAY
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=decay)
    seconds, best, best_score = [], {}, -1.0
    for _ in range(case["epochs"]):
        began_s = time.perf_counter()
        model.train()
        for loss in steps():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds.append(time.perf_counter() - began_s)
        model.eval()
        with torch.no_grad():
            score = float(scores()[0])
        if score > best_score:
            best, best_score = {name: value.clone() for name, value in model.state_dict().items()}, score
    model.load_state_dict(best)
    model.eval()
    with torch.no_grad():
        test = float(scores()[1])
    out.mkdir()
    torch.save(best, out / "model.pt")
    result = {"step_seconds": sum(seconds), "test_score": test, "epochs": case["epochs"]}
    (out / "metrics.json").write_text(json.dumps(result))
    return result


def full(model: Model, graphs: list[Any], arrays: Arrays, case: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train on the whole graph."""
    x, rows, y = inputs(arrays), arrays.train.nonzero()[:, 0], arrays.y[arrays.train]
    step = lambda: [nn.functional.cross_entropy(model(graphs, x)[rows], y)]  # noqa: E731
    return train(model, case, out, step, lambda: accuracies(model(graphs, x), arrays))


def accuracies(outputs: Tensor, arrays: Arrays) -> Tensor:
    """The accuracy of the validation and of the test nodes."""
    right = (outputs.argmax(1) == arrays.y).float()
    return torch.stack([right[arrays.val].mean(), right[arrays.test].mean()])


def pyg(case: dict[str, Any], folder: Path, out: Path, *, csr: bool = False) -> dict[str, Any]:
    """PyG, as its examples are written."""
    if case["kind"] == "link":
        from whole_link import train_with_pyg

        return train_with_pyg(case, folder, out)
    from torch_geometric.nn import GATConv, GCNConv

    arrays, hidden = Arrays(folder), case["hidden"]
    features, classes = arrays.x.shape[1], arrays.num_classes
    if case["kind"] == "sage":
        return pyg_sampled(case, arrays, out)
    if case["kind"] == "gat":
        layers = [
            GATConv(features, hidden // 8, heads=8, dropout=0.6),
            GATConv(hidden, classes, dropout=0.6),
        ]
        model = Model(layers, lambda layer, edges, h: layer(h, edges), dropout=0.6, elu=True)
        return full(model, [arrays.edges] * 2, arrays, case, out)
    layers = [GCNConv(features, hidden, cached=True), GCNConv(hidden, classes, cached=True)]
    adjacency = sparse_adjacency(arrays) if csr else arrays.edges
    model = Model(layers, lambda layer, edges, h: layer(h, edges), dropout=DROPOUT, elu=False)
    return full(model, [adjacency] * 2, arrays, case, out)


def sparse_adjacency(arrays: Arrays) -> Tensor:
    """The transposed adjacency as a sparse tensor, as ``ToSparseTensor`` makes it; GCNConv normalises it once."""
    src, dst = arrays.edges
    order = (dst * arrays.num_nodes + src).argsort()
    indptr = torch.zeros(arrays.num_nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(dst, minlength=arrays.num_nodes).cumsum(0)
    size = (arrays.num_nodes, arrays.num_nodes)
    return torch.sparse_csr_tensor(indptr, src[order], torch.ones(order.numel()), size)


def pyg_sampled(case: dict[str, Any], arrays: Arrays, out: Path) -> dict[str, Any]:
    """PyG's layers on minibatches of siafu's loader; scores come from passes over the whole graph."""
    from torch_geometric.data import Data
    from torch_geometric.nn import SAGEConv

    from siafu import NeighborLoader

    sizes = (arrays.x.shape[1], case["hidden"], arrays.num_classes)
    model = Model(
        [SAGEConv(i, o) for i, o in pairwise(sizes)],
        lambda layer, near, h: layer(h[: near[0]], near[1]),
        dropout=DROPOUT,
        elu=False,
    )
    data = Data(arrays.x, arrays.edges, y=arrays.y)
    loader = NeighborLoader(
        data, input_nodes=arrays.train, num_neighbors=[FANOUT] * 2, batch_size=BATCH, shuffle=True
    )

    def steps() -> Iterable[Tensor]:
        for batch in loader:
            nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
            near = [(sum(nodes[: hop + 1]), batch.edge_index[:, : sum(edges[:hop])]) for hop in (2, 1)]
            seeds = batch.batch_size
            yield nn.functional.cross_entropy(model(near, batch.x)[:seeds], batch.y[:seeds])

    whole = [(arrays.num_nodes, arrays.edges)] * 2
    return train(model, case, out, steps, lambda: accuracies(model(whole, arrays.x), arrays))


def dgl(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """DGL, as its examples are written."""
    import dgl as library
    from dgl.nn.pytorch import GATConv, GraphConv

    arrays, hidden = Arrays(folder), case["hidden"]
    features, classes = arrays.x.shape[1], arrays.num_classes
    if case["kind"] == "link":
        from whole_link import train_with_dgl

        return train_with_dgl(case, folder, out)
    graph = library.graph((arrays.edges[0], arrays.edges[1]), num_nodes=arrays.num_nodes)
    if case["kind"] == "sage":
        return dgl_sampled(case, graph, arrays, out)
    graph = library.add_self_loop(graph)
    if case["kind"] == "gat":
        drop = {"feat_drop": 0.0, "attn_drop": 0.6}
        layers = [GATConv(features, hidden // 8, 8, **drop), GATConv(hidden, classes, 1, **drop)]
    else:
        layers = [GraphConv(features, hidden), GraphConv(hidden, classes)]
    gat = case["kind"] == "gat"
    model = Model(
        layers,
        lambda layer, graph, h: layer(graph, h).flatten(1),
        dropout=0.6 if gat else DROPOUT,
        elu=gat,
    )
    return full(model, [graph] * 2, arrays, case, out)


def dgl_sampled(case: dict[str, Any], graph: Any, arrays: Arrays, out: Path) -> dict[str, Any]:
    """DGL's loader and layers; scores come from passes over the whole graph."""
    from dgl.dataloading import DataLoader, NeighborSampler
    from dgl.nn.pytorch import SAGEConv

    graph = graph.formats("csc")
    layers = [
        SAGEConv(arrays.x.shape[1], case["hidden"], "mean"),
        SAGEConv(case["hidden"], arrays.num_classes, "mean"),
    ]
    model = Model(layers, lambda layer, block, h: layer(block, h), dropout=DROPOUT, elu=False)
    sampler, seeds = NeighborSampler([FANOUT] * 2), arrays.train.nonzero()[:, 0]
    loader = DataLoader(graph, seeds, sampler, batch_size=BATCH, shuffle=True, drop_last=False)

    def steps() -> Iterable[Tensor]:
        for nodes, rows, blocks in loader:
            yield nn.functional.cross_entropy(model(blocks, arrays.x[nodes]), arrays.y[rows])

    return train(model, case, out, steps, lambda: accuracies(model([graph] * 2, arrays.x), arrays))


def pyg_csr(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """PyG on a sparse tensor."""
    return pyg(case, folder, out, csr=True)


def pyg_temporal(case: dict[str, Any], folder: Path, out: Path) -> dict[str, Any]:
    """PyG Temporal."""
    from whole_time import train_with_pyg_temporal

    return train_with_pyg_temporal(case, folder, out)


SIDES = {"siafu": siafu, "siafu-off": siafu_off, "pyg": pyg, "pyg-csr": pyg_csr, "dgl": dgl}
SIDES |= {"pyg-temporal": pyg_temporal}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("case", type=json.loads)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    result = SIDES[args.side](args.case, args.folder, args.out)
    print(json.dumps({**result, "peak_rss_bytes": peak_rss_bytes()}))


if __name__ == "__main__":
    main()
