"""The splits of RETEXO: so many nodes of each class to train, so many others to validate, the rest to test."""

from dataclasses import replace

import torch

import siafu
from siafu.data.random_split import per_class_split
from siafu.graph import Graph

SIZES = {"cora": (86, 300), "citeseer": (178, 357), "pubmed": (1461, 2190)}  # to train a class, to validate


def load_split(name: str, seed: int) -> Graph:
    """A data set with the split that a seed draws."""
    return with_split(siafu.load(name), name, seed)


def with_split(graph: Graph, name: str, seed: int) -> Graph:
    """The graph of a data set with the split that a seed draws."""
    assert graph.y is not None
    per_class, num_val = SIZES[name]
    sizes = {"per_class": per_class, "num_val": num_val, "num_test": graph.num_nodes}
    masks = per_class_split(graph.y.numpy(), seed=seed, **sizes)
    return replace(graph, **{key: torch.from_numpy(mask) for key, mask in masks.items()})
