"""Event files, and the protocols of the public dynamic data sets."""

from pathlib import Path

import numpy as np
import pytest

from siafu.data import available, load
from siafu.data.npz import write_npz
from siafu.dynamic import DynamicGraph

EVENTS = {
    "src": np.array([0, 1, 2]),
    "dst": np.array([1, 2, 0]),
    "t": np.array([0, 5, 9]),
    "num_nodes": np.array(4),
}

# name, steps, events, undirected, negatives, bounds of training and validation: as published, see docs/dynamic.md
KNOWN = [
    ("ucsocial", 89, 59_835, True, 50, (61, 70)),
    ("bitcoinotc", 138, 35_592, True, 100, (95, 109)),
    ("bitcoinalpha", 137, 24_186, True, 100, (95, 108)),
    ("chess", 100, 65_053, True, 100, (79, 89)),
    ("england_covid", 61, 82_529, False, 100, (42, 48)),
    ("amlsim", 149, 117_805, False, 100, (103, 118)),
    ("vgrnn_enron10", 11, 2_392, True, 100, (7, 8)),
]


@pytest.mark.parametrize(("name", "steps", "events", "undirected", "negatives", "bounds"), KNOWN)
def test_public_sets_come_with_their_protocol(
    data_home: Path,
    name: str,
    steps: int,
    events: int,
    undirected: bool,
    negatives: int,
    bounds: tuple[int, int],
) -> None:
    graph = load(name, home=data_home)
    assert isinstance(graph, DynamicGraph)
    assert (graph.num_steps, graph.num_events, graph.undirected) == (steps, events, undirected)
    assert graph.protocol.negatives == negatives
    assert graph.protocol.bounds(steps) == bounds
    match name:
        case "bitcoinotc" | "bitcoinalpha":
            assert ((graph.weight > 0) == (graph.edge_y == 1)).all()
        case "chess":
            assert graph.edge_y.unique().tolist() == [0, 1, 2]
        case "england_covid":
            assert graph.x[9, :, 7].equal(graph.y[8])
            assert graph.x[0].abs().sum() == 0
        case "amlsim":
            assert graph.y.sum() == 945
        case "vgrnn_enron10":
            assert (graph.src < graph.dst).all()


def test_an_unknown_set_is_cut_as_it_says_or_as_was_asked(tmp_path: Path) -> None:
    write_npz(tmp_path / "calls.npz", EVENTS)
    assert load("calls", home=tmp_path).num_steps == 3
    assert load(tmp_path / "calls.npz", step=4).num_steps == 3
    assert load(tmp_path / "calls.npz", steps=2).step_ptr.tolist() == [0, 1, 3]
    write_npz(tmp_path / "cut.npz", EVENTS | {"step": np.array(5), "undirected": np.array(1)})
    graph = load("cut", home=tmp_path)
    assert (graph.num_steps, graph.undirected, graph.num_nodes) == (2, True, 4)
    with pytest.raises(ValueError, match="its split is by time"):
        load("cut", home=tmp_path, fold=1)
    assert [each.name for each in available(tmp_path) if each.where.startswith(str(tmp_path))] == [
        "calls",
        "cut",
    ]


def test_a_file_of_many_times_says_what_to_give(tmp_path: Path) -> None:
    many = {"src": np.zeros(1001, int), "dst": np.ones(1001, int), "t": np.arange(1001)}
    write_npz(tmp_path / "calls.npz", many)
    with pytest.raises(ValueError, match="1001 distinct times from 0 to 1000"):
        load("calls", home=tmp_path)
