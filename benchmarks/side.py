"""One side of a comparison, in a process of its own: it makes one step each time it is told to.

Started by ``run.py`` under the Python that has the system. It reads commands from standard input, one a line, and
answers each with one line of JSON: ``step`` (one timed step), ``end`` (test accuracy and peak memory). The graph comes
as .npy files, so that no side depends on another's formats.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

SPMM_WIDTH = 256


class Arrays:
    """The graph as plain tensors: (2, E) edges without self loops, features, labels, masks."""

    def __init__(self, folder: Path) -> None:
        def read(name: str) -> torch.Tensor:
            return torch.from_numpy(np.load(folder / f"{name}.npy"))

        self.edges, self.x, self.y = read("edges").long(), read("x"), read("y")
        self.train, self.val, self.test = read("train_mask"), read("val_mask"), read("test_mask")
        self.num_classes = int(self.y.max()) + 1
        self.num_nodes = self.x.shape[0]


def trained(model: torch.nn.Module, forward: Callable[[], torch.Tensor], arrays: Arrays, lr: float):
    """Step and accuracy of an ordinary training loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=5e-4)
    rows, y = arrays.train.nonzero()[:, 0], arrays.y[arrays.train]

    def step() -> None:
        model.train()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward()[rows], y).backward()
        optimizer.step()

    @torch.no_grad()
    def accuracy() -> float:
        model.eval()
        return float((forward().argmax(1) == arrays.y)[arrays.test].float().mean())

    return step, accuracy


def pyg(case: str, arrays: Arrays, how: argparse.Namespace):
    from torch_geometric.nn import GATConv, GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    functional = torch.nn.functional
    features, classes = arrays.x.shape[1], arrays.num_classes
    if case == "gcn":
        edges, weight = gcn_norm(arrays.edges, None, arrays.num_nodes)
        order = (edges[1] * arrays.num_nodes + edges[0]).argsort()
        edges, weight = edges[:, order], weight[order]
        indptr = torch.zeros(arrays.num_nodes + 1, dtype=torch.int64)
        indptr[1:] = torch.bincount(edges[1], minlength=arrays.num_nodes).cumsum(0)
        adjacency = torch.sparse_csr_tensor(indptr, edges[0], weight, (arrays.num_nodes, arrays.num_nodes))
        layers = torch.nn.ModuleList(
            [GCNConv(features, how.hidden, normalize=False), GCNConv(how.hidden, classes, normalize=False)]
        )
        graph, activation = adjacency, functional.relu
    else:
        layers = torch.nn.ModuleList(
            [GATConv(features, how.hidden // 4, heads=4), GATConv(how.hidden, classes, heads=1)]
        )
        graph, activation = arrays.edges, functional.elu

    def forward() -> torch.Tensor:
        h = activation(layers[0](arrays.x, graph))
        return layers[1](functional.dropout(h, 0.5, training=layers.training), graph)

    return trained(layers, forward, arrays, 0.01)


def dgl(case: str, arrays: Arrays, how: argparse.Namespace):
    import dgl as library
    from dgl.nn.pytorch import GATConv, GraphConv

    functional = torch.nn.functional
    features, classes = arrays.x.shape[1], arrays.num_classes
    graph = library.graph((arrays.edges[0], arrays.edges[1]), num_nodes=arrays.num_nodes)
    if case == "spmm":
        x = torch.randn(arrays.num_nodes, SPMM_WIDTH)
        graph.create_formats_()
        return lambda: library.ops.copy_u_sum(graph, x), None
    graph = library.add_self_loop(graph)
    graph.create_formats_()
    if case == "gcn":
        layers = torch.nn.ModuleList([GraphConv(features, how.hidden), GraphConv(how.hidden, classes)])
        activation = functional.relu
    else:
        layers = torch.nn.ModuleList([GATConv(features, how.hidden // 4, 4), GATConv(how.hidden, classes, 1)])
        activation = functional.elu

    def forward() -> torch.Tensor:
        h = activation(layers[0](graph, arrays.x).flatten(1))
        h = functional.dropout(h, 0.5, training=layers.training)
        return layers[1](graph, h).flatten(1)

    return trained(layers, forward, arrays, 0.01)


def torch_csr(case: str, arrays: Arrays, how: argparse.Namespace):
    order = (arrays.edges[1] * arrays.num_nodes + arrays.edges[0]).argsort()
    edges = arrays.edges[:, order]
    indptr = torch.zeros(arrays.num_nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(edges[1], minlength=arrays.num_nodes).cumsum(0)
    ones = torch.ones(edges.shape[1])
    adjacency = torch.sparse_csr_tensor(indptr, edges[0], ones, (arrays.num_nodes, arrays.num_nodes))
    x = torch.randn(arrays.num_nodes, SPMM_WIDTH)
    return lambda: adjacency @ x, None


def siafu(case: str, arrays: Arrays, how: argparse.Namespace):
    from siafu import native
    from siafu.data.config import DataConfig
    from siafu.graph import Graph
    from siafu.methods.full.procedure import FullProcedure
    from siafu.nn import Gnn, ModelConfig
    from siafu.nn.aggregates import sum_in
    from siafu.training import inputs
    from siafu.training.config import TrainConfig
    from siafu.training.procedure import train_epoch
    from siafu.training.task import task_of

    masks = {"train_mask": arrays.train, "test_mask": arrays.test}
    graph = Graph.from_edges(arrays.edges, x=arrays.x, y=arrays.y, **masks)
    data = inputs.resolve(DataConfig(), graph)
    graph = inputs.prepare(graph, data)
    if case == "spmm":
        x = torch.randn(arrays.num_nodes, SPMM_WIDTH)
        return lambda: sum_in(graph.block, x), None
    config = ModelConfig(kind=case, hidden=how.hidden, heads=4, input_dropout=0, attention_dropout=0)
    task = task_of(graph, TrainConfig())
    model = Gnn(config, in_features=arrays.x.shape[1], out_features=task.num_outputs)
    trainer = FullProcedure(model, graph.block, inputs.features(graph, data), task, TrainConfig(), seed=0)
    reuse = native.arrays_reused()  # as Loop.fit does
    reuse.__enter__()
    epoch = iter(range(1, 1 << 30))

    def accuracy() -> float:
        return task.scores(trainer.outputs(), "test")["accuracy"]

    def step() -> None:
        assert reuse is not None  # held as long as there are steps
        train_epoch(trainer, next(epoch))
        if how.scored:
            task.evaluate(trainer.outputs())

    return step, accuracy


def peak_rss_bytes() -> int:
    """The most memory this process held; what the system tells of children counts the parent's too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def serve(step: Callable[[], object], accuracy: Callable[[], float] | None) -> None:
    """Make a timed step each time it is told to, until the end; what a step returns as a dict is told too."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "step":
            start = time.perf_counter()
            told = step()
            answer = {"seconds": time.perf_counter() - start, **(told if isinstance(told, dict) else {})}
        else:
            answer = {"peak_rss_bytes": peak_rss_bytes(), "accuracy": accuracy() if accuracy else None}
        print(json.dumps(answer), flush=True)


SIDES = {"siafu": siafu, "pyg": pyg, "dgl": dgl, "torch": torch_csr}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("case", choices=["spmm", "gcn", "gat"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--scored", action="store_true", help="score the model in every step; siafu alone")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    serve(*SIDES[args.side](args.case, Arrays(args.folder), args))


if __name__ == "__main__":
    main()
