"""The normalised aggregate over the graph of one step."""

import pytest
import torch
from dense_reference import IN, NUM_NODES, NUM_STEPS, dense, rows, steps

from siafu.nn.temporal import aggregate_step, aggregate_steps

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("undirected", [False, True])
def test_the_aggregate_of_a_step_is_the_product_with_its_normalised_adjacency(undirected: bool) -> None:
    for step in steps(undirected=undirected):
        x = rows(NUM_NODES, IN).requires_grad_()
        out, expected = aggregate_step(step, x), dense(step) @ x
        torch.testing.assert_close(out, expected)
        weight = rows(NUM_NODES, IN, seed=1)
        (one,), (other,) = (torch.autograd.grad((each * weight).sum(), x) for each in (out, expected))
        torch.testing.assert_close(one, other)
        assert not undirected or "turned" not in vars(step.block)


def test_rows_that_are_the_same_in_every_step_get_the_gradients_of_all() -> None:
    x = rows(NUM_NODES, IN).requires_grad_()
    out = aggregate_steps(steps(), x)
    expected = torch.stack([dense(step) @ x for step in steps()])
    torch.testing.assert_close(out, expected)
    weight = rows(NUM_STEPS, NUM_NODES, IN, seed=1)
    (one,), (other,) = (torch.autograd.grad((each * weight).sum(), x) for each in (out, expected))
    torch.testing.assert_close(one, other)


def test_rows_of_another_number_of_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="x has 5 rows for a snapshot of 6 rows and 6 columns"):
        aggregate_step(steps()[0], rows(5, IN))
