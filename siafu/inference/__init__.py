"""Inference: open a finished run, predict with its model, and write predictions to a file. Nothing here trains."""

from siafu.inference.prediction import decides_by_threshold, predict, predict_pairs, score_pairs
from siafu.inference.trained_run import Run, load_weights, open_run, read_encoder, source_graph

__all__ = [
    "Run",
    "decides_by_threshold",
    "load_weights",
    "open_run",
    "predict",
    "predict_pairs",
    "read_encoder",
    "score_pairs",
    "source_graph",
]
