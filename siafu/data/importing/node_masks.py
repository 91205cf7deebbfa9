"""Write the split of an import: as the user gave it, or labelled nodes at random by shares."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from siafu.data.importing.inputs import Inputs, Masks
from siafu.data.importing.labels import Labels
from siafu.data.importing.node_ids import IdMap, RowNumbers
from siafu.data.importing.node_split import masks_of_nodes
from siafu.data.importing.nodes import NodeTable, read_nodes
from siafu.data.importing.plausibility import refuse_labels_as_split
from siafu.data.random_split import DEFAULT_SHARES, Shares, read_shares, stratified_split
from siafu.event_log import Progress
from siafu.store import StoreWriter
from siafu.store.splits import check_disjoint


class SplitShares(NamedTuple):
    """Shares of labelled nodes (None: the default, if there is no other split), and the seed they are drawn by."""

    shares: Shares | None
    seed: int


def read_split_option(split: str | Path | None) -> tuple[Shares | None, Path | None]:
    """Read what the user gave as split: shares, or the path of a file."""
    shares = read_shares(split) if isinstance(split, str) else None
    return shares, None if shares is not None or split is None else Path(split)


def import_split(
    inputs: Inputs,
    ids: RowNumbers | IdMap,
    labels: Labels | None,
    store: StoreWriter,
    by: SplitShares,
    say: Callable[[str], None],
    progress: Progress,
) -> None:
    """Write the split; labelled nodes without one are split by shares."""
    if inputs.split is None or by.shares is not None:
        masks = _split_by_shares(labels, by, say)
    else:
        masks = _given_split(inputs, ids, progress, labelled=labels is not None)
    check_disjoint(masks, "split")
    for name, mask in masks.items():
        if len(mask) != ids.count:
            raise ValueError(f"split: {len(mask)} rows, but there are {ids.count} nodes; expected as many")
        store.add(name, mask)


def _given_split(inputs: Inputs, ids: RowNumbers | IdMap, progress: Progress, *, labelled: bool) -> Masks:
    """Return the split that the user gave; refuse one that looks like labels."""
    found, named = inputs.split, False
    assert found is not None
    if isinstance(found, NodeTable):
        values = read_nodes(found, ids, label="split", progress=progress)
        named = found.columns == ("split",)
        found = masks_of_nodes(values, found, ids.count)
    if inputs.split_path is not None:
        refuse_labels_as_split(found, labelled=labelled, named=named, what=str(inputs.split_path))
    return found


def _split_by_shares(labels: Labels | None, by: SplitShares, say: Callable[[str], None]) -> Masks:
    """Split the labelled nodes, each class by the same shares, and say so."""
    shares = by.shares or DEFAULT_SHARES
    shown = "/".join(f"{share:g}" for share in shares)
    if labels is None and by.shares is not None:
        raise ValueError(
            f"split: shares {shown} are of labelled nodes, and there are no labels; give --labels or --label"
        )
    masks = {} if labels is None else stratified_split(labels.y, shares, seed=by.seed)
    counts = [int(mask.sum()) for mask in masks.values()]
    if labels is None or not sum(counts):
        return {}
    how = " by class" if labels.y.dtype == np.int64 else ""
    say(
        f"split: {sum(counts):,} labelled nodes were split {shown}{how} at random (seed {by.seed}): "
        f"{counts[0]:,} train, {counts[1]:,} validate, {counts[2]:,} test; --split gives another"
    )
    return masks
