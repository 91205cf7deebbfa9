"""The sampled SAGE that benchmarks of several ranks train, as arguments of ``siafu train``, and what its runs tell."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sampled_side import DECAY, DROPOUT, FANOUTS, HIDDEN, LR

SETTINGS = (
    "method=sampled",
    "model.kind=sage",
    f"model.layers={len(FANOUTS)}",
    f"model.hidden={HIDDEN}",
    f"model.dropout={DROPOUT}",
    "model.input_dropout=0",
    f"train.lr={LR}",
    f"train.weight_decay={DECAY}",
    f"sampled.fanout={','.join(map(str, FANOUTS))}",
)


def arguments(store: Path, out: Path, *, epochs: int, settings: Sequence[str]) -> list[str]:
    """Of a run of so many epochs with one thread a rank, scored at its end alone."""
    every = (*SETTINGS, "threads=1", "train.evaluate_every=1000000", f"train.epochs={epochs}", *settings)
    return [str(store), "--out", str(out), *(word for each in every for word in ("--set", each))]


def epoch_seconds(out: Path) -> list[float]:
    """The seconds of each epoch of a run."""
    events = map(json.loads, (out / "events.jsonl").read_text("utf-8").splitlines())
    return [event["seconds"] for event in events if event["phase"] == "epoch"]


def an_epoch(short: Mapping[str, int], long: Mapping[str, int], *, epochs: int) -> dict[str, float]:
    """What an epoch sends by label, by two runs of which one had so many epochs more; the largest first."""
    each = {label: (count - short.get(label, 0)) / epochs for label, count in long.items()}
    return dict(sorted(((k, v) for k, v in each.items() if v > 0), key=lambda pair: -pair[1]))
