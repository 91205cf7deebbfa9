"""Eight nodes in three parts, and a comparison of two parts."""

import torch

from siafu.graph import Graph
from siafu.partition.cut import NODE_FIELDS, Part, cut

OWNERS = [0, 1, 2, 0, 1, 2, 0, 0]


def cut_up(graph: Graph) -> list[Part]:
    """The graph in three parts, in memory."""
    owner = torch.tensor(OWNERS, dtype=torch.int32)
    return [one.part(graph) for one in cut(graph, owner, parts=3)]


def assert_same_part(found: Part, wanted: Part) -> None:
    assert (found.number, found.num_nodes) == (wanted.number, wanted.num_nodes)
    assert (found.route.send, found.route.recv) == (wanted.route.send, wanted.route.recv)
    assert (found.own.name, found.own.class_names) == (wanted.own.name, wanted.own.class_names)
    pairs = {"halo_id": (found.halo_id, wanted.halo_id), "route": (found.route.index, wanted.route.index)}
    for name in (*NODE_FIELDS, "indptr", "indices", "edge_weight", "node_id"):
        pairs[name] = (getattr(found.own, name), getattr(wanted.own, name))
    for name, (one, other) in pairs.items():
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=0, atol=0, msg=name)
