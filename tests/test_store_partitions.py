"""Creating and listing the partitions of a store."""

from pathlib import Path

import torch

from siafu.data import community
from siafu.partition.parts import open_partition
from siafu.store import write_store
from siafu.store_partitions import PARTS, list_partitions, partition_store


def node_ids(store: Path) -> torch.Tensor:
    (name,) = list_partitions(store, verify=True)
    partition = open_partition(store / PARTS / name)
    return torch.cat([partition.part(number).own.node_id for number in range(2)])


def test_the_order_of_nodes_can_be_left_alone(tmp_path: Path) -> None:
    graph = community(300, degree=8, features=4, classes=3, seed=0)
    for reorder in ("on", "off"):
        write_store(graph, tmp_path / reorder)
        partition_store(tmp_path / reorder, parts=2, by="hash", reorder=reorder)
    near, left = node_ids(tmp_path / "on"), node_ids(tmp_path / "off")
    assert not torch.equal(near, left)
    assert torch.equal(near.sort().values, left.sort().values)
    assert (left.diff() < 0).sum() == 1  # between the parts
