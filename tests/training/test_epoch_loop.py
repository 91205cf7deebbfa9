"""Full-graph training: what reaches the optimiser, what is kept, when it ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from siafu.graph import Block
from siafu.nn import Gcn
from siafu.training.loop import Loop
from siafu.training.procedure import Monitor, train_epoch

MakeLoop = Callable[..., Loop]
MakeMonitor = Callable[..., Monitor]


class Fixed(nn.Module):
    """Its output never changes, whatever its one parameter is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return x[:, :3] + 0 * self.scale


class Own(nn.Module):
    """A user's model: a layer of siafu's, torch's own dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.drop, self.norm, self.last = (
            Gcn(12, 8),
            nn.Dropout(0.5),
            nn.BatchNorm1d(8),
            nn.Linear(8, 3),
        )

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(block, x)))))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_loss_falls_and_the_classes_are_learned(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    losses: list[float] = []
    loop = make_loop(epochs=40)
    reason = loop.fit(make_monitor(on_epoch=lambda *_, loss, **__: losses.append(loss)))
    assert reason == "done"
    assert losses[-1] < 0.75 * losses[0]
    assert loop.procedure.task.score(loop.procedure.outputs(), "test") > 0.6


def test_the_weights_of_the_best_validation_score_are_the_ones_at_the_end(
    make_loop: MakeLoop, make_monitor: MakeMonitor
) -> None:
    loop, seen, scores = make_loop(epochs=30, lr=0.3), {}, {}

    def remember(epoch: int, total: int, *, val_score: float | None, **_: Any) -> None:
        seen[epoch], scores[epoch] = weights(loop.procedure.model), val_score

    loop.fit(make_monitor(on_epoch=remember))
    best = loop.state.best_epoch
    assert scores[best] == max(scores.values())
    assert best < 30, "nothing is shown if the last epoch is the best"
    assert same(weights(loop.procedure.model), seen[best])
    assert loop.procedure.task.score(loop.procedure.outputs(), "val") == scores[best]


def test_without_validation_nodes_the_last_weights_stay(
    make_loop: MakeLoop, make_monitor: MakeMonitor
) -> None:
    loop, seen = make_loop(patience=1), {}
    loop.procedure.task.rows["val"], loop.procedure.task.count["val"] = torch.empty(0, dtype=torch.int64), 0
    reason = loop.fit(
        make_monitor(on_epoch=lambda epoch, *_, **__: seen.update({epoch: weights(loop.procedure.model)}))
    )
    assert (reason, loop.state.best_epoch) == ("done", 0)
    assert same(weights(loop.procedure.model), seen[8])


def test_training_stops_when_patience_is_over(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    loop = make_loop(Fixed(), epochs=20, patience=3)
    assert loop.fit(make_monitor()) == "patience"
    assert (loop.state.best_epoch, loop.state.epoch) == (1, 4)


def test_without_patience_training_goes_to_its_end(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    loop = make_loop(Fixed(), epochs=12, patience=0)
    assert (loop.fit(make_monitor()), loop.state.epoch) == ("done", 12)


def test_patience_waits_for_the_next_evaluation(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    loop = make_loop(Fixed(), epochs=20, patience=2, evaluate_every=4)
    assert loop.fit(make_monitor()) == "patience"
    assert (loop.state.best_epoch, loop.state.epoch) == (4, 8)


def test_of_equal_scores_the_one_with_the_lower_loss_is_better(make_loop: MakeLoop) -> None:
    loop = make_loop(Fixed())
    for epoch, (score, loss) in enumerate([(0.5, 2.0), (0.5, 1.0), (0.5, 1.0), (0.4, 0.1)], 1):
        loop.keep_best(epoch, score, loss)
    assert (loop.state.best_epoch, loop.state.best_loss) == (2, 1.0)


def test_a_score_that_is_undefined_leaves_the_choice_to_the_loss(make_loop: MakeLoop) -> None:
    loop = make_loop(Fixed())
    for epoch, loss in enumerate([2.0, 1.0, 3.0], 1):
        loop.keep_best(epoch, None, loss)
    assert (loop.state.best_epoch, loop.state.best_score) == (2, None)


def test_the_scheduled_rate_is_the_one_the_optimiser_uses(
    make_loop: MakeLoop, make_monitor: MakeMonitor
) -> None:
    loop, used = make_loop(schedule="cosine", warmup=2), []
    loop.fit(make_monitor(on_epoch=lambda *_, **__: used.append(loop.procedure.optimizer.adam.lr)))
    assert used == [loop.config.lr_at(epoch) for epoch in range(1, 9)]
    assert len(set(used)) == 8


def test_a_step_is_as_long_as_its_rate(make_loop: MakeLoop) -> None:
    loop = make_loop(lr=0.01, schedule="linear", epochs=4, weight_decay=0)
    before = weights(loop.procedure.model)
    train_epoch(loop.procedure, 3)
    moved = max(
        float((value - before[name]).abs().max()) for name, value in loop.procedure.model.state_dict().items()
    )
    assert moved == pytest.approx(0.005, rel=1e-3)  # Adam's first step is as long as the rate


@pytest.mark.parametrize("clip", [0, 1e-3])
def test_gradients_are_clipped_where_asked(make_loop: MakeLoop, clip: float) -> None:
    loop = make_loop(clip=clip)
    train_epoch(loop.procedure, 1)
    grads = [p.grad for p in loop.procedure.model.parameters() if p.grad is not None]
    norm = float(torch.stack([grad.norm() for grad in grads]).norm())
    assert norm == pytest.approx(1e-3, rel=1e-3) if clip else norm > 1e-2


@pytest.mark.parametrize("decay", [0, 0.1])
def test_weights_decay_where_asked(make_loop: MakeLoop, decay: float) -> None:
    loop = make_loop(Fixed(), weight_decay=decay)
    train_epoch(loop.procedure, 1)
    assert bool((loop.procedure.model.scale < 1).all()) == (decay > 0)


def test_only_evaluated_epochs_have_scores(
    make_loop: MakeLoop, make_monitor: MakeMonitor, tmp_path: Path
) -> None:
    make_loop(epochs=5, evaluate_every=2).fit(watch := make_monitor())
    watch.events.flush()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    scored = [event["epoch"] for event in events if event["phase"] == "epoch" and "val_score" in event]
    assert scored == [2, 4, 5]


class Notes(Own):
    """Notes whether torch is in its deterministic mode."""

    seen: bool | None = None

    def forward(self, block: Block, x: Tensor) -> Tensor:
        self.seen = torch.are_deterministic_algorithms_enabled()
        return super().forward(block, x)


@pytest.mark.parametrize("on", [True, False])
def test_deterministic_mode_lasts_as_long_as_training(
    make_loop: MakeLoop, make_monitor: MakeMonitor, on: bool
) -> None:
    loop = make_loop(Notes(), deterministic=on, epochs=2)
    loop.fit(make_monitor())
    assert loop.procedure.model.seen is on
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_mode_ends_with_an_error_too(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    with pytest.raises(ValueError, match="is nan"):
        make_loop(deterministic=True, lr=1e30).fit(make_monitor())
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loss_that_is_no_number_ends_training_with_advice(
    make_loop: MakeLoop, make_monitor: MakeMonitor
) -> None:
    with pytest.raises(ValueError, match=r"epoch \d is nan; lower --lr \(now 1e\+30\) or set train\.clip"):
        make_loop(lr=1e30).fit(make_monitor())


class Wrong(Own):
    """Returns one column too few."""

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return super().forward(block, x)[:, :2]


def test_a_module_with_the_wrong_output_is_told_what_is_expected(make_loop: MakeLoop) -> None:
    with pytest.raises(ValueError, match=r"the model returned \(300, 2\); expected \(300, 3\)"):
        train_epoch(make_loop(Wrong()).procedure, 1)


def test_training_leaves_torchs_own_generator_alone(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    loop, before = make_loop(Own()), torch.get_rng_state()
    loop.fit(make_monitor())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_users_module_draws_the_same_whatever_was_drawn_before(
    make_loop: MakeLoop, make_monitor: MakeMonitor
) -> None:
    one, other = make_loop(Own()), make_loop(Own())
    one.fit(make_monitor())
    torch.rand(7)
    other.fit(make_monitor())
    assert same(weights(one.procedure.model), weights(other.procedure.model))
    third = make_loop(Own(), seed=1)
    third.fit(make_monitor())
    assert not same(weights(one.procedure.model), weights(third.procedure.model)), (
        "the seed decides what torch's dropout drops"
    )


@pytest.mark.parametrize("own", [False, True])
def test_training_in_two_pieces_is_training_in_one(
    make_loop: MakeLoop, make_monitor: MakeMonitor, own: bool
) -> None:
    whole = make_loop(Own() if own else None)
    whole.fit(make_monitor())
    first = make_loop(Own() if own else None)
    stop = iter([None, None, "SIGTERM"])
    assert first.fit(make_monitor(should_stop=lambda: next(stop))) == "SIGTERM"
    assert first.state.epoch == 3
    second = make_loop(Own() if own else None, seed=0)
    watch = make_monitor()
    second.resume(watch.checkpoint)
    assert second.fit(watch) == "done"
    assert same(weights(whole.procedure.model), weights(second.procedure.model))
    assert (second.state.best_epoch, second.state.best_score) == (
        whole.state.best_epoch,
        whole.state.best_score,
    )
    assert len(second.state.epoch_seconds) == 8
