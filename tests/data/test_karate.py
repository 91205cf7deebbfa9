import networkx as nx
import pytest

from siafu.data import karate


def test_the_club_is_the_one_that_networkx_has() -> None:
    graph = karate()
    known = nx.karate_club_graph()
    edges = set(zip(graph.indices.tolist(), graph.block.row_edge.tolist(), strict=True))
    assert edges == set(known.edges) | {(dst, src) for src, dst in known.edges}
    assert graph.num_edges == 2 * 78
    factions = [0 if club == "Mr. Hi" else 1 for _, club in known.nodes(data="club")]
    assert karate(classes=2).y.tolist() == factions


def test_one_member_of_each_class_trains_and_all_others_test() -> None:
    for classes in (2, 4):
        graph = karate(classes=classes)
        assert sorted(graph.y[graph.train_mask].tolist()) == list(range(classes))
        assert (graph.train_mask ^ graph.test_mask).all()
        assert graph.x.shape == (34, 34)


def test_other_numbers_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="classes is 3; expected 4"):
        karate(classes=3)
