"""How a model is trained: learning rates by epoch, and settings out of range."""

import pytest
from pydantic import ValidationError

from siafu.training.config import TrainConfig


def rates(epochs: int, **settings: object) -> list[float]:
    config = TrainConfig.model_validate({"epochs": epochs, "lr": 0.8, **settings})
    return [config.lr_at(epoch) for epoch in range(1, epochs + 1)]


def test_a_constant_rate_stays() -> None:
    assert rates(3) == [0.8, 0.8, 0.8]


def test_a_linear_rate_falls_evenly_towards_zero() -> None:
    assert rates(4, schedule="linear") == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_a_cosine_rate_falls_from_the_whole_by_half_a_wave() -> None:
    assert rates(4, schedule="cosine") == pytest.approx([0.8, 0.68284271, 0.4, 0.11715729])


def test_warmup_rises_evenly_before_the_schedule_begins() -> None:
    assert rates(5, warmup=3) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])
    assert rates(5, warmup=3, schedule="linear") == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.4])


def test_a_warmup_longer_than_training_only_rises() -> None:
    assert rates(2, warmup=3, schedule="cosine") == pytest.approx([0.2, 0.4])


@pytest.mark.parametrize("none", [0, None])
def test_patience_of_nothing_never_stops_early(none: int | None) -> None:
    assert TrainConfig.model_validate({"patience": none}).patience == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"lr": 0},
        {"lr": float("inf")},
        {"lr": float("nan")},
        {"weight_decay": -1},
        {"clip": -1},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TrainConfig.model_validate(settings)
