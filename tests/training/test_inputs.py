"""What is done to a graph before a model reads it, and a checksum of what is read."""

from dataclasses import replace

import pytest
import torch

from siafu.data.config import DataConfig
from siafu.graph import Graph
from siafu.training import inputs

COUNTS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 3.0], [0.0, 0.0, 1.0]])


def path_of_four(x: torch.Tensor | None) -> Graph:
    return Graph.from_edges(
        [[0, 1, 2], [1, 2, 3]], x=x, y=[0, 1, 0, 1], num_nodes=4, edge_weight=[1.0, 2.0, 3.0]
    )


def test_rows_cannot_be_put_back_by_ids_that_are_no_order() -> None:
    graph = Graph(torch.tensor([0, 0, 0]), torch.empty(0, dtype=torch.int32), node_id=torch.tensor([1, 1]))
    with pytest.raises(ValueError, match="node_id does not name row 0"):
        inputs.in_user_order(torch.zeros(2, 1), graph)


def test_rows_of_counts_are_scaled_to_sum_to_one_and_empty_ones_stay() -> None:
    graph = path_of_four(COUNTS)
    config = inputs.resolve(DataConfig(), graph)
    assert config.normalize == "rows"
    assert inputs.features(graph, config).tolist() == [[1, 0, 0], [0, 0, 0], [0, 0.25, 0.75], [0, 0, 1]]


@pytest.mark.parametrize("x", [COUNTS - 1, COUNTS + 1])
def test_features_that_are_no_counts_stay_as_they_are(x: torch.Tensor) -> None:
    graph = path_of_four(x)
    config = inputs.resolve(DataConfig(), graph)
    assert config.normalize == "none"
    assert inputs.features(graph, config) is graph.x


def test_what_was_settled_is_not_settled_again() -> None:
    config = DataConfig(normalize="none", layout="dense", reorder="on", inputs="memory")
    assert inputs.resolve(config, path_of_four(COUNTS)) == config


def test_a_small_graph_is_not_reordered_unless_asked() -> None:
    assert inputs.resolve(DataConfig(), path_of_four(COUNTS)).reorder == "off"


def test_rows_of_a_reordered_graph_come_back_in_the_users_order(graph: Graph) -> None:
    prepared = inputs.prepare(graph, DataConfig(normalize="none", reorder="on"))
    assert graph.x is not None
    assert prepared.x is not None
    assert not torch.equal(prepared.x, graph.x), "nothing is shown by an order that changes nothing"
    assert torch.equal(inputs.in_user_order(prepared.x, prepared), graph.x)
    assert inputs.in_user_order(graph.x, graph) is graph.x


def test_a_graph_without_features_has_rows_without_columns() -> None:
    assert inputs.features(path_of_four(None), DataConfig()).shape == (4, 0)


def test_the_fingerprint_changes_with_everything_that_is_read() -> None:
    graph = replace(path_of_four(COUNTS), train_mask=torch.tensor([True, False, False, True]))
    assert graph.x is not None
    assert graph.y is not None
    assert graph.edge_weight is not None
    others = [
        replace(graph, x=graph.x + 1),
        replace(graph, x=None),
        replace(graph, y=1 - graph.y),
        replace(graph, y=graph.y.to(torch.uint8)),
        replace(graph, edge_weight=graph.edge_weight * 2),
        replace(graph, train_mask=None, val_mask=graph.train_mask),
        Graph.from_edges([[0, 1, 3], [1, 2, 2]], x=COUNTS, y=[0, 1, 0, 1], edge_weight=[1.0, 2.0, 3.0]),
    ]
    prints = [inputs.fingerprint(each) for each in (graph, *others)]
    assert len(set(prints)) == len(prints)
    assert inputs.fingerprint(replace(graph, name="other")) == prints[0]
