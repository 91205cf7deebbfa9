"""Stores of dynamic graphs: round trips and damage."""

import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash

from siafu.dynamic import DynamicGraph, Protocol
from siafu.graph import Graph
from siafu.store import DynamicStore, open_any, open_dynamic, open_store, write_dynamic, write_store
from siafu.store.manifest import DynamicManifest, read_manifest, write_manifest


@pytest.fixture
def graph() -> DynamicGraph:
    """Four nodes, five events in steps 0, 2 and 3 of four; everything that a dynamic graph may have."""
    made = DynamicGraph.from_events(
        [0, 1, 2, 3, 0],
        [1, 2, 3, 0, 2],
        [10.0, 12.5, 30, 39, 41],
        step=10,
        weight=[0.5, 1, 2, 3, 4],
        edge_y=[0, 1, -1, 1, 0],
        x=torch.arange(32, dtype=torch.float32).reshape(4, 4, 2),
        y=torch.tensor([[1.0, 2, float("nan"), 4]]).expand(4, 4),
        undirected=True,
        name="four",
        protocol=Protocol(window=2, edge_life=2, negatives=3, split=(0.5, 0.25, 0.25), task="regression"),
    )
    return replace(made, node_names=pa.array(["ant", "bee", "", "żuk"]), class_names=("down", "up"))


def assert_same(one: DynamicGraph, other: DynamicGraph) -> None:
    for field in fields(DynamicGraph):
        if field.name == "checked":  # the arrays themselves
            continue
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True, msg=field.name)
        elif isinstance(a, pa.Array):
            assert a.to_pylist() == b.to_pylist(), field.name
        else:
            assert a == b, field.name


def test_a_dynamic_graph_round_trips(graph: DynamicGraph, tmp_path: Path) -> None:
    write_dynamic(graph, tmp_path / "four")
    found = open_dynamic(tmp_path / "four").graph()
    assert_same(graph, found)
    assert found.fingerprint == graph.fingerprint


def test_a_store_says_what_it_holds(graph: DynamicGraph, tmp_path: Path) -> None:
    about = write_dynamic(graph, tmp_path / "four").describe()
    assert about["events"] == 5
    assert about["steps"] == 4
    assert about["empty_steps"] == 1
    assert (about["first_step"], about["last_step"], about["step"]) == (10.0, 40.0, 10.0)
    assert about["largest_step"] == 2
    assert about["largest_snapshot"] == 2 * 3  # events of steps 2 and 3, in both directions


def test_each_kind_of_store_is_refused_as_the_other(graph: DynamicGraph, tmp_path: Path) -> None:
    write_dynamic(graph, tmp_path / "dynamic")
    write_store(Graph.from_edges([[0, 1], [1, 0]]), tmp_path / "static")
    with pytest.raises(ValueError, match="dynamic: a graph that changes over time"):
        open_store(tmp_path / "dynamic")
    with pytest.raises(ValueError, match="static: a graph that does not change over time"):
        open_dynamic(tmp_path / "static")
    assert isinstance(open_any(tmp_path / "dynamic"), DynamicStore)
    assert not isinstance(open_any(tmp_path / "static"), DynamicStore)


@pytest.mark.parametrize("name", ["src", "step_ptr", "weight", "x", "y"])
def test_a_changed_byte_is_found(graph: DynamicGraph, tmp_path: Path, name: str) -> None:
    write_dynamic(graph, tmp_path / "four")
    path = tmp_path / "four" / f"{name}.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"{name}.bin: checksum is"):
        open_dynamic(tmp_path / "four").graph()


def test_steps_that_do_not_ascend_are_refused(graph: DynamicGraph, tmp_path: Path) -> None:
    store = write_dynamic(graph, tmp_path / "four")
    values = np.array([0, 3, 2, 4, 5])
    (store.path / "step_ptr.bin").write_bytes(values.tobytes())
    spec = store.manifest.arrays["step_ptr"]
    forged = spec.model_copy(update={"xxh3_128": xxhash.xxh3_128_hexdigest(values.tobytes())})
    manifest = store.manifest.model_copy(update={"arrays": store.manifest.arrays | {"step_ptr": forged}})
    write_manifest(manifest, store.path)
    with pytest.raises(ValueError, match=r"four: step_ptr\[2\] is 2, but the offset before it is 3"):
        open_dynamic(store.path).graph()


def test_arrays_that_do_not_fit_are_refused(graph: DynamicGraph, tmp_path: Path) -> None:
    write_dynamic(graph, tmp_path / "four")
    manifest = read_manifest(tmp_path / "four")
    assert isinstance(manifest, DynamicManifest)
    short = manifest.arrays["step_time"].model_copy(update={"shape": (3,)})
    write_manifest(
        manifest.model_copy(update={"arrays": manifest.arrays | {"step_time": short}}), tmp_path / "four"
    )
    with pytest.raises(ValueError, match=r"arrays.step_time has shape \(3,\); expected \(T = 4\)"):
        open_dynamic(tmp_path / "four")
    empty = manifest.arrays["x"].model_copy(update={"shape": (4, 0)})
    write_manifest(manifest.model_copy(update={"arrays": manifest.arrays | {"x": empty}}), tmp_path / "four")
    with pytest.raises(ValueError, match=r"arrays.x is \(4, 0\); expected at least one feature"):
        open_dynamic(tmp_path / "four")
    text = json.loads((tmp_path / "four" / "manifest.json").read_text())
    text["num_nodes"] = 5
    (tmp_path / "four" / "manifest.json").write_text(json.dumps(text))
    with pytest.raises(ValueError, match="was changed or damaged"):
        open_dynamic(tmp_path / "four")
