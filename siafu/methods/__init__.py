"""The training methods, a folder each; ``METHODS`` names them. A new method is a folder and a line here."""

from siafu.methods.full import Full
from siafu.methods.lazy import Lazy
from siafu.methods.method import ConfigLike, Method, RankContext
from siafu.methods.pipeline import Pipeline
from siafu.methods.sampled import Sampled
from siafu.methods.snapshots import Snapshots
from siafu.training.procedure import Procedure

METHODS: dict[str, Method] = {
    "full": Full(),
    "sampled": Sampled(),
    "pipeline": Pipeline(),
    "lazy": Lazy(),
    "snapshots": Snapshots(),
}


def build_procedure(rank: RankContext) -> Procedure:
    """Build the procedure of one rank, after checks that all ranks make alike. Collective."""
    method = METHODS[rank.config.method]
    if rank.module is not None and not method.trains_modules:
        raise ValueError(
            f"method {rank.config.method} trains siafu's own models; use method full for a module of your own"
        )
    method.check(rank.config)
    return method.build(rank)


__all__ = ["METHODS", "ConfigLike", "Method", "Procedure", "RankContext", "build_procedure"]
