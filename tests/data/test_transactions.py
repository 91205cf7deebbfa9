"""Generated payments: the same for the same arguments, all at once or step by step."""

from pathlib import Path

import pytest
import torch

from siafu.data import load
from siafu.data.importing import import_events
from siafu.dynamic import DynamicGraph

SPEC = "transactions:nodes=200,steps=7,events=2000,rings=0.2,seed=3"


def test_it_has_what_was_asked_for() -> None:
    graph = load(SPEC)
    assert isinstance(graph, DynamicGraph)
    assert (graph.num_nodes, graph.num_steps, graph.num_events) == (200, 7, 2000)
    assert graph.step_ptr.diff().tolist() == [285, 286, 286, 285, 286, 286, 286]
    assert not bool((graph.src == graph.dst).any())
    assert int(graph.y.sum()) == 40
    assert graph.x.shape == (200, 2)


def test_a_seed_is_a_graph() -> None:
    assert load(SPEC).fingerprint == load(SPEC).fingerprint
    assert load(SPEC).fingerprint != load(SPEC.replace("seed=3", "seed=4")).fingerprint


def test_some_payments_are_made_again_in_the_next_step() -> None:
    graph = load("transactions:nodes=5000,steps=3,events=6000,again=0.5")
    pairs = [
        set(zip(graph.src[events].tolist(), graph.dst[events].tolist(), strict=True))
        for events in (graph.events(step, step + 1) for step in range(3))
    ]
    assert 0.3 < len(pairs[0] & pairs[1]) / len(pairs[1]) < 0.6
    assert len(pairs[0] & pairs[2]) < len(pairs[0] & pairs[1])


def test_rings_pass_money_round() -> None:
    graph = load("transactions:nodes=1000,steps=50,events=5000,rings=0.5,again=0")
    within = graph.y[graph.src.long()] & graph.y[graph.dst.long()]
    assert float(within.float().mean()) > 0.3  # by chance a quarter


def test_it_is_written_step_by_step_as_it_is_in_memory(tmp_path: Path) -> None:
    store = import_events(tmp_path / "store", events=SPEC)
    assert store.graph().fingerprint == load(SPEC).fingerprint
    assert torch.equal(store.graph().step_time, load(SPEC).step_time)
    with pytest.raises(ValueError, match="its steps, features and labels are made with it"):
        import_events(tmp_path / "other", events=SPEC, step=1)


@pytest.mark.parametrize("spec", ["transactions:nodes=2", "transactions:events=0", "transactions:again=2"])
def test_invalid_arguments_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"transactions: .* expected"):
        load(spec)
