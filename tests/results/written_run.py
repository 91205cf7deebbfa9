"""Write the folder of a run as training does, without training."""

import json
import math
from pathlib import Path
from typing import Any

from siafu.checksums import add_text_checksum, checksum
from siafu.event_log import EventLog

CONFIG = """\
seed = {seed}
method = "full"

[data]
name = "cora"

[model]
name = "gcn"
hidden = {hidden}
layers = 2
dropout = 0.5

[train]
epochs = {epochs}
lr = 0.01
weight_decay = 0.0005
patience = 50
"""
MACHINE = {"cpu": "Example CPU", "cores": 2, "memory_bytes": 8 * 2**30, "python": "3.11.7", "torch": "2.13.0"}
GRAPH = {"name": "cora", "nodes": 2708, "edges": 10556, "features": 1433, "classes": 3}
CONFUSION = [[8, 1, 1], [2, 6, 0], [0, 0, 0]]
CLASS_NAMES = ["Theory", "Case_Based", "Rule_Learning"]


def epoch_fields(epoch: int, seed: int = 0) -> dict[str, Any]:
    score = 0.8 - 0.6 * math.exp(-epoch / 4) - 0.02 * max(0, epoch - 8) + 0.003 * seed
    return {
        "epoch": epoch,
        "loss": 2.0 * math.exp(-epoch / 5) + 0.1,
        "lr": 0.01,
        "seconds": 0.01 + 0.001 * (epoch % 3),
        "train_score": min(1.0, score + 0.15),
        "val_score": score,
        "test_score": score + 0.01,
        "rss_bytes": 300_000_000 + 1_000_000 * epoch,
    }


def write_run(
    folder: Path,
    *,
    seed: int = 0,
    epochs: int = 12,
    hidden: int = 16,
    metrics: dict[str, Any] | None = None,
    class_names: list[str] | None = None,
    confusion: list[list[int]] | None = None,
    graph: dict[str, Any] | None = None,
) -> Path:
    folder.mkdir(parents=True)
    config = CONFIG.format(seed=seed, epochs=epochs, hidden=hidden)
    (folder / "config.toml").write_bytes(add_text_checksum(config))
    events = EventLog(folder / "events.jsonl")
    events.write("start", config={}, graph=graph or GRAPH, machine=MACHINE)
    for epoch in range(1, epochs + 1):
        events.write("epoch", **epoch_fields(epoch, seed))
    events.write("stop", epoch=epochs, reason="done")
    events.write("result", confusion=confusion or CONFUSION, class_names=class_names or CLASS_NAMES)
    written = {
        "test_accuracy": 0.8 + 0.01 * seed,
        "val_accuracy": 0.79,
        "test_score": 0.8 + 0.01 * seed,
        "val_score": 0.79,
        "metric": "accuracy",
        "epochs": epochs,
        "seconds": 1.5,
        "epoch_seconds": 0.011,
        "bytes_sent": 0,
        "bytes_by_label": {},
        "peak_rss_bytes": 312_000_000,
        "method": "full",
        "model": "gcn",
        "ranks": 1,
        "seed": seed,
        "run": f"runs/{folder.name}",
        "baseline": {"model": "mlp", "test_score": 0.57},
    }
    written |= metrics or {}
    events.write("end", **written)
    events.close()
    sealed = written | {"checksum": checksum(json.dumps(written, sort_keys=True))}  # NaN may be among them
    (folder / "metrics.json").write_text(json.dumps(sealed))
    return folder
