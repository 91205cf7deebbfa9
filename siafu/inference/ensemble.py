"""Ensembles: members are ordinary runs in folders within that of the run, whose outputs are averaged.

After the members are trained, the ranks of the run load them one after another and score the average.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from siafu.config import Config
from siafu.cost import value
from siafu.inference.trained_run import Run, load_weights
from siafu.methods import METHODS, RankContext, build_procedure
from siafu.nn.ensemble import Ensemble, averaged
from siafu.run_folder import RunFolder
from siafu.training.procedure import Procedure
from siafu.training.spill import tables_in

SEED_DISTANCE = 1_000_000  # between members, so that runs with seeds next to each other share none
_TABLES = 4  # of (nodes, outputs): the average of labels takes two, beside a member's outputs
_ADDED = (
    *("epochs", "seconds", "score_seconds", "bytes_sent", "dollars", "tasks", "tasks_relaunched"),
    *("sample_seconds", "fetch_seconds", "compute_seconds", "message_bytes", "parameter_bytes"),
)


def member_config(config: Config, place: int) -> Config:
    """Make the config of one member; the first has the seed of the run."""
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"ensemble": 1}),
            "correct_and_smooth": config.correct_and_smooth.model_copy(update={"enabled": False}),
            "seed": (config.seed + place * SEED_DISTANCE) % 2**63,
            "baseline": False,
        }
    )


class EnsembleProcedure(Procedure):
    """Scores an ensemble on one rank; there are no epochs, since its members are trained.

    ``member`` is the procedure of any member, which computes the outputs of all.
    """

    num_stages = 0

    def __init__(self, model: Ensemble, member: Procedure, rank: RankContext) -> None:
        self.model, self._member, self._rank = model, member, rank
        self.task, self.comm, self.optimizer = member.task, member.comm, member.optimizer
        self.in_features, self.sent = member.in_features, member.sent

    def outputs(self) -> Tensor:
        """Average the outputs of all members for every own row. Collective."""
        assert isinstance(self.model, Ensemble)
        each = (self._member.outputs_of(member.state_dict()) for member in self.model.members)
        rows, width = self._rank.static_part.num_nodes, self.task.num_outputs
        table = tables_in(self._rank.scratch, count=_TABLES, rows=rows, width=width)
        return averaged(each, self.task.kind, table=table)


def build_ensemble(rank: RankContext, config: Config, folder: RunFolder | None) -> EnsembleProcedure:
    """Build the ensemble of trained members; rank 0 reads their weights in the run's ``folder``. Collective."""
    member = build_procedure(replace(rank, config=member_config(config, 0)))
    width, outputs = member.in_features, member.task.num_outputs
    shape = {"in_features": width, "out_features": outputs, "num_nodes": rank.static_part.num_nodes}
    count, method = config.train.ensemble, METHODS[config.method]
    model = Ensemble([method.build_model(config, **shape) for _ in range(count)], member.task.kind)
    for place, each in enumerate(model.members):
        if folder is not None:
            one = RunFolder(folder.member(place))
            each.load_state_dict(load_weights(one, member_config(config, place), None).state_dict())
        for tensor in each.state_dict().values():
            tensor.copy_(rank.comm.broadcast(tensor, label="weights"))
    return EnsembleProcedure(model, member, rank)


def with_members(metrics: dict[str, Any], members: Sequence[Run]) -> dict[str, Any]:
    """Add the scores of the members to the metrics of their ensemble, and their time, traffic and cost."""
    of = [member.metrics for member in members]
    figures = ("run", "seed", "epochs", "best_epoch", "val_score", "test_score")
    found = metrics | {"members": [{key: each[key] for key in figures} for each in of]}
    for split in ("val", "test"):
        scores = [each[f"{split}_score"] for each in of if each[f"{split}_score"] is not None]
        found[f"members_{split}_score"] = statistics.mean(scores) if scores else None
    for key in _ADDED:
        if all(key in each for each in of):
            found[key] = metrics.get(key, 0) + sum(each[key] for each in of)
    labels = {label for each in [metrics, *of] for label in each["bytes_by_label"]}
    found["bytes_by_label"] = {
        label: sum(each["bytes_by_label"].get(label, 0) for each in [metrics, *of])
        for label in sorted(labels)
    }
    found["peak_rss_bytes"] = max(each["peak_rss_bytes"] for each in [metrics, *of])
    found["epoch_seconds"] = statistics.median(each["epoch_seconds"] for each in of)
    if "dollars" in found:
        found["value"] = value(found["seconds"], found["dollars"])
    return found
