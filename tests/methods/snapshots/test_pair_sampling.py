"""Training pairs of a step, and the correction of their scores for the sampling."""

import math

import pytest
import torch

from siafu.methods.snapshots.pair_sampling import PairSampling, sample_pairs
from siafu.sampling.negatives import EdgeSet

NODES = 12
EDGES = EdgeSet(torch.tensor([0, 1, 2, 5, 9]), torch.tensor([1, 0, 7, 5, 3]), num_nodes=NODES)
ENDS = torch.tensor([0, 1, 0, 2, 0, 3, 3, 7])
REMEMBERED = torch.tensor([1, 12, 13, 30, 31, 80, 111])  # the first two are edges


@pytest.mark.parametrize("ends", [ENDS, ENDS[:0]])
@pytest.mark.parametrize("remembered", [REMEMBERED, None])
def test_negatives_are_no_edges_and_represent_all_pairs(
    ends: torch.Tensor, remembered: torch.Tensor | None
) -> None:
    stand_for = []
    for key in range(60):
        drawn = sample_pairs(EDGES, PairSampling(20, key, ends, remembered))
        code = drawn.src * NODES + drawn.dst
        assert torch.equal(code[drawn.y == 1], EDGES.code)
        other = drawn.y == 0
        assert not torch.isin(code[other], EDGES.code).any()
        stand_for.append(float(drawn.offset[other].exp().sum()) * NODES**2 / EDGES.code.numel())
    all_others = NODES**2 - EDGES.code.numel()
    assert sum(stand_for) / 60 == pytest.approx(all_others, rel=0.08)


def test_remembered_pairs_are_all_sampled_once_or_as_many_as_negatives() -> None:
    drawn = sample_pairs(EDGES, PairSampling(4, 0, ENDS, REMEMBERED))
    code = drawn.src * NODES + drawn.dst
    assert all((code == each).sum() == 1 for each in REMEMBERED)
    share = math.log(EDGES.code.numel() / NODES**2)
    assert drawn.offset[torch.isin(code, REMEMBERED)].tolist() == pytest.approx([share] * 7)
    many = torch.arange(NODES**2)
    some = sample_pairs(EDGES, PairSampling(4, 0, ENDS, many))
    assert some.y.numel() == 5 + 4 * 5


def test_with_a_part_of_the_edges_no_negative_is_another_edge() -> None:
    drawn = sample_pairs(EDGES, PairSampling(50, 1, ENDS), learned=EDGES.code[:2])
    assert drawn.y.sum() == 2
    assert not torch.isin((drawn.src * NODES + drawn.dst)[drawn.y == 0], EDGES.code).any()
