"""Settings about classes, resolved for the labels of a graph: weights in the loss, the positive class, imbalance."""

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.training.config import ClassWeights, TrainConfig
from siafu.training.thresholds import ThresholdRule

RARE_SHARE = 0.1  # of the training labels: below it the rarer of two classes is rare


class LabelNames(NamedTuple):
    """The labels of a task, for settings that name them.

    Attributes:
        kind: class, labels or regression.
        number: the number of classes, or of labels a node.
        names: their names, or None.
    """

    kind: str
    number: int
    names: Sequence[str] | None = None

    def name(self, place: int) -> str:
        """The name of a class or label."""
        return str(place if self.names is None else self.names[place])

    def find(self, given: str | int, key: str) -> int:
        """The number of a class or label that a setting names, or an error that names the nearest one."""
        names = [self.name(place) for place in range(self.number)]
        if str(given) in names:
            return names.index(str(given))
        if str(given).isdecimal() and int(given) < self.number:
            return int(given)
        near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        raise ValueError(f"{key} names {given}, which is no class here; expected one of {shown}{hint}")


class Imbalance(NamedTuple):
    """The rarer of two classes, and its share of the training labels of all ranks."""

    rare: int
    share: float

    @property
    def is_rare(self) -> bool:
        """Whether it is so rare that accuracy says little."""
        return 0 < self.share < RARE_SHARE


def imbalance(train_count: Sequence[int]) -> Imbalance | None:
    """The rarer of two classes, from the training labels of each; None unless there are two classes."""
    if len(train_count) != 2 or not sum(train_count):
        return None
    rare = int(train_count[1] <= train_count[0])
    return Imbalance(rare, train_count[rare] / sum(train_count))


def class_counts(labels: LabelNames, y_train: Tensor, comm: Comm) -> tuple[int, ...]:
    """The training labels of each class on all ranks; empty unless a node has one class. Collective."""
    if labels.kind != "class":
        return ()
    here = torch.bincount(y_train, minlength=labels.number)
    return tuple(comm.all_reduce(here, label="task").tolist())


def positive_class(labels: LabelNames, config: TrainConfig, train_count: Sequence[int]) -> int | None:
    """The positive class: the one that is named; else of two classes the second, or the first if it is rare."""
    if config.positive_class is not None:
        if labels.kind == "regression":
            raise ValueError(
                f"train.positive_class is {config.positive_class}, but the labels are numbers, not classes; leave it "
                "out"
            )
        return labels.find(config.positive_class, "train.positive_class")
    found = imbalance(train_count)
    if found is None:
        return None
    return 0 if found.is_rare and found.rare == 0 else 1


def threshold_rule(
    labels: LabelNames, config: TrainConfig, train_count: Sequence[int], *, has_val: bool, shares_labels: bool
) -> ThresholdRule | None:
    """The rule by which the threshold of a task of two classes is found; None for the more probable class."""
    asked = config.threshold
    if asked == "none":
        return None
    found = imbalance(train_count)
    if asked == "auto":
        wanted = found is not None and found.is_rare and has_val and shares_labels
        return "f1" if wanted else None
    if labels.kind != "class" or labels.number != 2:
        what = {"class": f"{labels.number} classes", "labels": "several labels a node"}.get(
            labels.kind, "numbers"
        )
        raise ValueError(
            f"train.threshold is {asked}, but a threshold is for two classes, and the labels here are {what}; set it "
            "to none"
        )
    if isinstance(asked, str) and not has_val:
        raise ValueError(
            f"train.threshold is {asked}, which is chosen on validation labels, but there are none; give some, or set "
            "train.threshold to a probability or to none"
        )
    if isinstance(asked, str) and not shares_labels:
        raise ValueError(
            f"train.threshold is {asked}, which needs all labels in one place; set it to a probability or to none"
        )
    return asked


def check_loss(labels: LabelNames, config: TrainConfig) -> None:
    """Refuse a loss of classes for labels that are numbers."""
    if labels.kind == "regression" and config.loss != "cross_entropy":
        raise ValueError(
            f"train.loss is {config.loss}, but the labels are numbers, not classes; leave it at cross_entropy"
        )


def check_no_classes(config: TrainConfig) -> None:
    """Refuse settings about classes for task link, whose pairs have none."""
    usual = {"class_weights": "none", "loss": "cross_entropy", "positive_class": None}
    for key, value in usual.items():
        if getattr(config, key) != value:
            advice = "leave it out" if value is None else f"leave it at {value}"
            raise ValueError(f"train.{key} is for classes of nodes or events; with task link {advice}")
    if config.threshold not in ("auto", "none"):
        raise ValueError(
            "train.threshold is for two classes of nodes or events; with task link leave it at auto"
        )


def class_weight(labels: LabelNames, given: ClassWeights, y_train: Tensor, comm: Comm) -> Tensor | None:
    """The weight of each class or label, (C,) float32; None if all weigh the same. Collective.

    ``y_train`` are the training labels of this rank.
    """
    if given == "none":
        return None
    if labels.kind == "regression":
        shown = given if isinstance(given, str) else "given"
        raise ValueError(
            f"train.class_weights is {shown}, but the labels are numbers, not classes; set it to none"
        )
    if given == "balanced":
        return _balanced(labels, y_train, comm)
    if isinstance(given, Mapping):
        weight = torch.ones(labels.number)
        for name, value in given.items():
            weight[labels.find(name, "train.class_weights")] = value
        return weight
    if len(given) != labels.number:
        what = "classes" if labels.kind == "class" else "labels"
        raise ValueError(
            f"train.class_weights has {len(given)} weights, but there are {labels.number} {what}; give one for each, "
            "or a table of those that are not 1, such as {" + labels.name(labels.number - 1) + " = 20}"
        )
    return torch.tensor(given, dtype=torch.float32)


def _balanced(labels: LabelNames, y_train: Tensor, comm: Comm) -> Tensor:
    """The rarer a class among the training labels of all ranks, the larger its weight. Collective."""
    of_class = labels.kind == "class"
    here = torch.bincount(y_train, minlength=labels.number) if of_class else y_train.sum(0).long()
    *count, rows = comm.all_reduce(torch.cat([here, torch.tensor([y_train.shape[0]])]), label="task")
    each = torch.stack(count).float()
    if of_class:
        return rows / (labels.number * each.clamp(min=1))
    return (rows - each) / each.clamp(min=1)


def chosen_metric(asked: str, fits: Sequence[str], found: Imbalance | None, *, shares_labels: bool) -> str:
    """The metric that selects the best weights: the first of ``fits``, unless the config asks for another of them.

    With a rare class it is average precision; where that would need labels of other organisations, macro-F1.
    """
    if asked == "auto":
        rare = found is not None and found.is_rare
        return ("average_precision" if shares_labels else "macro_f1") if rare else fits[0]
    if asked in fits:
        return asked
    if asked in ("f1", "precision_at_k", "recall_at_k") and "average_precision" in fits:
        raise ValueError(
            f"train.metric is {asked}, which scores one class, but none is singled out here; name it with "
            "train.positive_class, or choose another metric"
        )
    raise ValueError(
        f"train.metric is {asked}, which does not fit these labels; expected one of {', '.join(fits)}"
    )
