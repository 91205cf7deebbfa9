"""Heads fitted by conjugate gradients over ranks equal the direct solution."""

from typing import Any

import pytest
import torch
from lazy_parts import Given, on_ranks
from torch import Tensor
from torch.nn.functional import one_hot

from siafu.comm import Comm
from siafu.data import community
from siafu.launch.local import run_threads
from siafu.methods.lazy.ridge import LinearHead, RidgeRegression, RowSubset, fit_head

ROWS, WIDTH, CLASSES = 40, 12, 3


def known_rows(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Rows with a mean of their own, their targets and what each row counts."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=draw, dtype=dtype) * torch.arange(1, WIDTH + 1) + 2
    y = one_hot(torch.randint(CLASSES, (ROWS,), generator=draw), CLASSES).double()
    return x, y, torch.rand(ROWS, generator=draw, dtype=torch.float64) + 0.1


def direct(x: Tensor, y: Tensor, weight: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """The weights and biases of the normal equations; ``penalty`` is absolute."""
    x, each = x.double(), weight[:, None]
    mean, mean_y = (each * x).sum(0) / weight.sum(), (each * y).sum(0) / weight.sum()
    centred = x - mean
    found = torch.linalg.solve(
        centred.t() @ (each * centred) + penalty * torch.eye(WIDTH, dtype=torch.float64),
        centred.t() @ (each * (y - mean_y)),
    )
    return found, mean_y - mean @ found


def fitted(
    ranks: int, penalty: float, *, rounds: int, precision: Any = "fp32", weighted: bool = True
) -> list[Any]:
    """The head that each rank found, and what a penalty of 1 stands for."""
    x, y, weight = known_rows()
    owner = torch.arange(ROWS) % ranks if ranks < 4 else torch.zeros(ROWS)  # one of four has all

    def rank(comm: Comm) -> tuple[LinearHead, float, int]:
        mine = (owner == comm.rank).nonzero()[:, 0]
        of_rows = weight[mine] if weighted else None
        ridge = RidgeRegression(RowSubset(x, mine), y[mine], comm, precision=precision, weight=of_rows)
        for _ in range(rounds):
            ridge.grow_basis()
        (found,) = ridge.coefficients((penalty,))
        return ridge.head(found, penalty=penalty), ridge.unit, ridge.rounds

    return run_threads(rank, ranks=ranks, threads=1)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("penalty", [1e-3, 1.0])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_at_convergence_the_head_is_the_direct_solution(ranks: int, penalty: float, weighted: bool) -> None:
    x, y, weight = known_rows()
    for head, unit, rounds in fitted(ranks, penalty, rounds=20, weighted=weighted):
        wanted = direct(x, y, weight if weighted else torch.ones(ROWS).double(), penalty * unit)
        torch.testing.assert_close(head.weight, wanted[0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(head.bias, wanted[1], rtol=1e-7, atol=1e-9)
        assert rounds <= WIDTH  # then there is no direction left


@pytest.mark.parametrize("rounds", [1, 2])
def test_before_convergence_the_head_is_the_same_for_any_number_of_ranks(rounds: int) -> None:
    (alone, _, _), *_ = fitted(1, 0.1, rounds=rounds)
    for ranks in (2, 3):
        for head, _, _ in fitted(ranks, 0.1, rounds=rounds):
            torch.testing.assert_close(head.weight, alone.weight, rtol=1e-9, atol=1e-11)


def test_each_round_reduces_the_error_and_the_last_one_is_exact() -> None:
    x, y, weight = known_rows()
    mean = (weight[:, None] * x).sum(0) / weight.sum()
    off = []
    for rounds in range(1, WIDTH // CLASSES + 3):  # targets that add up to 1 give a direction less
        ((head, unit, _),) = fitted(1, 0.01, rounds=rounds)
        error = head.weight - direct(x, y, weight, 0.01 * unit)[0]
        spread = weight.sqrt()[:, None] * ((x - mean) @ error)
        off.append(float(spread.square().sum() + 0.01 * unit * error.square().sum()))
    assert off == sorted(off, reverse=True)
    assert off[-1] < 1e-12 < off[2] < off[0]


def test_int8_sums_give_nearly_the_same_head_equal_on_all_ranks() -> None:
    x, y, _ = known_rows()
    (exact, _, _), *_ = fitted(3, 1.0, rounds=6)
    first, *others = (head for head, _, _ in fitted(3, 1.0, rounds=6, precision="int8"))
    assert all(torch.equal(first.weight, other.weight) for other in others)
    off = (x @ first.weight + first.bias - x @ exact.weight - exact.bias).norm() / y.norm()
    assert 1e-6 < float(off) < 0.05


def test_validation_chooses_rounds_and_penalty_and_a_round_sends_one_matrix() -> None:
    graph = community(300, degree=6, classes=3, features=12, seed=1)

    def work(given: Given) -> tuple[LinearHead, int]:
        x, task = given.x, given.task
        train, val = task.rows["train"], task.rows["val"]
        y = one_hot(task.y[train], task.num_outputs).double()
        before = given.comm.meter.sent.get("gradients ridge", 0)
        head = fit_head(
            RidgeRegression(RowSubset(x, train), y, given.comm),
            RowSubset(x, val),
            task,
            penalties=(10.0, 0.1, 1e-3),
            rounds=4,
            patience=4,
        )
        out = x @ head.weight + head.bias
        assert task.score(out, "val") == pytest.approx(head.score)
        return head, given.comm.meter.sent.get("gradients ridge", 0) - before

    heads = on_ranks(graph, 2, work)
    alone, _ = on_ranks(graph, 1, work)[0]
    for head, sent in heads:
        assert (head.penalty, head.rounds, head.score) == (alone.penalty, alone.rounds, alone.score)
        torch.testing.assert_close(head.weight, alone.weight, rtol=1e-3, atol=1e-4)
        matrices, headers = 5 * 12 * 3 * 4, 6 * 200
        assert matrices - 12 * 4 < sent < matrices + 100 + headers
