"""Arguments of PyG's NeighborLoader that siafu ignores, and those that it refuses."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from siafu.methods.sampled.config import MOST_FANOUT

SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")

# How PyG's sampler processes work and how it reads its data: threads of the native sampler do the work here.
_IGNORED = {
    "filter_per_worker",
    "in_order",
    "is_sorted",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
}
_TEMPORAL = "neighbours are drawn by no time here"
_OTHER = "minibatches are made by batch_size and shuffle alone"
# Those that are accepted with one value alone, and why.
_FIXED: dict[str, tuple[Any, str]] = {
    "batch_sampler": (None, _OTHER),
    "collate_fn": (None, "use transform"),
    "custom_cls": (None, "minibatches are torch_geometric.data.Data"),
    "directed": (True, 'use subgraph_type="induced"'),
    "disjoint": (False, "the subgraphs of seeds are joined here"),
    "generator": (None, "the order of seeds depends on seed and epoch alone: use seed"),
    "input_id": (None, "it is the place in input_nodes"),
    "input_time": (None, _TEMPORAL),
    "neighbor_sampler": (None, "the sampler is siafu's own"),
    "sampler": (None, _OTHER),
    "temporal_strategy": ("uniform", _TEMPORAL),
    "time_attr": (None, _TEMPORAL),
    "transform_sampler_output": (None, "use transform"),
    "weight_attr": (None, "all in-edges of a node are as likely to be drawn"),
}
_OWN = ("batch_size", "replace", "subgraph_type", "shuffle", "drop_last", "seed", "transform", "comm")


def check_pyg_arguments(given: Mapping[str, Any]) -> None:
    """Refuse unknown arguments, and values that ask for features siafu does not have."""
    for name, value in given.items():
        if name in _IGNORED:
            continue
        if name not in _FIXED:
            near = difflib.get_close_matches(name, (*_OWN, *_IGNORED, *_FIXED), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"NeighborLoader has no argument {name!r}{hint}")
        only, why = _FIXED[name]
        if value is not only and value != only:
            raise ValueError(f"NeighborLoader: {name} is {value!r}; expected {only!r}: {why}")


def read_fanouts(num_neighbors: Sequence[int]) -> list[int]:
    """Return the fanout of each hop, the one next to the seeds first."""
    if isinstance(num_neighbors, Mapping):
        raise ValueError(
            "num_neighbors is a dict, which is for several types of edges; expected a list, one number a hop"
        )
    fanouts = list(num_neighbors)
    if not fanouts or not all(
        isinstance(each, int) and not isinstance(each, bool) and -1 <= each <= MOST_FANOUT for each in fanouts
    ):
        raise ValueError(
            f"num_neighbors is {fanouts}; expected whole numbers up to {MOST_FANOUT}, one a hop from the seeds "
            "outwards, -1 for all"
        )
    return fanouts


def check_sizes(batch_size: int, subgraph_type: str) -> None:
    """Refuse an invalid batch size and an unknown subgraph type."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ValueError(f"batch_size is {batch_size!r}; expected a whole number from 1")
    if subgraph_type not in SUBGRAPH_TYPES:
        raise ValueError(f"subgraph_type is {subgraph_type!r}; expected one of {', '.join(SUBGRAPH_TYPES)}")
