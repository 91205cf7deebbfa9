"""Full-graph training as a pipeline: graph work on ranks overlaps with tensor work on workers.

After Dorylus (https://www.usenix.org/conference/osdi21/presentation/thorpe). ``intervals`` cuts a rank's nodes,
``staleness_gate`` decides which interval may go on, ``rows`` holds the rows that tasks read and write, ``parameters``
the weights; ``server`` runs the tasks of a rank, ``procedure`` trains.
"""

import os
from typing import TYPE_CHECKING

from torch import nn

from siafu.cores import usable_cores
from siafu.methods.method import ConfigLike, Method, RankContext
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.static import build_static_model, require_features, static_inputs
from siafu.nn.streamed import dense
from siafu.workers.signing import BILLED_KINDS, lease_key

if TYPE_CHECKING:
    from siafu.methods.pipeline.procedure import PipelineProcedure


class Pipeline(Method):
    """Graph servers aggregate and workers without a graph do the tensor work, in a bounded-asynchronous pipeline."""

    race_method = "full"  # the same steps without workers; at staleness 0 the same losses

    def check(self, config: ConfigLike) -> None:
        """Refuse settings with which a pipeline cannot train, and functions without a key for leases."""
        pipeline = config.of(PipelineConfig)
        if pipeline.workers in BILLED_KINDS:
            lease_key(os.environ, pipeline.lease_key_file)  # raises an error with instructions
        if config.model.norm == "batch":
            raise ValueError(
                "model.norm is batch, which is not row by row, so that no worker could do it; set it to layer, or use "
                "method full"
            )
        if config.comm.gradients != "fp32":
            raise ValueError(
                f"comm.gradients is {config.comm.gradients}, but method pipeline adds gradients up exactly; set it to "
                "fp32"
            )

    def build(self, rank: RankContext) -> "PipelineProcedure":
        """Build the procedure of one rank. Collective."""
        from siafu.methods.pipeline.procedure import PipelineProcedure

        config, pipeline = rank.config, rank.config.of(PipelineConfig)
        part, context, x, task, model = static_inputs(rank)
        return PipelineProcedure(
            require_features(model, part, "pipeline"),
            context,
            dense(x),
            task,
            config.train,
            pipeline=pipeline,
            route=part.route,
            seed=config.seed,
            wire=config.comm,
            cores=usable_cores(),
            folder=rank.scratch if pipeline.workers not in ("inline", "threads") else None,
        )

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        """Build the model of a run, without its weights."""
        return build_static_model(
            config, in_features=in_features, out_features=out_features, num_nodes=num_nodes
        )
