"""Format numbers for people to read: scores, seconds, bytes, dollars, counts."""

import math
from typing import Any

LOWER_IS_BETTER = frozenset({"mae", "mse", "rmse", "loss", "brier", "calibration_error"})
_PER_CENT = ("accuracy", "balanced_accuracy")
_NAMES = {"roc_auc": "ROC-AUC", "mae": "MAE", "mse": "MSE", "rmse": "RMSE", "map": "MAP", "mrr": "MRR"} | {
    "brier": "Brier score"
}
_NONE = "–"


def fmt_metric(metric: str) -> str:
    """Name the metric in words: ``macro_f1`` is "macro F1"."""
    return _NAMES.get(metric, metric.replace("_", " ").replace("f1", "F1"))


def fmt_score(value: float | None, metric: str, *, std: float | None = None) -> str:
    """Format accuracies in per cent and every other metric with four digits; ``std`` follows a plus-minus sign."""
    if value is None or not math.isfinite(value):
        return _NONE
    percent = metric in _PER_CENT
    texts = [f"{100 * part:.1f}" if percent else f"{part:.4g}" for part in (value, std) if part is not None]
    return " ± ".join(texts) + (" %" if percent else "")


def fmt_seconds(seconds: float | None) -> str:
    """Format seconds with three digits, in the unit that fits: 12.3 ms, 4.56 s, 7 min 8 s, 2 h 5 min."""
    if seconds is None or not math.isfinite(seconds):
        return _NONE
    if seconds < 1:
        return f"{_digits(1000 * seconds)} ms"
    if seconds < 59.95:
        return f"{_digits(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def fmt_bytes(count: float | None) -> str:
    """Format bytes with three digits, in units of 1024: 1.50 GiB."""
    if count is None or not math.isfinite(count):
        return _NONE
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{_digits(count) if unit != 'bytes' else round(count)} {unit}"
        count /= 1024
    return f"{_digits(count)} TiB"


def fmt_dollars(dollars: float | None) -> str:
    """Format dollars with two significant digits, or with cents: $0.00016, $0.031, $12.34."""
    if dollars is None or not math.isfinite(dollars):
        return _NONE
    if abs(dollars) >= 1 or dollars == 0:
        return f"${dollars:,.2f}".replace(",", "\u202f")
    digits = min(1 - math.floor(math.log10(abs(dollars))), 12)
    return f"${dollars:.{digits}f}"


def fmt_value(value: Any, key: str = "") -> str:
    """Format any value of a run's files, in the unit that its key names."""
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float) and key.endswith("_bytes"):
        return fmt_bytes(value)
    if isinstance(value, int):
        return (
            f"{value:,}".replace(",", "\u202f") if abs(value) >= 10_000 and "seed" not in key else str(value)
        )
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(fmt_value(item) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{name} {fmt_value(item, str(name))}" for name, item in value.items()) or "none"
    return str(value)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
