"""Lazy message passing (RETEXO, https://arxiv.org/abs/2302.13053): one exchange of rows per layer, not one per epoch.

StageInputs order: ``config`` (settings), ``stage_specs`` (the stages of a recipe), ``stage_inputs`` (rows that a stage
reads, and their exchange), ``averaging`` (federated averaging of weights), ``procedure`` (training), ``traffic`` (bytes
of rows and of parameters). The frugal recipe: ``frugal``, ``frugal_procedure``, made of ``ridge`` (closed-form heads),
``hop_features``, ``degree_heads``, ``smoothing``, ``self_training``, ``validation``. Simulated clients: ``clients``,
``frugal_clients``, ``delivery_history`` (rows that clients have received), ``local_steps`` and ``stacked``.
"""

import torch
from torch import Tensor, nn

from siafu.methods.lazy.config import DEFAULTS, LazyConfig
from siafu.methods.method import ConfigLike, Method, RankContext
from siafu.methods.static import NodeInputs, node_inputs
from siafu.nn.streamed import DenseRows, Streamed, dense
from siafu.training.correct_and_smooth.config import CorrectAndSmoothConfig
from siafu.training.procedure import Procedure


class Lazy(Method):
    """Layers are trained one after another, with one message-passing round between them."""

    defaults = DEFAULTS

    def check(self, config: ConfigLike) -> None:
        """Refuse comm.precision, as lazy.bits sets the precision of rows, and steps that simulated clients lack."""
        lazy = config.of(LazyConfig)
        if config.comm.precision != "fp32":
            raise ValueError(
                f"comm.precision is {config.comm.precision}, but method lazy sends rows as lazy.bits says; set that "
                "instead"
            )
        if config.train.ensemble > 1 and lazy.recipe == "frugal":
            raise ValueError(
                f"train.ensemble is {config.train.ensemble}, but recipe frugal is fitted in closed form, so that all "
                "members would be equal; set it to 1, or choose another lazy.recipe"
            )
        if lazy.clients == "none":
            return
        if config.train.ensemble > 1:
            raise ValueError(
                f"train.ensemble is {config.train.ensemble}, but the outputs of simulated clients depend on which of "
                "them were present; set it to 1, or lazy.clients to none"
            )
        if config.of(CorrectAndSmoothConfig).enabled:
            raise ValueError(
                "correct_and_smooth.enabled is true, but it would send labels of simulated clients to others; set it "
                "to false, or lazy.clients to none"
            )

    def build(self, rank: RankContext) -> Procedure:
        """Build the procedure of one rank. Collective."""
        lazy, inputs = rank.config.of(LazyConfig), node_inputs(rank)
        x = dense(inputs.x)
        if not x.shape[1]:
            name = inputs.part.own.name
            raise ValueError(f"{name}: method lazy reads features, but there are none; use method full")
        if lazy.recipe == "frugal":
            return self._build_frugal(rank.config, lazy, inputs, x)
        if isinstance(x, Streamed):
            raise ValueError("method lazy holds what a stage reads in memory; set data.inputs to memory")
        return self._build_staged(rank.config, lazy, inputs, x)

    def _build_frugal(
        self, config: ConfigLike, lazy: LazyConfig, inputs: NodeInputs, x: DenseRows
    ) -> Procedure:
        from siafu.methods.lazy.clients import assign_clients
        from siafu.methods.lazy.frugal_clients import FrugalClientsProcedure
        from siafu.methods.lazy.frugal_procedure import FrugalProcedure

        part, context, _, task = inputs
        if lazy.clients != "none" and not isinstance(x, Streamed):
            owner = assign_clients(part.own, lazy.clients, by=config.partition.by, ranks=config.ranks)
            return FrugalClientsProcedure(part, context, x, task, seed=config.seed, lazy=lazy, owner=owner)
        return FrugalProcedure(part, context, x, task, seed=config.seed, features=lazy.features)

    def _build_staged(self, config: ConfigLike, lazy: LazyConfig, inputs: NodeInputs, x: Tensor) -> Procedure:
        from siafu.methods.lazy.clients import ClientsProcedure, assign_clients
        from siafu.methods.lazy.procedure import LazyProcedure
        from siafu.nn.staged import Staged

        part, context, _, task = inputs
        model = self.build_model(
            config, in_features=x.shape[1], out_features=task.num_outputs, num_nodes=part.num_nodes
        )
        assert isinstance(model, Staged)
        model.reset(torch.Generator().manual_seed(config.seed))
        if lazy.clients == "none":
            return LazyProcedure(
                model, part, context, x, task, config.train, lazy=lazy, seed=config.seed, wire=config.comm
            )
        owner = assign_clients(part.own, lazy.clients, by=config.partition.by, ranks=config.ranks)
        return ClientsProcedure(
            model,
            part,
            context,
            x,
            task,
            config.train,
            lazy=lazy,
            seed=config.seed,
            wire=config.comm,
            owner=owner,
        )

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        """Build the model of a run, without its weights."""
        from siafu.methods.lazy.frugal_procedure import unfitted_model
        from siafu.methods.lazy.stage_specs import build_staged

        lazy = config.of(LazyConfig)
        if lazy.recipe == "frugal":
            return unfitted_model(in_features, out_features)
        return build_staged(config.model, lazy, in_features=in_features, out_features=out_features)

    def max_epochs(self, config: ConfigLike) -> int:
        """The most rounds of all stages; a round counts as an epoch."""
        return config.train.epochs * config.of(LazyConfig).num_stages(config.model)

    def streams_inputs(self, config: ConfigLike) -> bool:
        """A stage holds the rows that it reads in memory."""
        return False
