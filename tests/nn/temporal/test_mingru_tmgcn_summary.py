"""Parts of temporal layers: the scan of minGRU, the moving mean of TM-GCN, the summary of EvolveGCN-H."""

import pytest
import torch
from dense_reference import rows
from torch import Tensor

from siafu.nn.temporal.mingru import compose_affine, linear_scan
from siafu.nn.temporal.summary import summarize
from siafu.nn.temporal.tmgcn import moving_mean

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_scan_is_the_loop() -> None:
    decay, gain = rows(6, 4, 3).sigmoid().requires_grad_(), rows(6, 4, 3, seed=1).requires_grad_()
    before = rows(4, 3, seed=2).requires_grad_()
    h, expected = before, []
    for a, b in zip(decay, gain, strict=True):
        h = a * h + b
        expected.append(h)
    out, weight = linear_scan(decay, gain, before), rows(6, 4, 3, seed=3)
    torch.testing.assert_close(out, torch.stack(expected))
    given = (decay, gain, before)
    for one, other in zip(
        torch.autograd.grad((out * weight).sum(), given),
        torch.autograd.grad((torch.stack(expected) * weight).sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_affine_maps_of_steps_compose_without_the_state() -> None:
    decay, gain, before = rows(6, 4, 3).sigmoid(), rows(6, 4, 3, seed=1), rows(4, 3, seed=2)
    (a, b), (c, d) = compose_affine(decay[:2], gain[:2]), compose_affine(decay[2:], gain[2:])
    torch.testing.assert_close(c * (a * before + b) + d, linear_scan(decay, gain, before)[-1])


def test_a_moving_mean_over_many_steps_does_not_drift() -> None:
    x = rows(50, 2, 3).float() + 1e4 * (torch.arange(50) < 5)[:, None, None]
    out = moving_mean(x, x[:0], first=0, band=4)
    expected = torch.stack([x[max(0, t - 3) : t + 1].double().mean(0) for t in range(50)])
    torch.testing.assert_close(out[8:], expected[8:].float(), rtol=0, atol=5e-3)
    torch.testing.assert_close(out[12:], expected[12:].float(), rtol=1e-5, atol=1e-5)


def test_steps_missing_before_a_moving_mean_are_an_error() -> None:
    with pytest.raises(ValueError, match="1 steps before step 5; expected 3"):
        moving_mean(rows(4, 2, 3), rows(1, 2, 3), first=5, band=4)


def summary(x: Tensor, k: int, present: Tensor | None = None) -> Tensor:
    """The summary of one step, scored by its first column."""
    there = None if present is None else present[None]
    _, found = summarize(x[None], torch.tensor([2.0, 0.0]), k=k, num_steps=1, present=there)
    return found[0]


def test_of_equal_scores_the_first_node_is_in_the_summary() -> None:
    x = torch.tensor([[1.0, 0], [3, 5], [2, 1], [3, 4], [2, 2], [2, 3]])
    expected = torch.stack([x[1], x[3], x[2]]) * torch.tensor([[3.0], [3], [2]]).tanh()
    torch.testing.assert_close(summary(x, 3), expected)
    equal = torch.ones(5, 2) * torch.tensor([1.0, 0]) + torch.arange(5)[:, None] * torch.tensor([0.0, 1])
    torch.testing.assert_close(summary(equal, 2), equal[:2] * torch.tensor(1.0).tanh())


def test_a_summary_of_fewer_nodes_than_it_has_rows_ends_with_zeros() -> None:
    x = torch.tensor([[1.0, 0], [3, 5], [2, 1]])
    first, second = x[2] * torch.tensor(2.0).tanh(), x[0] * torch.tensor(1.0).tanh()
    found = summary(x, 4, torch.tensor([True, False, True]))
    torch.testing.assert_close(found, torch.stack([first, second, *torch.zeros(2, 2)]))
    assert (summary(x, 4, torch.zeros(3, dtype=torch.bool)) == 0).all()


@pytest.mark.parametrize("static", [False, True])
def test_a_summary_has_the_gradients_of_its_formula(static: bool) -> None:
    x = (rows(6, 3) if static else rows(4, 6, 3)).requires_grad_()
    scorer, present = rows(3, seed=1).requires_grad_(), rows(4, 6, seed=2) > -0.5

    def weighed(x: Tensor, scorer: Tensor) -> Tensor:
        passed, found = summarize(x, scorer, k=4, num_steps=4, present=present)
        return (passed * 2).sum() + (found * rows(4, 4, 3, seed=3)).sum()

    assert torch.autograd.gradcheck(weighed, (x, scorer))
