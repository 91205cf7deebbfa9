"""Link heads: scores of pairs, their gradients, and the effect of the memory."""

import pytest
import torch

from siafu.nn.link import HeadKind, LinkHead

NODES, PAIRS = 9, 40


@pytest.mark.parametrize("kind", ["mlp", "dot"])
@pytest.mark.parametrize("with_memory", [False, True])
def test_scores_and_gradients_are_those_of_plain_torch(kind: HeadKind, with_memory: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    head = LinkHead(5, 7, kind=kind, memory_columns=2 * with_memory)
    head.reset(draw)
    for parameter in head.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=draw)
    src, dst = torch.randint(0, NODES, (2, PAIRS), generator=draw)
    recency = torch.rand(PAIRS, 2, generator=draw) * (torch.rand(PAIRS, 1, generator=draw) < 0.4)
    found = []
    for how in (head.pairs, head._score_dense):
        h = torch.linspace(-1, 1, NODES * 5).view(NODES, 5).requires_grad_()
        out = how(*head.factors(h), src, dst, recency if with_memory else None)
        head.zero_grad()
        (out * torch.linspace(-1, 2, PAIRS)).sum().backward()
        grads = [p.grad for p in head.parameters() if p.numel()]
        found.append([out.detach(), h.grad, *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_an_untrained_head_ranks_recent_pairs_first() -> None:
    head = LinkHead(5, 7, memory_columns=1)
    h = torch.zeros(NODES, 5)
    src, dst = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    out = head(h, src, dst, torch.tensor([[0.0], [2.0], [0.5]]))
    assert out.argsort(descending=True).tolist() == [1, 2, 0]
