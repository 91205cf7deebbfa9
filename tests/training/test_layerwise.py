"""Layer by layer and range by range: what a pass over the whole graph gives, in bounded memory."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.halo import Halo
from siafu.context import NO_EXCHANGE
from siafu.graph import Graph
from siafu.launch.local import run_threads
from siafu.nn import Gnn, ModelConfig
from siafu.nn.appnp import Appnp
from siafu.nn.model import Order, StageRows
from siafu.nn.norm import BatchNorm
from siafu.nn.ops import Ops
from siafu.nn.streamed import Streamed
from siafu.partition.cut import Part, cut, whole_part
from siafu.training.layerwise import Room, embeddings_by_layer, outputs_by_layer
from siafu.training.spill import spill_to

NODES, WIDTH = 60, 9
TINY = 700  # bytes: a few rows
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn-wide": {"kind": "gcn", "hidden": 20, "layers": 3, "residual": True},
    "sage": {"kind": "sage", "norm": "layer", "residual": True},
    "sage-max": {"kind": "sage", "reduce": "max", "layers": 3},
    "gin": {"kind": "gin", "jump": "cat"},
    "gat": {"kind": "gat", "heads": 2, "layers": 3, "residual": True},
    "gatv2": {"kind": "gatv2", "heads": 2, "output_heads": 2},
    "batch-norm": {"kind": "gcn", "norm": "batch", "layers": 3},
    "jump-max": {"kind": "sage", "jump": "max", "norm": "batch"},
    "one-layer": {"kind": "gcn", "layers": 1},
    "mlp": {"kind": "mlp", "residual": True},
}


def graph_of(*, weighted: bool) -> Graph:
    """60 nodes with loops, repeated edges, isolated nodes and one that hears almost all others."""
    draw = torch.Generator().manual_seed(5)
    edges = torch.randint(NODES - 2, (2, 400), generator=draw)
    hub = torch.stack([torch.arange(NODES - 5), torch.full((NODES - 5,), 7)])
    edges = torch.cat([edges, edges[:, :20], hub, torch.tensor([[3, 3, 4], [3, 3, 4]])], 1)
    return Graph.from_edges(
        edges,
        x=torch.randn(NODES, WIDTH, generator=draw),
        edge_weight=torch.rand(edges.shape[1], generator=draw) if weighted else None,
        num_nodes=NODES,
    )


def parts_of(graph: Graph, ranks: int) -> list[Part]:
    """The last of several parts owns nothing."""
    if ranks == 1:
        return [whole_part(graph)]
    draw = torch.Generator().manual_seed(ranks)
    part_of_node = torch.randint(max(2, ranks - 1), (NODES,), generator=draw).to(torch.int32)
    return [one.part(graph) for one in cut(graph, part_of_node, parts=ranks)]


def model_of(settings: dict[str, Any], dtype: torch.dtype) -> Gnn:
    config = ModelConfig.model_validate({"hidden": 6, **settings})
    model = Gnn(config, in_features=WIDTH, out_features=4)
    model.reset(torch.Generator().manual_seed(1))
    draw = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, BatchNorm):
            assert module.running_mean is not None
            module.running_mean.normal_(generator=draw)
    return model.to(dtype).eval()


def found_by(
    part: Part, comm: Comm, model: Gnn, x: Tensor | Streamed, *, static: bool, budget: int, folder: Path
) -> dict[str, Tensor]:
    exchange = Halo(comm, part.route, num_own=part.own.num_nodes) if comm.world_size > 1 else NO_EXCHANGE
    block, room = part.context(exchange), Room(spill_to(folder), budget)
    block = block.with_static(x) if static else block
    with torch.no_grad():
        return {
            "wanted": model(block, x),
            "output": outputs_by_layer(model, block, x, room=room),
            "again": outputs_by_layer(model, block, x, room=room),
            "wanted_embedding": model.embed(block, x),
            "embedding": embeddings_by_layer(model, block, x, room=room),
        }


def check(found: dict[str, Tensor], **within: float) -> None:
    torch.testing.assert_close(found["output"], found["wanted"], **within)
    assert torch.equal(found["output"], found["again"])
    torch.testing.assert_close(found["embedding"], found["wanted_embedding"], **within)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("model", MODELS)
def test_layers_range_by_range_say_what_the_whole_pass_says(model: str, ranks: int, tmp_path: Path) -> None:
    for weighted, static, budget in [(False, False, TINY), (True, True, TINY), (True, False, 10**9)]:
        parts = parts_of(graph_of(weighted=weighted), ranks)

        def rank(comm: Comm, parts: list[Part] = parts, how: Any = (static, budget)) -> dict[str, Tensor]:
            part = parts[comm.rank]
            assert part.own.x is not None
            x, made = part.own.x.double(), model_of(MODELS[model], torch.float64)
            return found_by(part, comm, made, x, static=how[0], budget=how[1], folder=tmp_path)

        for found in run_threads(rank, ranks=ranks, threads=1):
            check(found, rtol=0, atol=1e-12)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("model", [name for name in MODELS if name != "sage-max"])
def test_streamed_rows_are_gathered_with_their_scale(
    model: str, ranks: int, static: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.nn.aggregates.halo._HALO_BYTES", 4 * NODES * 2)
    parts = parts_of(graph_of(weighted=False), ranks)

    def rank(comm: Comm) -> dict[str, Tensor]:
        part = parts[comm.rank]
        assert part.own.x is not None
        scale = 1 + part.own.x[:, 0].abs()
        x = Streamed(part.own.x.bfloat16(), spill_to(tmp_path), scale)
        made = model_of(MODELS[model], torch.float32)
        return found_by(part, comm, made, x, static=static, budget=TINY, folder=tmp_path)

    for found in run_threads(rank, ranks=ranks, threads=1):
        check(found, rtol=1e-4, atol=1e-4)


class PageRank(Appnp):
    """Personalised PageRank of the inputs: stage 0 passes them on, and every stage reads them again."""

    def stage(self, ops: Ops, number: int, rows: StageRows, order: Order) -> tuple[Any, Any]:
        h = ops.mix(rows.m, rows.h[0], 0.2) if number else rows.x
        return h, h


def test_inputs_that_stage_0_passes_on_may_be_read_again(tmp_path: Path) -> None:
    graph = graph_of(weighted=False)
    assert graph.x is not None
    width = graph.x.shape[1]
    model = PageRank(ModelConfig(kind="appnp", hops=3), width, width).to(graph.x.dtype).eval()
    with torch.no_grad():
        wanted = model(graph.block, graph.x)
    found = outputs_by_layer(model, graph.block, graph.x, room=Room(spill_to(tmp_path), TINY))
    torch.testing.assert_close(found, wanted)


def test_the_maximum_of_streamed_rows_is_taken_range_by_range(tmp_path: Path) -> None:
    graph, model = graph_of(weighted=False), model_of(MODELS["sage-max"], torch.float32)
    assert graph.x is not None
    x = Streamed(graph.x, spill_to(tmp_path))
    with torch.no_grad():
        wanted = model(graph.block, graph.x)
    found = outputs_by_layer(model, graph.block.with_static(x), x, room=Room(spill_to(tmp_path), TINY))
    torch.testing.assert_close(found, wanted)


MEASURE = """
import sys, threading
from pathlib import Path
import torch
from siafu.data import community
from siafu.nn import Gnn, ModelConfig
from siafu.training.layerwise import Room, outputs_by_layer
from siafu.training.spill import spill_to

def anonymous() -> int:
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

torch.set_num_threads(1)
graph = community(60_000, degree=6, classes=3, features=8)
config = ModelConfig(kind=sys.argv[1], layers=3, hidden=256, heads=2)
model = Gnn(config, in_features=8, out_features=3).eval()
room = Room(spill_to(Path(sys.argv[2])), 8_000_000)
small = community(1000, degree=6, classes=3, features=8)
outputs_by_layer(model, small.block, small.x, room=room)  # what is imported or started once is there
graph.block.in_degree, graph.block.missing_loop
before, peak, done = anonymous(), 0, threading.Event()

def watch() -> None:
    global peak
    while not done.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
outputs_by_layer(model, graph.block, graph.x, room=room)
done.set()
watcher.join()
print(peak - before)
"""


@pytest.mark.parametrize("model", ["gat"])
def test_activations_larger_than_what_is_held_in_memory(model: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, model, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.splitlines()[-1]) < 30e6, "of 61 MB that each layer writes"
