"""The memory of a temporal link head."""

import math

import pytest
import torch

from siafu.dynamic import DynamicGraph
from siafu.methods.snapshots.build import build_link_memory
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.training.link.config import LinkConfig
from siafu.training.link.memory import LinkMemory

H = torch.zeros(4, 2)


def graph_of(order: list[int] | None = None) -> DynamicGraph:
    """Node 0 meets 1 twice and 2 once in step 0, 2 meets 3 in step 1; nothing happens in step 2, and 0 meets 3 then."""
    events = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 2, 0], [2, 3, 1], [0, 3, 3]])
    if order is not None:
        events = events[order]
    return DynamicGraph.from_events(*events.unbind(1), steps=4, num_nodes=4, undirected=True)


def decayed(*events: tuple[int, int]) -> float:
    """The logarithm of the decayed sum of events, given as (number, age), with decay 0.5."""
    return math.log1p(sum(count * math.exp(-0.5 * age) for count, age in events))


def test_the_activity_of_a_node_counts_recent_events_decayed_by_age() -> None:
    memory = LinkMemory(graph_of(), None, (0.5,), num_recent_steps=2)
    at_one = memory.append_node_features(H, 1, None)[:, 2]
    wanted = [decayed((3, 1)), decayed((2, 1)), decayed((1, 1), (1, 0)), decayed((1, 0))]
    torch.testing.assert_close(at_one, torch.tensor(wanted))
    at_two = memory.append_node_features(H, 2, None)[:, 2]  # step 0 is too long ago
    torch.testing.assert_close(at_two, torch.tensor([0, 0, decayed((1, 1)), decayed((1, 1))]))


def test_later_events_are_not_in_the_memory() -> None:
    memory = LinkMemory(graph_of(), None, (0.5, 0.0), num_recent_steps=10)
    later = DynamicGraph.from_events(
        [0, 1, 0, 2], [1, 0, 2, 3], [0, 0, 0, 1], steps=2, num_nodes=4, undirected=True
    )
    other = LinkMemory(later, None, (0.5, 0.0), num_recent_steps=10)
    assert torch.equal(memory.append_node_features(H, 1, None), other.append_node_features(H, 1, None))


def test_the_order_of_events_within_a_step_does_not_matter() -> None:
    orders = (None, [2, 1, 0, 3, 4])
    one, other = (LinkMemory(graph_of(order), None, (0.3, 0.1), num_recent_steps=4) for order in orders)
    assert torch.equal(one.append_node_features(H, 3, None), other.append_node_features(H, 3, None))


@pytest.mark.parametrize(
    ("settings", "columns"),
    [({}, 3), ({"decay": 0.5}, 1), ({"activity": False}, 0), ({"recency": True}, 6)],
)
def test_the_config_knows_the_width_of_the_memory(settings: dict[str, object], columns: int) -> None:
    link = LinkConfig.model_validate(settings)
    memory = build_link_memory(graph_of(), TaskConfig("link", SnapshotsConfig(window=2), link, 0))
    assert link.node_memory_width == columns
    assert memory.append_node_features(H, 2, memory.pair_table(2)).shape == (4, 2 + columns)
