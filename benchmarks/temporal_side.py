"""One side of ``temporal.py``: a model over time, an epoch whenever it is told to.

    python benchmarks/temporal_side.py siafu cd-gcn --nodes 20000 --edges 200000 --steps 50 --cut

It runs where siafu is installed, or, as ``pyg-temporal``, in a Python that has torch_geometric_temporal.
"""

import argparse
import ctypes
import json
import sys
import time
import types
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 2


def timeline(args: argparse.Namespace) -> tuple[list[Tensor], Tensor, Tensor]:
    """The edges of each step, both directions, without loops; static inputs and classes of the nodes."""
    random = torch.Generator().manual_seed(0)
    edges = []
    for _ in range(args.steps):
        src = torch.randint(args.nodes, (args.edges // 2,), generator=random)
        dst = (src + torch.randint(1, args.nodes, (args.edges // 2,), generator=random)) % args.nodes
        edges.append(torch.stack([torch.cat([src, dst]), torch.cat([dst, src])]))
    x = torch.randn(args.steps, args.nodes, args.hidden, generator=random)
    y = torch.randint(CLASSES, (args.nodes,), generator=random)
    return edges, x, y


class Ours:
    """siafu's model, its time passed in one block or in several."""

    def __init__(self, args: argparse.Namespace) -> None:
        from siafu import native
        from siafu.graph import Graph
        from siafu.nn import ModelConfig
        from siafu.nn.dense import Dense
        from siafu.nn.temporal import Step, build_temporal, estimate_memory, plan_segments

        edges, self.x, self.y = timeline(args)
        config = ModelConfig(kind=args.kind, layers=args.layers, hidden=args.hidden)
        self.model = build_temporal(config, in_features=args.hidden)
        self.head = Dense(args.hidden, CLASSES)  # the trainer's own, whose arrays are used again too
        blocks = [Graph.from_edges(each, num_nodes=args.nodes).block for each in edges]
        self.steps = [Step(block, 1.0, True) for block in blocks]
        for step in self.steps:
            step.scale(torch.float32)  # is kept with the graph
        self.args, self.m = args, None
        need = estimate_memory(self.model, args.nodes)
        budget = args.room * 10**6 or None
        self.lengths = plan_segments(args.steps, need, budget=budget) if args.cut else [args.steps]
        if args.cut:
            native.map_large_arrays()  # as the trainer does, whose arrays die block by block
        self.reused = native.arrays_reused()
        self.reused.__enter__()

    def parameters(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.head.parameters()]

    def pass_back(self) -> float:
        from siafu.nn.temporal import Span, checkpointed_backward, span_alone

        if self.m is None and not self.args.forget:
            whole = span_alone(self.steps, self.x)
            self.m, _ = self.model.aggregate_inputs(whole, self.model.begin(self.args.nodes))
        ends = [0, *accumulate(self.lengths)]

        def span_of(block: int) -> Span:
            some = slice(ends[block], ends[block + 1])
            m = None if self.m is None else self.m[some]
            return span_alone(self.steps[some], self.x[some], first=some.start, m=m)

        def loss_of(block: int, place: int, h: Tensor) -> Tensor:
            scores = self.head.project(h) + self.head.bias
            return nn.functional.cross_entropy(scores, self.y) / self.args.steps

        state = self.model.begin(self.args.nodes)
        loss = checkpointed_backward(
            self.model, span_of, loss_of, num_segments=len(self.lengths), state=state
        )
        return float(loss)


class Theirs(nn.Module):
    """The same model of PyG Temporal's layers; CD-GCN, which it has not, of PyG's convolution and torch's LSTM."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.edges, self.x, self.y = timeline(args)
        stub_sparse()
        from torch_geometric.nn import GCNConv
        from torch_geometric_temporal.nn.recurrent import EvolveGCNH, EvolveGCNO

        width, self.kind = args.hidden, args.kind
        made: list[nn.Module] = []
        for _ in range(args.layers):
            match args.kind:
                case "evolvegcn-o":
                    made.append(EvolveGCNO(width))
                case "evolvegcn-h":
                    made.append(EvolveGCNH(args.nodes, width))
                case "cd-gcn":
                    made.append(nn.ModuleList([GCNConv(width, width, bias=False), nn.LSTM(2 * width, width)]))
        self.layers = nn.ModuleList(made)
        self.head = nn.Linear(width, CLASSES)

    def pass_back(self) -> float:
        rows = list(self.x.unbind())
        for layer in self.layers:
            if isinstance(layer, nn.ModuleList):
                convolution, lstm = layer
                inner = [convolution(x, e).relu() for x, e in zip(rows, self.edges, strict=True)]
                both = [torch.cat(pair, 1) for pair in zip(inner, rows, strict=True)]
                out, _ = lstm(torch.stack(both))
                rows = list(out.unbind())
            else:
                layer.reinitialize_weight()
                rows = [layer(x, e).relu() for x, e in zip(rows, self.edges, strict=True)]
        loss = sum(nn.functional.cross_entropy(self.head(h), self.y) for h in rows) / len(rows)
        assert isinstance(loss, Tensor)
        loss.backward()
        return float(loss.detach())


def stub_sparse() -> None:
    """PyG Temporal imports torch_sparse, which no torch of today has wheels for, and reads one name of it in a type."""
    stub: Any = types.ModuleType("torch_sparse")
    stub.SparseTensor = type("SparseTensor", (), {})
    sys.modules.setdefault("torch_sparse", stub)


def status_bytes(field: str) -> int:
    """A field of the process's own status: VmRSS, what is resident, or VmHWM, the most that ever was."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def forget_peak() -> None:
    """What making the data took does not count: the peak begins anew."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("side", choices=["siafu", "pyg-temporal"])
    parser.add_argument("kind")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--cut", action="store_true", help="cut time into blocks")
    parser.add_argument("--room", type=int, default=0, help="MB for blocks and states; 0: as few as can be")
    parser.add_argument("--forget", action="store_true", help="do not keep the first layer's aggregate")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    side: Any = Ours(args) if args.side == "siafu" else Theirs(args)
    adam = torch.optim.Adam(side.parameters(), lr=0.01)
    forget_peak()
    base = status_bytes("VmRSS")
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        began, cpu = time.perf_counter(), time.process_time()
        loss = side.pass_back()
        adam.step()
        adam.zero_grad()
        told = {
            "seconds": time.process_time() - cpu,
            "wall_seconds": time.perf_counter() - began,
            "loss": loss,
        }
        print(json.dumps(told), flush=True)
    print(json.dumps({"peak_bytes_over_base": status_bytes("VmHWM") - base}), flush=True)


if __name__ == "__main__":
    main()
