"""A graph on disk: a manifest and raw, checksummed, memory-mapped arrays in one folder. It knows no rank.

Reading order: ``manifest`` (what a store says of itself), ``names`` and ``splits`` (how ids and masks are
kept), ``reader``, ``writer``, ``dynamic`` (graphs that change over time), ``pages`` (what stays in memory).
"""

from siafu.store.dynamic import (
    DynamicStore,
    DynamicWriter,
    is_dynamic,
    open_any,
    open_dynamic,
    write_dynamic,
)
from siafu.store.manifest import ArraySpec, DynamicManifest, Manifest
from siafu.store.reader import Store, open_store
from siafu.store.splits import TEST, TRAIN, UNUSED, VALIDATION, split_masks
from siafu.store.writer import ArrayWriter, StoreWriter, write_store

__all__ = [
    "TEST",
    "TRAIN",
    "UNUSED",
    "VALIDATION",
    "ArraySpec",
    "ArrayWriter",
    "DynamicManifest",
    "DynamicStore",
    "DynamicWriter",
    "Manifest",
    "Store",
    "StoreWriter",
    "is_dynamic",
    "open_any",
    "open_dynamic",
    "open_store",
    "split_masks",
    "write_dynamic",
    "write_store",
]
