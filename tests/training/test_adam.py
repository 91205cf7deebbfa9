"""Adam agrees with torch's bit for bit, and training imports neither torch's optimisers nor its compiler."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from siafu.native import core
from siafu.training.adam import Adam, Group

SHAPES = ((300, 301), (5,), (7, 11))  # the core moves the first, torch the others


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(*shape, generator=draw, dtype=dtype)) for shape in SHAPES]


def gradients(step: int, dtype: torch.dtype) -> list[Tensor | None]:
    draw = torch.Generator().manual_seed(step)
    made = [torch.randn(*shape, generator=draw, dtype=dtype) for shape in SHAPES]
    return [made[0], made[1] if step % 3 else None, made[2] if step > 4 else None]


def move(optimizer: Adam | torch.optim.Adam, moved: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        for parameter, grad in zip(moved, gradients(step, moved[0].dtype), strict=True):
            parameter.grad = grad
        optimizer.step()


def reference(moved: list[nn.Parameter]) -> torch.optim.Adam:
    groups = [{"params": moved[:2], "weight_decay": 0.01}, {"params": moved[2:], "weight_decay": 0.0}]
    return torch.optim.Adam(groups, lr=0.05)


def ours(moved: list[nn.Parameter]) -> Adam:
    return Adam([Group(moved[:2], 0.01), Group(moved[2:])], lr=0.05)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_are_those_of_torchs_adam_bit_for_bit(
    dtype: torch.dtype, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(core, "kernels", None)
    found, wanted = parameters(dtype), parameters(dtype)
    move(ours(found), found, range(1, 30))
    move(reference(wanted), wanted, range(1, 30))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_state_goes_on_where_it_was_and_is_a_copy() -> None:
    found, wanted = parameters(), parameters()
    first = ours(found)
    move(first, found, range(1, 6))
    second = ours(found)
    second.load_state(first.state)
    move(second, found, range(6, 12))
    move(reference(wanted), wanted, range(1, 12))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert all(int(state["step"]) < 6 for state in first.state.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_and_weights_of_any_layout_move_alike(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    start, grad = (torch.randn(900, 100, generator=draw, dtype=dtype) for _ in range(2))
    found, wanted = nn.Parameter(start.T.contiguous().T), nn.Parameter(start.clone())
    assert not found.is_contiguous()
    optimizers = [Adam([Group([each], 0.01)], lr=0.1) for each in (found, wanted)]
    for _ in range(3):
        found.grad, wanted.grad = grad.T.contiguous().T, grad
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(found, wanted)


def test_a_weight_without_elements_is_left_alone() -> None:
    empty = nn.Parameter(torch.empty(0, 3))
    empty.grad = torch.empty(0, 3)
    Adam([Group([empty], 0.1)], lr=0.1).step()
    assert empty.shape == (0, 3)


def test_training_imports_neither_torchs_optimisers_nor_its_compiler(tmp_path: object) -> None:
    lines = (
        "import sys, siafu\n"
        f"siafu.train('karate', epochs=2, out={str(tmp_path)!r} + '/run')\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
