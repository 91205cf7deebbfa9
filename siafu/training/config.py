"""``TrainConfig``: the settings of training that all methods share."""

from collections.abc import Mapping
from math import cos, pi
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from siafu.conditions import ALWAYS, Applies, when

OfNodes = Literal[
    "auto",
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "micro_f1",
    "f1",
    "roc_auc",
    "average_precision",
    "precision_at_k",
    "recall_at_k",
    "brier",
    "calibration_error",
    "mae",
]
OfPairs = Literal["map", "mrr", "hits_1", "hits_3", "hits_10", "hits_50"]
Metric = OfNodes | OfPairs
ClassWeights = Literal["none", "balanced"] | tuple[float, ...] | dict[str, float]
Threshold = Literal["auto", "none", "f1", "balanced_accuracy"] | float

_OF_CLASSES = when("task", "node", "edge")


class WeightTable(dict[str, float]):
    """The weights of some classes by name; it never changes, so that the config that holds it can be hashed."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


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
    loss: Literal["cross_entropy", "focal"] = "cross_entropy"
    focal_gamma: float = Field(2.0, ge=0)  # of the focal loss; 0: cross entropy
    class_weights: ClassWeights = "none"  # or a weight of each class, or of some classes by name
    metric: Metric = "auto"
    positive_class: str | int | None = None  # None: of two classes the second, or the first if it is rare
    at_k: int = Field(100, ge=1)  # rows that precision_at_k and recall_at_k count
    threshold: Threshold = "auto"  # the probability from which a row is predicted positive; none: 0.5
    evaluate_every: Literal["auto"] | int = (
        "auto"  # epochs; auto: so that scoring takes at most a third of the time
    )
    checkpoint_seconds: float = Field(10.0, ge=0)
    deterministic: bool = False  # refuse operations of torch whose result may vary

    applies: ClassVar[Applies] = {
        "search": ALWAYS,
        "epochs": ALWAYS,
        "ensemble": ALWAYS,
        "lr": ALWAYS,
        "weight_decay": ALWAYS,
        "dense_weight_decay": (when("model.kind", "gcn2"),),
        "schedule": ALWAYS,
        "warmup": ALWAYS,
        "patience": ALWAYS,
        "clip": ALWAYS,
        "loss": (_OF_CLASSES,),
        "focal_gamma": (_OF_CLASSES, when("train.loss", "focal")),
        "class_weights": (_OF_CLASSES,),
        "metric": ALWAYS,
        "positive_class": (_OF_CLASSES,),
        "at_k": (_OF_CLASSES,),
        "threshold": (_OF_CLASSES,),
        "evaluate_every": ALWAYS,
        "checkpoint_seconds": ALWAYS,
        "deterministic": ALWAYS,
    }

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

    @field_validator("class_weights", mode="before")
    @classmethod
    def _check_weights(cls, value: object) -> object:
        if isinstance(value, str) and value in ("none", "balanced"):
            return value
        listed = list(value.values()) if isinstance(value, Mapping) else value
        if not isinstance(listed, list | tuple) or not listed:
            raise ValueError(
                "Input should be none, balanced, a list of the weight of each class, or a table of weights by class"
            )
        if (
            any(isinstance(each, bool) or not isinstance(each, int | float) for each in listed)
            or min(listed) <= 0
        ):
            raise ValueError("Input should be weights that are numbers above 0")
        return value

    @field_validator("class_weights")
    @classmethod
    def _make_hashable(cls, value: ClassWeights) -> ClassWeights:
        return WeightTable(value) if isinstance(value, dict) else value

    @field_validator("threshold")
    @classmethod
    def _check_threshold(cls, value: Threshold) -> Threshold:
        if isinstance(value, float) and not 0 < value < 1:
            raise ValueError(
                "Input should be auto, none, f1, balanced_accuracy, or a probability between 0 and 1"
            )
        return value

    @property
    def gamma(self) -> float:
        """The exponent of the focal loss; 0 for cross entropy."""
        return self.focal_gamma if self.loss == "focal" else 0.0

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
