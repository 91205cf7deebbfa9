"""The PyG model of a run computes what siafu predicts, and other models are refused."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import siafu
from siafu.graph import Graph
from siafu.inference import Run
from siafu.training.procedure import Callbacks

with warnings.catch_warnings(action="ignore"):  # it uses what this torch calls deprecated
    import torch_geometric.nn as pyg

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK: dict[str, Any] = {"epochs": 3, "hidden": 8, "heads": 2, "search": "off", "normalize": "standard"}
LAYERS = {
    "gcn": pyg.GCNConv,
    "sage": pyg.SAGEConv,
    "gat": pyg.GATConv,
    "gatv2": pyg.GATv2Conv,
    "gin": pyg.GINConv,
    "mlp": nn.Linear,
}


@pytest.fixture(scope="module")
def looped(graph: Graph) -> Graph:
    """The small graph, directed, with loops, a double edge and a node without in-edges."""
    src, dst = graph.edge_index[:, graph.edge_index[1] != 7]
    more = torch.tensor([[0, 5, 3, 3], [0, 5, 9, 9]])
    edges = torch.cat([torch.stack([src, dst]), more], 1)
    masks = {f"{split}_mask": getattr(graph, f"{split}_mask") for split in ("train", "val", "test")}
    return Graph.from_edges(edges, x=graph.x, y=graph.y, **masks)


def train(graph: Graph, **settings: Any) -> Run:
    """Train with those of the settings that the kind of model has."""
    kind = settings.get("model", "gcn")
    lacks = {"heads", "output_heads"} if kind not in ("gat", "gatv2") else set()
    lacks |= {"reduce"} if kind != "sage" else set()
    lacks |= {"hidden"} if kind == "sgc" else set()
    return siafu.train(graph, **{name: value for name, value in settings.items() if name not in lacks})


def agree(run: Run, graph: Graph, **more: Tensor) -> nn.Module:
    """The PyG model gives what siafu predicts; returns it."""
    data, model = graph.to_pyg(), run.to_pyg()
    with torch.no_grad():
        found = model(data.x, data.edge_index, **more)
    torch.testing.assert_close(found, siafu.predict(run, graph)["output"], rtol=1e-5, atol=1e-5)
    return model


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm": "batch", "residual": True, "layers": 3},
        {"norm": "layer", "jump": "cat", "layers": 3},
        {"residual": True, "jump": "max", "hidden": 12},
        {"layers": 1, "output_heads": 3},
    ],
    ids=["plain", "batch-residual", "layer-cat", "residual-max", "one-layer"],
)
def test_a_pyg_model_has_the_outputs_of_the_run(
    kind: str, settings: dict[str, Any], looped: Graph, tmp_path: Path
) -> None:
    run = train(looped, model=kind, out=tmp_path / "run", **QUICK | settings)
    model = agree(run, looped)
    assert all(isinstance(conv, LAYERS[kind]) for conv in model.convs)  # type: ignore[union-attr]
    assert not model.training


def test_the_maximum_of_graphsage_is_that_of_pyg(looped: Graph, tmp_path: Path) -> None:
    agree(train(looped, model="sage", reduce="max", out=tmp_path / "run", **QUICK), looped)


@pytest.mark.parametrize("normalize", ["none", "rows", "standard"])
def test_features_are_prepared_as_the_run_did(normalize: str, looped: Graph, tmp_path: Path) -> None:
    assert isinstance(looped.x, Tensor)
    x = (looped.x * torch.arange(1.0, 13.0)).relu()
    x[4] = 0  # a row that has no sum
    graph = replace(looped, x=x)
    run = train(graph, out=tmp_path / "run", **QUICK | {"normalize": normalize})
    agree(run, graph)
    if normalize != "none":
        agree(run, replace(graph, x=100 * x))  # beyond the range of the training nodes


@pytest.mark.parametrize("dtype", [torch.bfloat16, "sparse"])
def test_narrow_and_sparse_features_are_read_as_dense(dtype: Any, looped: Graph, tmp_path: Path) -> None:
    assert isinstance(looped.x, Tensor)
    x = looped.x.to(dtype) if dtype != "sparse" else looped.x.relu().where(looped.x > 1, 0.0).to_sparse()
    graph = Graph.from_edges(looped.edge_index, x=x, y=looped.y, train_mask=looped.train_mask)
    agree(train(graph, out=tmp_path / "run", **QUICK | {"normalize": "none"}), graph)


@pytest.mark.parametrize(
    ("kind", "reduce"), [("gcn", "mean"), ("sage", "mean"), ("sage", "max"), ("gin", "mean"), ("gat", "mean")]
)
def test_weights_of_edges_are_read(kind: str, reduce: str, looped: Graph, tmp_path: Path) -> None:
    weight = torch.rand(looped.num_edges, generator=torch.Generator().manual_seed(1)) + 0.1
    graph = replace(looped, edge_weight=weight)
    run = train(graph, model=kind, reduce=reduce, out=tmp_path / "run", **QUICK)
    agree(run, graph, edge_weight=graph.to_pyg().edge_weight)


def test_a_pyg_model_owns_its_weights_and_trains_on(looped: Graph, tmp_path: Path) -> None:
    run = train(looped, model="gcn", norm="batch", out=tmp_path / "run", **QUICK)
    before, data, model = run.predict()["output"], looped.to_pyg(), run.to_pyg().train()
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    model(data.x, data.edge_index).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    adam.step()
    assert torch.equal(run.predict()["output"], before)
    assert {drop.p for drop in model.drops} == {0.5}  # type: ignore[union-attr]


def test_a_run_that_was_opened_is_converted(looped: Graph, tmp_path: Path) -> None:
    train(looped, model="gat", out=tmp_path / "run", **QUICK)
    agree(siafu.open(tmp_path / "run"), looped)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "appnp"}, r"has a model of kind appnp \(Appnp\)"),
        ({"model": "sgc"}, "has a model of kind sgc"),
        ({"model": "gcn2"}, "has a model of kind gcn2"),
        ({"method": "lazy"}, r"has a model of kind gcn \(Layered\)"),
        ({"ensemble": 2}, "is an ensemble; convert its members, such as siafu.open.'.*member-0'."),
        ({"seeds": 2}, "has no model: it was stopped, or holds several seeds"),
        ({"task": "link", "normalize": "none"}, "was trained for task link"),
    ],
)
def test_other_models_are_refused(
    settings: dict[str, Any], message: str, graph: Graph, tmp_path: Path
) -> None:
    run = train(graph, out=tmp_path / "run", **QUICK | {"epochs": 1} | settings)
    with pytest.raises(
        ValueError, match=f"{message}.*; to_pyg converts models .* gcn, sage, gat, gatv2, gin, mlp"
    ):
        run.to_pyg()


def test_models_of_rows_that_were_learned_are_refused(graph: Graph, tmp_path: Path) -> None:
    bare = replace(graph, x=None)
    run = train(bare, out=tmp_path / "run", **QUICK | {"normalize": "none"})
    with pytest.raises(ValueError, match="learned a row for each node, since its graph has no features"):
        run.to_pyg()


def test_a_stopped_run_is_refused(graph: Graph, tmp_path: Path) -> None:
    stop = Callbacks(should_stop=lambda: "SIGINT")
    with pytest.raises(ValueError, match="has no model: it was stopped"):
        train(graph, out=tmp_path / "run", callbacks=stop, **QUICK).to_pyg()
