"""The NumPy backend: every stage, direction and option as torch computes it, with the same dropout, and no torch."""

import subprocess
import sys
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from staged import (
    EPOCH,
    KINDS,
    OTHERS,
    SEED,
    Staged,
    in_every_order,
    model_of,
    options_of,
    orders,
    setup_of,
    whole,
    with_all_between,
)

from siafu import native
from siafu.nn import Dropout, Model
from siafu.nn.dropout import set_keys
from siafu.workers.numpy_backend import compute
from siafu.workers.numpy_backend.dropout import Drop, kept, key_of
from siafu.workers.numpy_backend.tape import Value, go_back, maximum
from siafu.workers.setup import Setup
from siafu.workers.task import Arrays, Direction, Result, Task
from siafu.workers.torch_compute import TorchCompute

pytestmark = pytest.mark.usefixtures("one_thread")


def same(found: Arrays, wanted: Arrays, tolerance: float) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].flags.c_contiguous
        near = np.abs(found[name] - array) <= tolerance * (1 + np.abs(array))
        assert near.all(), f"{name}: {found[name]}, expected {array}"


def hold(model: Model, setup: Setup, *, training: bool = True, tolerance: float = 1e-10) -> None:
    """Compare NumPy with torch in every task of an epoch."""
    by_torch = TorchCompute(setup)

    def both(task: Task, weights: Arrays) -> Result:
        wanted, found = by_torch(task, weights), compute(setup, task, weights)
        same(found.arrays, wanted.arrays, tolerance)
        same(found.grads, wanted.grads, tolerance)
        arrays = [*found.arrays.values(), *found.grads.values()]
        for place, array in enumerate(arrays):
            others = (*arrays[:place], *task.arrays.values())
            assert not any(np.shares_memory(array, other) for other in others)
        return found

    Staged(both, model, setup, training=training).run()  # which also looks that nothing given is overwritten


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_computes_what_torch_does_with_all_that_stands_between_layers(kind: str, layers: int) -> None:
    for model, setup in with_all_between(kind, layers):
        hold(model, setup)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_numpy_computes_what_torch_does_in_whatever_order_layers_aggregate(kind: str, layers: int) -> None:
    for model, setup in in_every_order(kind, layers):
        hold(model, setup)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [1, 20])
def test_numpy_computes_what_torch_does_however_few_rows_it_takes_at_a_time(
    kind: str, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[compute.__module__], "_TOGETHER", numbers)
    for model, setup in [*with_all_between(kind, 2)][::3]:
        hold(model, setup)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_drops_nothing_outside_of_training(kind: str) -> None:
    model = model_of(kind, residual=True, jump="max")
    for kept_first, first in orders(kind, 2):
        hold(model, setup_of(model, kept=kept_first, first=first), training=False)


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_computes_in_float32_what_torch_does(kind: str) -> None:
    for options, (kept_first, first) in zip(options_of(3)[::5], cycle(orders(kind, 2)), strict=False):
        model = model_of(kind, dtype=torch.float32, **options)
        hold(model, setup_of(model, kept=kept_first, first=first), tolerance=1e-4)


@pytest.mark.parametrize("weight", [None, (0.5, 2.0, 1.25)])
@pytest.mark.parametrize("task", ["class", "labels", "regression"])
def test_numpy_has_the_losses_of_torch(task: str, weight: Any) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model = model_of("gcn", dtype=dtype)
        given_weight = None if task == "regression" else weight
        hold(model, setup_of(model, task=task, class_weight=given_weight), tolerance=tolerance)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("weight", [None, (0.5, 2.0, 1.25)])
@pytest.mark.parametrize("task", ["class", "labels"])
def test_numpy_has_the_focal_loss_of_torch(task: str, weight: Any, gamma: float) -> None:
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model = model_of("gcn", dtype=dtype)
        hold(model, setup_of(model, task=task, class_weight=weight, gamma=gamma), tolerance=tolerance)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("task", ["class", "labels"])
def test_large_outputs_neither_overflow_nor_lose_their_loss(task: str, gamma: float) -> None:
    model = model_of("mlp", layers=1, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data *= 1000
    hold(model, setup_of(model, task=task, gamma=gamma), tolerance=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_of_stages_in_numpy_is_the_whole_model(kind: str) -> None:
    model = model_of(kind, layers=3, norm="layer", residual=True, jump="cat")
    for kept_first, first in orders(kind, 3):
        setup = setup_of(model, kept=kept_first, first=first)
        found, wanted = Staged(partial(compute, setup), model, setup).run(), whole(model, setup)
        torch.testing.assert_close(found.out, wanted.out, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.loss[0], wanted.loss, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(found.grads, wanted.grads, rtol=1e-10, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(
    key=st.integers(0, 2**64 - 1),
    rate=st.floats(0, 1, exclude_max=True),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9),
    width=st.integers(1, 40),
)
def test_masks_are_those_of_the_compiled_dropout(key: int, rate: float, ids: list[int], width: int) -> None:
    ones, row_id = torch.ones(len(ids), width), torch.tensor(ids, dtype=torch.int64)
    how = native.Dropout.of(rate, key)
    drop = Drop.of(rate, key)
    assert drop == tuple(how)
    wanted = native.epilogue(ones, bias=None, activation="none", dropout=how, row_id=row_id) != 0
    np.testing.assert_array_equal(kept(drop, row_id.numpy(), width), wanted.numpy())


@pytest.mark.parametrize("width", [1, 300, 70_000])
def test_masks_are_the_same_where_rows_are_hashed_in_several_goes(width: int) -> None:
    row_id = torch.arange(700 if width < 1000 else 3) * 977
    how = native.Dropout.of(0.3, 99)
    ones = torch.ones(row_id.numel(), width)
    wanted = native.epilogue(ones, bias=None, activation="none", dropout=how, row_id=row_id) != 0
    np.testing.assert_array_equal(kept(Drop.of(0.3, 99), row_id.numpy(), width), wanted.numpy())


@pytest.mark.parametrize("jump", ["none", "cat"])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_those_of_the_model(kind: str, jump: str) -> None:
    model = model_of(kind, layers=3, jump=jump)
    set_keys(model, seed=SEED, step=EPOCH)
    drops = [module for module in model.modules() if isinstance(module, Dropout)]
    for place, drop in enumerate(drops):
        assert key_of(seed=SEED, step=EPOCH, place=place) == drop.key


def test_equal_maxima_share_their_gradient() -> None:
    one, other = (Value(np.array(rows), wants=True) for rows in ([[1.0, 2.0, 0.0]], [[1.0, 0.0, 5.0]]))
    go_back([(maximum([one, other]), np.array([[4.0, 6.0, 8.0]]))])
    assert one.grad is not None
    assert other.grad is not None
    assert (one.grad.tolist(), other.grad.tolist()) == ([[2.0, 6.0, 0.0]], [[2.0, 0.0, 8.0]])


def test_inputs_that_never_change_are_given_no_gradient() -> None:
    model = model_of("sage", residual=True)
    setup = setup_of(model, kept=True, first=(True, True))
    done = Staged(partial(compute, setup), model, setup).run().done
    of_first = [result for task, result in done if task.key[1:3] == (1, Direction.BACKWARD)]
    assert of_first
    assert all(not result.arrays and result.grads for result in of_first)


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("kept", [False, True])
def test_models_that_are_no_stack_of_layers_are_computed_as_by_torch(kind: str, kept: bool) -> None:
    model = model_of(kind)
    aggregates = model.num_kept(torch.empty(0, 5)) if kept else 0
    setup = setup_of(model, kept=aggregates)
    hold(model, setup)
    found, wanted = Staged(partial(compute, setup), model, setup).run(), whole(model, setup)
    torch.testing.assert_close(found.out, wanted.out, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.loss[0], wanted.loss, rtol=1e-10, atol=1e-10)
    if kept or kind != "sgc":  # else dropout acts on other rows
        torch.testing.assert_close(found.grads, wanted.grads, rtol=1e-10, atol=1e-10)


def test_batch_norm_is_refused_since_it_is_not_row_by_row() -> None:
    model = model_of("gcn", norm="batch")
    with pytest.raises(
        ValueError, match=r"model\.norm is batch, which is not row by row; set it to layer or none"
    ):
        setup_of(model)


def test_the_backend_needs_numpy_and_the_standard_library_alone() -> None:
    script = (
        "import sys, siafu.workers.numpy_backend, siafu.workers.numpy_backend.compute; print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    known = {*sys.stdlib_module_names, "siafu", "numpy", "__main__"}
    others = {name.partition(".")[0] for name in ran.stdout.split()} - known
    assert not {name for name in others if not name.startswith("_")}, others
