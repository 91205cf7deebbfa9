"""Graphs to train on: other people's formats read into a Graph or a store, public sets by name, generators.

Reading order: ``lookup`` (what a user wrote), ``npz``, ``bundled`` with ``generate`` and ``karate``, ``named``
(public sets) with ``download``, ``linqs`` and ``snap``, ``catalogue`` (the list), ``importing`` (tables into a
store).
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
