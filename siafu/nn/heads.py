"""Widths of attention heads."""

from siafu.native import MAX_HEADS


def head_width(out_features: int, *, heads: int, concat: bool) -> int:
    """F, the width of a head, of which H give ``out_features`` side by side (``concat``) or as their mean."""
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"heads is {heads}; expected 1 to {MAX_HEADS}")
    if concat and out_features % heads:
        raise ValueError(
            f"out_features is {out_features}, which {heads} heads do not divide; expected a multiple "
            "of them (model.hidden counts all heads)"
        )
    return out_features // heads if concat else out_features
