"""Graph partitioning: the owner of each node, and the parts on disk.

Reading order: ``config``, ``assign`` (a part for each node) with ``external`` (METIS, KaMinPar) and ``part_file`` (a
user's file), ``quality``; ``cut`` (a part as a graph with its halo), ``parts`` (on disk), ``create``, ``distribute``
(each rank gets its part), ``log_shard`` and ``distribute_log`` (the same for dynamic graphs), ``cross_site`` (sites
that may not pool their data).
"""

from siafu.partition.assign import assign
from siafu.partition.config import PartitionConfig
from siafu.partition.quality import Quality, quality

__all__ = ["PartitionConfig", "Quality", "assign", "quality"]
