"""One side of a comparison of sampled training, in a process of its own (see ``side.py``).

A step is an epoch of minibatches: sampling, fetching rows and training on them, without evaluation; or, of samplers
alone, drawing and relabelling the hops of all minibatches of an epoch. Fanouts are the first layer's first, so that
seeds draw as many as the last one says.
"""

import argparse
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import torch
from side import Arrays, serve

FANOUTS, BATCH, HIDDEN, HEADS, DROPOUT, LR, DECAY = (15, 10, 5), 1024, 256, 4, 0.5, 0.01, 5e-4
Step = Callable[[], dict[str, Any] | None]


class Stack(torch.nn.Module):
    """A peer's layers, with the activation and dropout between them; ``call`` runs a layer on a graph and rows."""

    def __init__(
        self, layers: list[torch.nn.Module], call: Callable[..., torch.Tensor], *, elu: bool
    ) -> None:
        super().__init__()
        self.layers, self._call = torch.nn.ModuleList(layers), call
        self._activation = torch.nn.functional.elu if elu else torch.nn.functional.relu

    def forward(self, graphs: Sequence[Any], h: torch.Tensor) -> torch.Tensor:
        for place, (layer, graph) in enumerate(zip(self.layers, graphs, strict=True)):
            if place:
                h = torch.nn.functional.dropout(self._activation(h), DROPOUT, training=self.training)
            h = self._call(layer, graph, h)
        return h


def learning(model: torch.nn.Module) -> Callable[[Iterable[Any]], None]:
    """The loop that users of a peer write, over (graphs, rows, labels of the seeds)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, weight_decay=DECAY)

    def epoch(minibatches: Iterable[Any]) -> None:
        model.train()
        for graphs, x, y in minibatches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(graphs, x)[: len(y)], y).backward()
            optimizer.step()

    return epoch


def widths(arrays: Arrays) -> list[tuple[int, int]]:
    """In and out of each layer."""
    return list(pairwise([arrays.x.shape[1], *[HIDDEN] * (len(FANOUTS) - 1), arrays.num_classes]))


def dgl_model(kind: str, arrays: Arrays) -> Stack:
    from dgl.nn.pytorch import GATConv, GraphConv, SAGEConv

    *hidden, last = widths(arrays)
    match kind:
        case "sage":
            layers = [SAGEConv(i, o, "mean") for i, o in (*hidden, last)]
        case "gcn":
            layers = [GraphConv(i, o, allow_zero_in_degree=True) for i, o in (*hidden, last)]
        case _:
            layers = [*(GATConv(i, o // HEADS, HEADS) for i, o in hidden), GATConv(*last, 1)]
    return Stack(layers, lambda layer, block, h: layer(block, h).flatten(1), elu=kind == "gat")


def dgl_graph(kind: str, arrays: Arrays) -> Any:
    """With a loop at each node where the layer wants one."""
    import dgl as library

    graph = library.graph((arrays.edges[0], arrays.edges[1]), num_nodes=arrays.num_nodes)
    return (graph if kind == "sage" else library.add_self_loop(graph)).formats("csc")


def dgl(kind: str, arrays: Arrays, workers: int = 0) -> Step:
    from dgl.dataloading import DataLoader, NeighborSampler

    graph, seeds = dgl_graph(kind, arrays), arrays.train.nonzero()[:, 0]
    sizes = {"batch_size": BATCH, "shuffle": True, "drop_last": False, "num_workers": workers}
    loader = DataLoader(graph, seeds, NeighborSampler(list(FANOUTS)), **sizes)
    epoch = learning(dgl_model(kind, arrays))

    def step() -> None:
        epoch((blocks, arrays.x[nodes], arrays.y[seeds]) for nodes, seeds, blocks in loader)

    others = list(range(1, torch.get_num_threads()))

    def beside_worker() -> None:
        with loader.enable_cpu_affinity(loader_cores=[0], compute_cores=others, verbose=False):
            step()

    return beside_worker if workers else step


def dgl_worker(kind: str, arrays: Arrays) -> Step:
    """As DGL recommends for CPUs: a process that samples, on a core of its own."""
    return dgl(kind, arrays, workers=1)


def pyg(kind: str, arrays: Arrays) -> Step:
    """PyG's layers, each on the nodes and edges that it needs; without pyg-lib, on minibatches of our loader."""
    from torch_geometric.data import Data
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv

    if importlib.util.find_spec("pyg_lib"):
        from torch_geometric.loader import NeighborLoader
    else:
        from siafu import NeighborLoader

    *hidden, last = widths(arrays)
    if kind == "gat":
        layers = [*(GATConv(i, o // HEADS, HEADS) for i, o in hidden), GATConv(*last)]
    else:
        layers = [(SAGEConv if kind == "sage" else GCNConv)(i, o) for i, o in (*hidden, last)]
    epoch = learning(Stack(layers, lambda layer, near, h: layer(h[: near[0]], near[1]), elu=kind == "gat"))
    data = Data(arrays.x, arrays.edges, y=arrays.y)
    sizes = {"num_neighbors": list(FANOUTS[::-1]), "batch_size": BATCH, "shuffle": True}
    loader = NeighborLoader(data, input_nodes=arrays.train, **sizes)

    def needed(batch: Any) -> list[tuple[int, torch.Tensor]]:
        """The nodes and edges that each layer reads, as ``trim_to_layer`` has it."""
        nodes, edges = batch.num_sampled_nodes, batch.num_sampled_edges
        hops = range(len(FANOUTS), 0, -1)
        return [(sum(nodes[: hop + 1]), batch.edge_index[:, : sum(edges[:hop])]) for hop in hops]

    def step() -> None:
        epoch((needed(each), each.x, each.y[: each.batch_size]) for each in loader)

    return step


def siafu_trainer(kind: str, arrays: Arrays, settings: Sequence[str]) -> Any:
    """The procedure of ``siafu.train(method="sampled")`` on one rank."""
    from siafu.comm import single_rank_comm
    from siafu.config import build, from_assignments
    from siafu.graph import Graph
    from siafu.methods import RankContext, build_procedure
    from siafu.partition.cut import whole_part
    from siafu.training import inputs

    masks = {"train_mask": arrays.train, "val_mask": arrays.val, "test_mask": arrays.test}
    graph = Graph.from_edges(arrays.edges, x=arrays.x, y=arrays.y, **masks)
    model = {"kind": kind, "layers": len(FANOUTS), "hidden": HIDDEN, "heads": HEADS, "dropout": DROPOUT}
    tables = {
        "method": "sampled",
        "model": model | {"input_dropout": 0.0, "attention_dropout": 0.0},
        "train": {"lr": LR, "weight_decay": DECAY},
        "sampled": {"fanout": FANOUTS, "batch_size": BATCH},
    }
    tree = build(tables, from_assignments(list(settings)))
    tree = tree.model_copy(update={"data": inputs.resolve(tree.data, graph)})
    part = whole_part(inputs.prepare(graph, tree.data))
    return build_procedure(RankContext(single_rank_comm(), part, tree, None, Path()))


def siafu(kind: str, arrays: Arrays, *settings: str) -> Step:
    from siafu import native
    from siafu.training.procedure import train_epoch

    trainer, epochs = siafu_trainer(kind, arrays, ["sampled.cache_aggregate=false", *settings]), count(1)
    reuse = native.arrays_reused()  # as Loop.fit does
    reuse.__enter__()

    def step() -> dict[str, Any]:
        assert reuse is not None  # held as long as there are steps
        before = dict(trainer.spent)
        train_epoch(trainer, next(epochs))
        return {f"{what}_seconds": now - before[what] for what, now in trainer.spent.items()}

    return step


def siafu_cached(kind: str, arrays: Arrays, *settings: str) -> Step:
    return siafu(kind, arrays, "sampled.cache_aggregate=true", *settings)


def dgl_sampler(_: str, arrays: Arrays) -> Step:
    from dgl.dataloading import NeighborSampler

    graph, seeds = dgl_graph("sage", arrays), arrays.train.nonzero()[:, 0]
    graph.create_formats_()
    sampler = NeighborSampler(list(FANOUTS))

    def step() -> dict[str, Any]:
        minibatches = seeds[torch.randperm(len(seeds))].split(BATCH)
        blocks = (sampler.sample_blocks(graph, each)[2] for each in minibatches)
        return {"edges": sum(block.num_edges() for its in blocks for block in its)}

    return step


def graphbolt_sampler(_: str, arrays: Arrays) -> Step:
    import dgl.graphbolt as library

    graph, seeds = dgl_graph("sage", arrays), arrays.train.nonzero()[:, 0]
    pipe = library.ItemSampler(library.ItemSet(seeds, names="seed_nodes"), batch_size=BATCH, shuffle=True)
    indptr, indices, _ = graph.adj_tensors("csc")
    pipe = pipe.sample_neighbor(library.fused_csc_sampling_graph(indptr, indices), list(FANOUTS))

    def step() -> dict[str, Any]:
        subgraphs = (sub for minibatch in pipe for sub in minibatch.sampled_subgraphs)
        return {"edges": sum(sub.sampled_csc.indices.numel() for sub in subgraphs)}

    return step


def siafu_sampler(_: str, arrays: Arrays, *settings: str) -> Step:
    from siafu import native
    from siafu.sampling import sample_minibatches

    trainer, epochs = siafu_trainer("sage", arrays, ["sampled.cache_aggregate=false", *settings]), count(1)
    reuse = native.arrays_reused()  # as Loop.fit does
    reuse.__enter__()

    def step() -> dict[str, Any]:
        assert reuse is not None  # held as long as there are steps
        epoch, edges = next(epochs), 0
        batches = trainer.task.seed_batches(
            epoch, batch_size=BATCH, seed=trainer.seed, node_id=trainer.context.node_id
        )
        seeds = [batch.rows for batch in batches]
        for first in range(0, len(seeds), trainer.macrobatch):
            some = [rows.int() for rows in seeds[first : first + trainer.macrobatch]]
            keys = torch.arange(len(some) * len(FANOUTS)).view(len(some), -1) + (epoch << 20) + (first << 8)
            for grown in sample_minibatches(trainer.near, some, keys, fanouts=FANOUTS[::-1], replace=False):
                edges += sum(hop.indices.numel() for hop in grown.hops)
        return {"edges": edges}

    return step


EPOCHS = {"siafu": siafu, "siafu-cached": siafu_cached, "dgl": dgl, "dgl-worker": dgl_worker, "pyg": pyg}
SAMPLERS = {"siafu": siafu_sampler, "dgl": dgl_sampler, "graphbolt": graphbolt_sampler}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["epoch", "sampler"])
    parser.add_argument("side", choices=sorted({*EPOCHS, *SAMPLERS}))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=["sage", "gcn", "gat"], default="sage")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="settings of siafu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    sides = EPOCHS if args.what == "epoch" else SAMPLERS
    serve(sides[args.side](args.model, Arrays(args.folder), *args.set), None)


if __name__ == "__main__":
    main()
