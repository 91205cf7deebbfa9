"""Negative sampling: pairs that are not edges, keyed by number."""

import pytest
import torch

from siafu.sampling.negatives import EdgeSet, sample_negatives

SRC, DST = torch.tensor([0, 0, 1, 2, 5]), torch.tensor([1, 2, 3, 2, 0])
EDGES = EdgeSet(SRC, DST, num_nodes=6)


def test_no_negative_is_an_edge_and_every_other_pair_is_drawn() -> None:
    src, dst = sample_negatives(torch.arange(2000), key=7, edges=EDGES)
    drawn = set(zip(src.tolist(), dst.tolist(), strict=True))
    edges = set(zip(SRC.tolist(), DST.tolist(), strict=True))
    assert drawn == {(u, v) for u in range(6) for v in range(6)} - edges


def test_a_negative_depends_on_its_number_and_not_on_what_else_is_drawn() -> None:
    whole = torch.stack(sample_negatives(torch.arange(50), key=7, edges=EDGES))
    parts = [
        torch.stack(sample_negatives(number, key=7, edges=EDGES))
        for number in torch.arange(50).split([13, 37])
    ]
    assert torch.equal(whole, torch.cat(parts, 1))
    some = torch.tensor([48, 3, 20])
    assert torch.equal(torch.stack(sample_negatives(some, key=7, edges=EDGES)), whole[:, some])
    assert not torch.equal(whole, torch.stack(sample_negatives(torch.arange(50), key=8, edges=EDGES)))


def test_negatives_are_drawn_among_the_nodes_that_occur() -> None:
    among = torch.tensor([0, 2, 5])
    src, dst = sample_negatives(torch.arange(200), key=1, edges=EDGES, among=among, loops=False)
    assert set(src.tolist()) == set(dst.tolist()) == {0, 2, 5}
    assert not bool((src == dst).any())
    assert not bool(EDGES.contains(src, dst).any())


def test_with_a_source_only_the_target_is_drawn() -> None:
    given = torch.tensor([0, 5]).repeat_interleave(100)
    src, dst = sample_negatives(torch.arange(200), key=1, edges=EDGES, src=given, loops=False)
    assert torch.equal(src, given)
    assert set(dst[:100].tolist()) == {3, 4, 5}
    assert set(dst[100:].tolist()) == {1, 2, 3, 4}


def test_where_all_are_joined_the_error_says_what_to_do() -> None:
    everyone = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    with pytest.raises(ValueError, match=r"link\.sampling=uniform"):
        sample_negatives(torch.arange(2), key=0, edges=EdgeSet(everyone[:, 0], everyone[:, 1], num_nodes=3))
