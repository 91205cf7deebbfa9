"""A graph on disk: a folder with a manifest and raw, checksummed, memory-mapped arrays. It knows no rank.

Reading order: ``manifest`` (the list of arrays), ``node_names`` and ``splits`` (storage of ids and masks), ``reader``,
``writer``, ``staging`` (temporary folders of writers), ``dynamic`` (graphs that change over time), ``page_cache``
(memory that mapped arrays occupy), ``tensors`` (weights and checkpoints in one file).
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
