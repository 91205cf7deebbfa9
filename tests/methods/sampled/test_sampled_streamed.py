"""Sampled training on features that stay on disk: the same model as from memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import siafu
from siafu.data import community
from siafu.graph import Graph

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "sage": {"kind": "sage", "norm": "layer"},
    "sage-max": {"kind": "sage", "reduce": "max"},
    "gin": {"kind": "gin", "residual": True},
    "gat": {"kind": "gat", "heads": 2},
    "jump": {"kind": "sage", "jump": "cat"},
    "mlp": {"kind": "mlp"},
}


@pytest.fixture(scope="module")
def graph() -> Graph:
    """300 nodes of 3 classes, 12 counts each."""
    made = community(300, degree=8, classes=3, features=12)
    assert made.x is not None
    return replace(made, x=made.x.relu().round())


def trained(graph: Graph, out: Path, model: dict[str, Any], **settings: Any) -> siafu.Run:
    sampled = {"batch_size": 32, "fanout": (4, 3), **settings.pop("sampled", {})}
    config = {"model": {"hidden": 8, **model}, "sampled": sampled}
    how = {"epochs": 3, "patience": 0, "threads": 1, "engine": "local", "seed": 1, "method": "sampled"}
    return siafu.train(graph, out=out, config=config, **(how | settings))


def assert_same_weights(one: siafu.Run, other: siafu.Run) -> None:
    assert one.model is not None
    assert other.model is not None
    found = other.model.state_dict()
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}"
        )


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", MODELS)
def test_streamed_inputs_train_the_same_model(
    graph: Graph, tmp_path: Path, model: str, ranks: int, cache: bool
) -> None:
    cache = cache and model != "sage-max"  # of streamed inputs the maximum is not kept
    how: dict[str, Any] = {"ranks": ranks, "sampled": {"cache_aggregate": cache}}
    memory = trained(graph, tmp_path / "memory", MODELS[model], inputs="memory", **how)
    stream = trained(graph, tmp_path / "stream", MODELS[model], inputs="stream", **how)
    assert_same_weights(memory, stream)
    wanted, found = (siafu.predict(run, graph, embeddings=True) for run in (memory, stream))
    for name, rows in wanted.items():
        torch.testing.assert_close(found[name], rows, rtol=1e-3, atol=1e-3)
    assert stream.metrics["test_score"] == pytest.approx(memory.metrics["test_score"], abs=0.03)


def test_narrow_features_stay_narrow_on_disk(graph: Graph, tmp_path: Path) -> None:
    assert graph.x is not None
    narrow = replace(graph, x=(graph.x * 1.01).bfloat16())
    for model in ("sage", "gat"):
        memory = trained(narrow, tmp_path / f"{model}-memory", MODELS[model], inputs="memory")
        stream = trained(narrow, tmp_path / f"{model}-stream", MODELS[model], inputs="stream")
        assert_same_weights(memory, stream)


def test_activations_that_do_not_fit_are_scored_by_layer(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = trained(graph, tmp_path / "whole", MODELS["gcn"])
    monkeypatch.setattr("siafu.methods.static.usable_memory_bytes", lambda: 1000)
    found = trained(graph, tmp_path / "by-layer", MODELS["gcn"])
    assert_same_weights(wanted, found)
    assert found.metrics["val_score"] == wanted.metrics["val_score"]
