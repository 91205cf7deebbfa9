"""Who owns which node. It knows no rank and no clock.

Reading order: ``config``, ``assign`` (a part for each node) with ``packages`` (METIS, KaMinPar) and ``given`` (a file),
``quality`` (what a partition is like).
"""

from siafu.partition.assign import assign
from siafu.partition.config import PartitionConfig
from siafu.partition.quality import Quality, quality

__all__ = ["PartitionConfig", "Quality", "assign", "quality"]
