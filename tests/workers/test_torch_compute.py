"""Tasks by torch: chained over stages and intervals they are the whole model, and what they are given stays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from staged import (
    EPOCH,
    KINDS,
    NODE_ID,
    VERSION,
    WIDTH,
    Epoch,
    Staged,
    in_every_order,
    model_of,
    orders,
    setup_of,
    weights_of,
    whole,
    with_all_between,
)
from staged import rows as random_rows

from siafu.nn import Model
from siafu.workers.setup import Setup
from siafu.workers.stages import weights_of as weights_of_stage
from siafu.workers.task import Direction, Key, Task
from siafu.workers.torch_compute import TorchCompute


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(found: Epoch, wanted: Epoch, tolerance: float) -> None:
    def close(one: torch.Tensor, other: torch.Tensor, what: str) -> None:
        torch.testing.assert_close(
            one, other, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
        )

    close(found.out, wanted.out, "outputs")
    close(found.loss[0], wanted.loss.double(), "loss")
    assert found.grads.keys() == wanted.grads.keys()
    for name, grad in wanted.grads.items():
        close(found.grads[name], grad, name)


def by_tasks(model: Model, setup: Setup, *, training: bool = True) -> None:
    """Hold stages to the whole model."""
    found = Staged(TorchCompute(setup), model, setup, training=training).run()
    check(found, whole(model, setup, training=training), 1e-10)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_are_the_whole_model_with_all_that_stands_between_layers(kind: str, layers: int) -> None:
    for model, setup in with_all_between(kind, layers):
        by_tasks(model, setup)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_are_the_whole_model_in_whatever_order_layers_aggregate(kind: str, layers: int) -> None:
    for model, setup in in_every_order(kind, layers):
        by_tasks(model, setup)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_dropped_outside_of_training(kind: str) -> None:
    model = model_of(kind, jump="max", residual=True)
    for kept, first in orders(kind, 2):
        by_tasks(model, setup_of(model, kept=kept, first=first), training=False)


@pytest.mark.parametrize("weight", [None, (0.5, 2.0, 1.25)])
@pytest.mark.parametrize("task", ["class", "labels", "regression"])
def test_every_loss_is_that_of_training(task: str, weight: Any) -> None:
    model = model_of("gcn")
    gammas = (0.0,) if task == "regression" else (0.0, 2.0)
    for gamma in gammas:
        given = None if task == "regression" else weight
        by_tasks(model, setup_of(model, task=task, class_weight=given, gamma=gamma))


def test_float32_gives_float32() -> None:
    for kind in KINDS:
        model = model_of(kind, dtype=torch.float32, residual=True, norm="layer", jump="cat")
        kept, first = next(orders(kind, 2))
        setup = setup_of(model, kept=kept, first=first)
        found = Staged(TorchCompute(setup), model, setup).run()
        check(found, whole(model, setup), 1e-4)
        for _, result in found.done:
            arrays = {**result.arrays, **result.grads}
            assert {array.dtype for name, array in arrays.items() if name != "loss"} == {np.dtype(np.float32)}


def forward_task(*, version: int = VERSION, epoch: int = EPOCH, training: bool = True) -> Task:
    """Stage 0 of a GCN that projects first."""
    arrays = {"x": random_rows(7, WIDTH).numpy(), "row_id": NODE_ID.numpy()}
    return Task(Key(epoch, 0, Direction.FORWARD, 0), version, arrays, training)


def test_weights_are_read_again_when_their_version_changes_and_only_then() -> None:
    model = model_of("gcn", dropout=0.0, input_dropout=0.0)
    compute, weights, name = TorchCompute(setup_of(model)), weights_of(model), "layers.0.weight"
    first = compute(forward_task(), weights).arrays["z"]
    doubled = {**weights, name: 2 * weights[name]}
    np.testing.assert_array_equal(compute(forward_task(), doubled).arrays["z"], first)
    np.testing.assert_array_equal(compute(forward_task(version=VERSION + 1), doubled).arrays["z"], 2 * first)
    np.testing.assert_array_equal(compute(forward_task(), weights).arrays["z"], first)


def test_the_weights_of_one_stage_suffice_and_may_be_read_only() -> None:
    model = model_of("gatv2")
    setup, weights = setup_of(model), weights_of(model)
    for array in weights.values():
        array.flags.writeable = False
    compute, wanted = TorchCompute(setup), TorchCompute(setup)

    def little(task: Task, _: Any) -> Any:
        names = weights_of_stage(setup, task.key.stage, list(weights))
        return compute(task, {name: weights[name] for name in names})

    check(Staged(little, model, setup).run(), whole(model, setup), 1e-10)
    read_only = forward_task()
    for array in read_only.arrays.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(
        compute(read_only, weights).arrays["z"], wanted(forward_task(), weights).arrays["z"]
    )


def test_dropout_follows_the_epoch_of_a_task() -> None:
    model = model_of("gcn")
    compute, weights = TorchCompute(setup_of(model)), weights_of(model)
    found = [
        compute(forward_task(epoch=epoch, training=training), weights).arrays["z"]
        for epoch, training in ((1, True), (2, True), (2, False), (1, True), (1, False))
    ]
    np.testing.assert_array_equal(found[0], found[3])
    np.testing.assert_array_equal(found[2], found[4])
    assert not np.allclose(found[0], found[1])
    assert not np.allclose(found[1], found[2])


def test_results_share_no_memory_with_what_was_given_or_each_other() -> None:
    model = model_of("mlp", layers=3, residual=True, dropout=0.0, input_dropout=0.0)
    setup = setup_of(model, first=(True, False, True))
    for task, result in Staged(TorchCompute(setup), model, setup).run().done:
        arrays = [*result.arrays.values(), *result.grads.values()]
        for place, array in enumerate(arrays):
            assert array.flags.c_contiguous
            assert not any(
                np.shares_memory(array, other) for other in (*arrays[:place], *task.arrays.values())
            )


def by_two(first: Any, second: Any, model: Model, setup: Setup) -> list[dict[str, np.ndarray]]:
    """What tasks give where one computes forward passes, and another all else."""

    def do(task: Task, weights: Any) -> Any:
        return (first if task.key.direction == Direction.FORWARD else second)(task, weights)

    return [{**result.arrays, **result.grads} for _, result in Staged(do, model, setup).run().done]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_that_was_kept_goes_back_as_one_that_is_made_again(kind: str) -> None:
    model = model_of(kind, layers=3, residual=True, norm="layer", jump="cat")
    kept, first = next(orders(kind, 3))
    setup = setup_of(model, kept=kept, first=first)
    alone, made = TorchCompute(setup), 0

    class Counted(TorchCompute):
        def _pass(self, task: Task) -> Any:
            nonlocal made
            made += task.key.direction == Direction.BACKWARD
            return super()._pass(task)

    counted = Counted(setup)
    found = by_two(counted, counted, model, setup)
    assert made == 0
    for one, other in zip(found, by_two(alone, TorchCompute(setup), model, setup), strict=True):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])


def test_a_kept_pass_is_not_used_for_other_rows_or_other_weights() -> None:
    model = model_of("gcn")
    setup, weights = setup_of(model), weights_of(model)
    doubled = {name: 2 * array for name, array in weights.items()}
    forward = forward_task()
    grad_z = random_rows(7, weights["layers.0.weight"].shape[1], seed=3).numpy()

    def back(rows: Any, version: int) -> Task:
        arrays = {**forward.arrays, "x": rows, "grad_z": grad_z}
        return Task(Key(EPOCH, 0, Direction.BACKWARD, 0), version, arrays)

    for task, of in (
        (back(2 * forward.arrays["x"], VERSION), weights),
        (back(forward.arrays["x"], VERSION + 1), doubled),
    ):
        kept = TorchCompute(setup)
        kept(forward, weights)
        found, wanted = kept(task, of).grads, TorchCompute(setup)(task, of).grads
        for name, grad in wanted.items():
            np.testing.assert_array_equal(found[name], grad)


def test_batch_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="norm is batch, which is not row by row; set it to layer or none"):
        setup_of(model_of("gcn", norm="batch"))
