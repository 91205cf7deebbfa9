"""What passing time in blocks costs a run in time and saves it in memory: CD-GCN in one block beside several, in turns.

    python benchmarks/temporal_blocks.py                     20k nodes, 200k edges in each of 50 steps, hidden 64
    python benchmarks/temporal_blocks.py --room 500

The pass that scores the model is the first pass of the next epoch's blocks, so each is measured with scores after every
epoch, which is the default, and without. One thread, CPU seconds; the first epoch is not counted. Memory is that over
what the process held without the procedure: rows, states, graphs of steps, and what is kept of those and of their
inputs. One block keeps all of them. Gradients alone, with graphs as part of the base: ``temporal.py --memory``.
"""

import argparse
import json
import sys
import time
from typing import Any

import torch
from core import require_core
from temporal_side import CLASSES, forget_peak, status_bytes
from turns import Side

from siafu import native
from siafu.comm import single_rank_comm
from siafu.dynamic import DynamicGraph, Protocol
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.procedure import SnapshotsProcedure
from siafu.nn.model import ModelConfig
from siafu.training.config import TrainConfig
from siafu.training.link.config import LinkConfig
from siafu.training.procedure import train_epoch

ALL = 10**6  # MB of room: one block, and all is kept


def graph_of(args: argparse.Namespace) -> DynamicGraph:
    """Events, inputs and classes at random in every step; the last step but one validates, the last tests."""
    random, steps = torch.Generator().manual_seed(0), args.steps + 2
    ends = torch.randint(args.nodes, (2, steps * args.edges // 2), generator=random)
    return DynamicGraph.from_events(
        ends[0],
        ends[1],
        torch.arange(steps).repeat_interleave(args.edges // 2),
        steps=steps,
        num_nodes=args.nodes,
        undirected=True,
        x=torch.randn(steps, args.nodes, args.hidden, generator=random),
        y=torch.randint(CLASSES, (steps, args.nodes), generator=random),
        protocol=Protocol(split=(args.steps / steps, 1 / steps, 1 / steps), task="node"),
    )


def trainer_of(graph: DynamicGraph, args: argparse.Namespace) -> SnapshotsProcedure:
    snapshots = SnapshotsConfig(edge_life=1, window=0, room_mb=args.room)
    model, link = ModelConfig(kind="cd-gcn", layers=1, hidden=args.hidden), LinkConfig()
    line = build_timeline(graph, snapshots, model)
    task = build_task(graph, TaskConfig("node", snapshots, link, 0), single_rank_comm())
    made = build_predictor(
        model, link, task="node", in_features=line.in_features, out_features=task.num_outputs
    )
    config = TrainConfig(epochs=10**6)
    return SnapshotsProcedure(made, line, task, config, snapshots=snapshots, seed=0)


def be_a_side(args: argparse.Namespace) -> None:
    """Train for an epoch whenever told to, and score the model where that is asked for."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph = graph_of(args)
    forget_peak()
    base = status_bytes("VmRSS")
    trainer = trainer_of(graph, args)
    native.map_large_arrays()
    print(json.dumps({"ready": True}), flush=True)
    with native.arrays_reused():
        for epoch, line in enumerate(sys.stdin, 1):
            if line.strip() == "end":
                break
            began = time.process_time()
            loss = train_epoch(trainer, epoch)
            trained = time.process_time()
            if args.scored:
                trainer.evaluate(epoch)
            scored = time.process_time() - trained
            told = {"seconds": trained - began, "score_seconds": scored, "loss": loss}
            print(json.dumps(told), flush=True)
    found = {
        "peak_bytes_over_base": status_bytes("VmHWM") - base,
        "blocks": len(trainer._plan.lengths),
        "last_block": trainer._plan.lengths[-1],
    }
    print(json.dumps(found), flush=True)


def compare(args: argparse.Namespace, *, scored: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", *(["--scored"] if scored else [])]
    for name in ("nodes", "edges", "steps", "hidden"):
        command += [f"--{name}", str(getattr(args, name))]
    rooms = {"one block": ALL, "several": args.room}
    sides = [Side(name, [*command, "--room", str(room)]) for name, room in rooms.items()]
    for _ in range(args.rounds + 1):
        for side in sides:
            side.step()
    found = {side.name: side.end() for side in sides}
    one, several = ([side["seconds"], side["seconds"] + side["score_seconds"]] for side in found.values())
    times, with_scores = (more / less for less, more in zip(one, several, strict=True))
    return {"scored": scored, **found, "times": times, "times_with_scores": with_scores}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--room", type=int, default=225, help="MB, snapshots.room_mb where there are several")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scored", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        be_a_side(args)
        return
    for scored in (True, False):
        print(json.dumps(compare(args, scored=scored), indent=2), flush=True)


if __name__ == "__main__":
    require_core()
    main()
