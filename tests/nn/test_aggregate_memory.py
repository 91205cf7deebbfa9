"""An aggregate's backward pass frees its arrays when it returns, though the graph of gradients is still there."""

import pytest
import torch
from torch import Tensor

from siafu.graph import Graph
from siafu.nn.aggregates import GCN_SUM, MAXIMUM, Aggregate, Attention, AttentionV2, aggregate

EDGES = torch.randint(9, (2, 30), generator=torch.Generator().manual_seed(0))
KINDS: dict[str, tuple[Aggregate, tuple[Tensor, ...]]] = {
    "sum": (GCN_SUM, ()),
    "maximum": (MAXIMUM, ()),
    "attention": (Attention(2), ()),
    "attention v2": (AttentionV2(2), (torch.ones(2, 2),)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_a_backward_pass_outlives_it(kind: str) -> None:
    made, weights = KINDS[kind]
    z = torch.randn(9, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = aggregate(made, Graph.from_edges(EDGES, num_nodes=9).block, z, weights=weights)
    assert isinstance(out, Tensor)
    run = out.grad_fn.run  # type: ignore[union-attr]
    grads = []
    for _ in range(2):
        z.grad = None
        out.sum().backward(retain_graph=True)
        grads.append(z.grad)
        arrays = ("z_src", "z_own", "m_dst", "grad_dst", "grad_src", "_softmax", "_steps", "_source")
        held = {name for name in arrays if getattr(run, name, None) is not None}
        assert not held
    assert torch.equal(*grads)  # type: ignore[arg-type]
