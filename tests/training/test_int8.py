"""Features kept in int8 with a scale a row: they train as float32 does, wherever they are read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import siafu
from siafu.comm.quantization import quantize_int8
from siafu.data import community
from siafu.data.config import DataConfig
from siafu.graph import Graph
from siafu.partition.cut import cut
from siafu.store import write_store
from siafu.training import inputs


@pytest.fixture(scope="module")
def wide() -> Graph:
    """400 nodes of 3 classes."""
    return community(400, degree=8, classes=3, features=12)


@pytest.fixture(scope="module")
def narrow(wide: Graph) -> Graph:
    """The same nodes in int8."""
    assert wide.x is not None
    levels, scale = quantize_int8(wide.x)
    return replace(wide, x=levels, x_scale=scale)


def trained(graph: Graph | Path, out: Path, **settings: Any) -> siafu.Run:
    config = {"sampled": {"batch_size": 32, "fanout": (4, 4)}} if settings.get("method") == "sampled" else {}
    how = {
        "hidden": 16,
        "epochs": 12,
        "patience": 0,
        "engine": "local",
        "threads": 1,
        "dropout": 0.1,
        "normalize": "none",
        "lr": 0.02,
    }
    return siafu.train(graph, out=out, config=config, **(how | settings))


@pytest.mark.parametrize(
    ("method", "model", "stored", "ranks"),
    [
        *(("full", model, stored, 1) for model in ("gcn", "gat") for stored in ("memory", "stream")),
        *(("sampled", model, stored, 1) for model in ("sage", "gat") for stored in ("memory", "stream")),
        ("full", "gcn", "stream", 2),
        ("sampled", "sage", "memory", 2),
        ("sampled", "gat", "stream", 2),
    ],
)
def test_int8_trains_as_float32_does(
    wide: Graph, narrow: Graph, tmp_path: Path, method: str, model: str, stored: str, ranks: int
) -> None:
    how = {"method": method, "model": model, "ranks": ranks}
    wanted = trained(wide, tmp_path / "wide", **how, inputs="memory")
    found = trained(narrow, tmp_path / "narrow", **how, inputs=stored)
    assert found.test_accuracy == pytest.approx(wanted.test_accuracy, abs=0.04)
    same = trained(
        replace(narrow, x=narrow.features, x_scale=None), tmp_path / "same", **how, inputs="memory"
    )
    assert found.metrics["val_score"] == pytest.approx(same.metrics["val_score"], abs=0.02)
    out = siafu.predict(found, narrow)["output"]
    torch.testing.assert_close(out, siafu.predict(same, narrow)["output"], rtol=1e-2, atol=1e-2)


def test_rows_of_int8_can_sum_to_one(wide: Graph, tmp_path: Path) -> None:
    assert wide.x is not None
    levels, scale = quantize_int8(wide.x.relu())
    levels[5] = 0
    counts = replace(wide, x=levels, x_scale=scale)
    config = DataConfig(normalize="rows")
    wanted = inputs.features(replace(wide, x=counts.features), config)
    for found in (inputs.features(counts, config), inputs.streamed(counts, config, folder=tmp_path).whole()):
        torch.testing.assert_close(found, wanted)
        assert found[6].sum() == pytest.approx(1)


def test_everything_that_moves_rows_moves_their_scale(narrow: Graph, tmp_path: Path) -> None:
    assert narrow.features is not None
    order = torch.randperm(narrow.num_nodes, generator=torch.Generator().manual_seed(0))
    moved = narrow.reordered(order).features
    assert moved is not None
    assert torch.equal(moved, narrow.features[order])
    part_of_node = (torch.arange(narrow.num_nodes) % 3).to(torch.int32)
    for one in cut(narrow, part_of_node, parts=3):
        own = one.part(narrow).own.features
        assert own is not None
        assert torch.equal(own, narrow.features[one.rows])
    assert narrow.x_scale is not None
    other = replace(narrow, x_scale=narrow.x_scale * 2)
    assert inputs.fingerprint(other) != inputs.fingerprint(narrow)
    stored = write_store(narrow, tmp_path / "store").graph().features
    assert stored is not None
    assert torch.equal(stored, narrow.features)


def test_parts_on_disk_and_a_run_from_a_store(narrow: Graph, tmp_path: Path) -> None:
    write_store(narrow, tmp_path / "store")
    one = trained(tmp_path / "store", tmp_path / "one", inputs="stream")
    several = trained(tmp_path / "store", tmp_path / "several", inputs="stream", ranks=2, engine="processes")
    assert several.test_accuracy == pytest.approx(one.test_accuracy, abs=0.03)


def test_pyg_gets_numbers(narrow: Graph) -> None:
    pytest.importorskip("torch_geometric")
    assert narrow.features is not None
    assert np.array_equal(narrow.to_pyg().x.numpy(), narrow.features.numpy())
