"""Graphs to train on: files in other formats, public data sets by name, and generators.

Reading order: ``loading`` (from a name or a path to a graph), ``npz``, ``builtin`` with ``generate``, ``karate`` and
``transactions``, ``public_datasets`` with ``download``, ``linqs`` and ``snap``, ``temporal`` (dynamic graphs in one
file), ``catalogue`` (the list of data sets), ``importing`` (tables into a store), ``pair_table`` (pairs to score).
"""

from siafu.data.catalogue import Description, available
from siafu.data.generate import community, random_labels, rmat
from siafu.data.karate import karate
from siafu.data.loading import data_home, load, only_static

__all__ = [
    "Description",
    "available",
    "community",
    "data_home",
    "karate",
    "load",
    "only_static",
    "random_labels",
    "rmat",
]
