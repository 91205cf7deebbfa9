"""``TrainConfig``: the settings of training that all methods share."""

from math import cos, pi
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

OfNodes = Literal["auto", "accuracy", "macro_f1", "micro_f1", "roc_auc", "mae"]
OfPairs = Literal["map", "mrr", "hits_1", "hits_3", "hits_10", "hits_50"]
Metric = OfNodes | OfPairs


class TrainConfig(BaseModel):
    """Optimisation, selection and safety of a training run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    search: Literal["auto", "off"] = "auto"  # off: no race among recipes; the first one is taken
    epochs: int = Field(200, ge=1)
    ensemble: int = Field(1, ge=1, le=1000)  # number of members, whose outputs are averaged
    lr: float = Field(0.01, gt=0)
    weight_decay: float = Field(5e-4, ge=0)
    dense_weight_decay: float | None = Field(
        None, ge=0
    )  # of layers before the first aggregate and after the last (gcn2); None: as weight_decay
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = Field(0, ge=0)  # epochs over which the learning rate rises from zero
    patience: int = Field(
        100, ge=0
    )  # epochs without a better validation score or loss; 0 or None: never stop
    clip: float = Field(0.0, ge=0)  # largest norm of the gradient; 0: any
    class_weights: Literal["none", "balanced"] = "none"
    metric: Metric = "auto"
    evaluate_every: Literal["auto"] | int = (
        "auto"  # epochs; auto: so that scoring takes at most a third of the time
    )
    checkpoint_seconds: float = Field(10.0, ge=0)
    deterministic: bool = False  # refuse operations of torch whose result may vary

    @field_validator("patience", mode="before")
    @classmethod
    def _never(cls, value: object) -> object:
        return 0 if value is None else value

    @field_validator("evaluate_every")
    @classmethod
    def _at_least_one(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("Input should be auto, or a number from 1")
        return value

    @property
    def scoring_interval(self) -> int:
        """The number of epochs from one scoring to the next; 1 where no run has resolved ``auto``."""
        return 1 if self.evaluate_every == "auto" else self.evaluate_every

    def lr_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 1: a function of the epoch alone, so that resuming is exact."""
        if epoch <= self.warmup:
            return self.lr * epoch / (self.warmup + 1)
        if self.schedule == "constant":
            return self.lr
        done = (epoch - 1 - self.warmup) / max(1, self.epochs - self.warmup)
        return self.lr * (1 - done if self.schedule == "linear" else 0.5 * (1 + cos(pi * done)))
