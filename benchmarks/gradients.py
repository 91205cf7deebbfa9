"""Gradients of the pipeline against autograd on the whole graph, and its weights against those of `full`; in float64.

    python benchmarks/gradients.py                 GCN, SAGE, GAT, GIN; 1, 2, 4 parts; 1, 8, 32 intervals; in minutes
    python benchmarks/gradients.py --models gcn    in seconds

A community graph in random parts, 2 layers, dropout on. Gradients are those of the first epoch, S = 0, of all weights;
autograd's are those of one rank that holds the whole graph. Weights are those after some more epochs of both.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from core import require_core
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE, HaloExchange
from siafu.data import community
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.methods.full.procedure import FullProcedure
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.pipeline.procedure import PipelineProcedure
from siafu.nn import Gnn, ModelConfig
from siafu.nn.embedded import build_on_features
from siafu.partition.cut import Part, cut, whole_part
from siafu.training.config import TrainConfig
from siafu.training.procedure import Procedure, train_epoch
from siafu.training.task import task_of

PARTS, INTERVALS = (1, 2, 4), (1, 8, 32)
Tensors = list[Tensor]


class Noted:
    """The gradients of the first step of a trainer."""

    def __init__(self, trainer: Procedure) -> None:
        self.grads: Tensors = []
        self._model, self._step = trainer.model, trainer.optimizer.step
        trainer.optimizer.step = self._note  # type: ignore[method-assign]

    def _note(self) -> None:
        if not self.grads:
            self.grads = [each.grad.clone() for each in self._model.parameters() if each.grad is not None]
        self._step()


def main() -> None:
    args = _parse()
    made = community(args.nodes, degree=10, features=24, classes=5, seed=0)
    assert made.x is not None
    graph = replace(made, x=made.x.double())
    print(
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, float64; the largest difference of any number"
    )
    print(f"{'':6} {'parts':>5} {'intervals':>9} {'gradients':>10} {f'weights, {args.epochs} epochs':>18}")
    worst = 0.0
    for kind in args.models:
        (wanted,) = _ranks(graph, 1, lambda comm, part, kind=kind: _full(comm, part, kind, args.epochs))
        for parts in PARTS:
            for intervals in INTERVALS:
                found = _ranks(
                    graph,
                    parts,
                    lambda comm, part, kind=kind, intervals=intervals: _pipeline(
                        comm, part, kind, intervals, args.epochs
                    ),
                )
                grads, weights = (max(_apart(each[i], wanted[i]) for each in found) for i in (0, 1))
                worst = max(worst, grads, weights)
                print(f"{kind:6} {parts:5} {intervals:9} {grads:10.1e} {weights:18.1e}", flush=True)
    print(f"largest difference {worst:.1e}")


def _ranks(
    graph: Graph, parts: int, work: Callable[[Comm, Part], tuple[Tensors, Tensors]]
) -> list[tuple[Tensors, Tensors]]:
    """What each rank of a random cut finds."""
    part_of_node = torch.randint(parts, (graph.num_nodes,), generator=torch.Generator().manual_seed(0))
    cuts = [whole_part(graph)]
    if parts > 1:
        order = torch.arange(graph.num_nodes)
        cuts = [one.part(graph) for one in cut(graph, part_of_node.to(torch.int32), parts=parts, order=order)]
    return run_threads(lambda comm: work(comm, cuts[comm.rank]), ranks=parts, threads=1)


def _full(comm: Comm, part: Part, kind: str, epochs: int) -> tuple[Tensors, Tensors]:
    trainer = FullProcedure(**_given(comm, part, kind), seed=0)
    noted = Noted(trainer)
    for epoch in range(1, epochs + 1):
        train_epoch(trainer, epoch)
    return noted.grads, [each.detach() for each in trainer.model.parameters()]


def _pipeline(comm: Comm, part: Part, kind: str, intervals: int, epochs: int) -> tuple[Tensors, Tensors]:
    config = PipelineConfig(intervals=intervals, workers="inline")
    given = _given(comm, part, kind)
    trainer = PipelineProcedure(**given, pipeline=config, route=part.route, seed=0, wire=CommConfig())
    noted = Noted(trainer)
    trainer.train_epochs(epochs)
    trainer.close()
    return noted.grads, [each.detach() for each in trainer.model.parameters()]


def _given(comm: Comm, part: Part, kind: str) -> dict[str, Any]:
    config = TrainConfig()
    task = task_of(part.own, config, comm)
    settings = ModelConfig.model_validate({"kind": kind, "hidden": 16, "dropout": 0.5})
    assert part.own.x is not None
    width = part.own.x.shape[1]
    model = build_on_features(
        settings, in_features=width, out_features=task.num_outputs, num_nodes=part.num_nodes
    )
    assert isinstance(model, Gnn)
    model.reset(torch.Generator().manual_seed(0))
    exchange: HaloExchange = NO_EXCHANGE
    if comm.world_size > 1:
        exchange = Halo(comm, part.route, num_own=part.own.num_nodes, precision="fp32")
    context = part.context(exchange, narrow=True)
    return {"model": model.double(), "context": context, "x_src": part.own.x, "task": task, "config": config}


def _apart(found: Tensors, wanted: Tensors) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(found, wanted, strict=True))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["gcn", "sage", "gat", "gin"])
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
