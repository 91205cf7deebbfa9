"""What ranks that own steps send each other in an epoch, beside the closed form ``4 L T N F (P-1)/P``; no clock.

    python benchmarks/turning.py                    T = 200, 1,000 nodes, 2 layers of 16, for 2, 4 and 8 ranks
    python benchmarks/turning.py --nodes 200        a smaller graph

CD-GCN turns rows from steps to nodes and back, half of the numbers being rows and half gradients: in float32, in
bfloat16, and where most nodes have no edge in a step, whose rows are not sent but for those that the head reads. TM-GCN
fetches the steps before its own instead. Ranks are threads; the meter counts what their frames hold.
"""

import argparse
import json
from collections.abc import Callable

import torch
from core import require_core

from siafu.comm import Comm
from siafu.comm.config import CommConfig
from siafu.dynamic import DynamicGraph, Protocol
from siafu.launch.local import run_threads
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.procedure import SnapshotsProcedure
from siafu.nn.model import ModelConfig
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.procedure import train_epoch

FLOAT, RANKS = 4, (2, 4, 8)


def make(args: argparse.Namespace, share: float) -> DynamicGraph:
    """A ring of some nodes in each step, others in each; classes of all nodes in every step."""
    draw = torch.Generator().manual_seed(0)
    steps = args.steps * 5 // 4  # of which 0.8 are trained on
    count = int(share * args.nodes)
    rings = [torch.randperm(args.nodes, generator=draw)[:count] for _ in range(steps)]
    src = torch.cat(rings)
    dst = torch.cat([ring.roll(1) for ring in rings])
    return DynamicGraph.from_events(
        src,
        dst,
        torch.arange(steps).repeat_interleave(count),
        step=1,
        num_nodes=args.nodes,
        undirected=True,
        x=torch.randn(args.nodes, args.hidden, generator=draw),
        y=torch.randint(2, (steps, args.nodes), generator=draw),
        protocol=Protocol(split=(0.8, 0.1, 0.1)),
    )


def sent_of(
    args: argparse.Namespace, *, ranks: int, kind: str = "cd-gcn", share: float = 1.0, precision: str = "fp32"
) -> int:
    """Bytes of rows and their gradients that all ranks send in an epoch."""
    graph = make(args, share)
    config = SnapshotsConfig(edge_life=1, window=0, blocks=args.blocks)
    model, link = ModelConfig(kind=kind, hidden=args.hidden, layers=args.layers, band=args.band), LinkConfig()

    def epoch(comm: Comm) -> int:
        line = build_timeline(graph, config, model)
        task = build_task(graph, TaskConfig("node", config, link, 0), comm)
        made = build_predictor(
            model, link, task="node", in_features=line.in_features, out_features=task.num_outputs
        )
        made.reset(torch.Generator().manual_seed(0))
        wire = CommConfig.model_validate({"precision": precision})
        trainer = SnapshotsProcedure(made, line, task, TrainConfig(), snapshots=config, seed=0, wire=wire)
        train_epoch(trainer, 1)
        return sum(count for label, count in comm.meter.sent.items() if label.startswith("rows"))

    return sum(run_threads(epoch, ranks=ranks, threads=1))


def main() -> None:
    args = _parse()
    numbers = 4 * args.layers * args.steps * args.nodes * args.hidden
    ways: dict[str, Callable[[int], int]] = {
        "float32": lambda ranks: sent_of(args, ranks=ranks),
        "bfloat16": lambda ranks: sent_of(args, ranks=ranks, precision="bf16"),
        f"{1 - args.busy:.0%} idle": lambda ranks: sent_of(args, ranks=ranks, share=args.busy),
        "tm-gcn": lambda ranks: sent_of(args, ranks=ranks, kind="tm-gcn"),
    }
    print(
        f"T = {args.steps}, N = {args.nodes:,}, L = {args.layers}, F = {args.hidden}, band {args.band}, MB an epoch"
    )
    print(f"{'ranks':>5} {'closed form':>12}" + "".join(f"{name:>12} {'':>7}" for name in ways))
    found = {}
    for ranks in RANKS:
        closed = FLOAT * numbers * (ranks - 1) // ranks
        sent = {name: way(ranks) for name, way in ways.items()}
        shown = "".join(f"{count / 1e6:12.2f} {closed / count:6.2f}x" for count in sent.values())
        print(f"{ranks:5} {closed / 1e6:12.2f}{shown}", flush=True)
        found[ranks] = {"closed_form": closed, **sent}
    print(json.dumps(found))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--band", type=int, default=20)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--busy", type=float, default=0.25, help="share of nodes with an edge in a step")
    return parser.parse_args()


if __name__ == "__main__":
    require_core()
    main()
