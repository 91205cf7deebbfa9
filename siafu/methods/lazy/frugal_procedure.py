"""The frugal recipe as a procedure. Its candidates, fitted one after another, are reported as stages."""

from typing import Any

import torch
from torch import Tensor

from siafu.context import Context
from siafu.methods.lazy.frugal import CandidateReport, FrugalConfig, FrugalResult, train_frugal
from siafu.methods.lazy.traffic import message_bytes, parameter_bytes
from siafu.nn.aggregates import widened
from siafu.nn.propagated import Propagated
from siafu.nn.streamed import DenseRows
from siafu.partition.cut import Part
from siafu.training.byte_counter import ByteCounter
from siafu.training.procedure import Monitor, Procedure
from siafu.training.task import Task


class FrugalProcedure(Procedure):
    """Fits the frugal recipe on one rank's part, in closed form: there are no epochs.

    It writes no checkpoint: fitting takes seconds, and a killed run starts again and ends with the same bytes.
    """

    num_stages = 0
    model: Propagated

    def __init__(
        self, part: Part, context: Context, x_own: DenseRows, task: Task, *, seed: int, features: bool = True
    ) -> None:
        self.model = unfitted_model(x_own.shape[1], task.num_outputs)
        self.x_src, self.in_features = widened(x_own), x_own.shape[1]
        self.task, self.comm, self.seed = task, task.comm, seed
        self.context = context.with_static(self.x_src)
        self.sent = ByteCounter(task.comm)
        self._route = part.route
        self._recipe = FrugalConfig() if features else FrugalConfig(hops=0)
        self._out: Tensor | None = None

    def begin(self, monitor: Monitor, *, epoch: int) -> None:
        """Fit every candidate; the best one is the model."""
        found = self._fit(self._recipe)
        self.model, self.context, self._out = found.model, found.context, found.out
        self._chosen = found.chosen
        self._stages = [self._describe(number, tried) for number, tried in enumerate(found.tried, 1)]
        for stage in self._stages:
            monitor.events.write("stage", epoch=stage["stage"], **stage)
            monitor.callbacks.say(stage["text"])

    def outputs(self) -> Tensor:
        """The outputs of the best candidate for every row here."""
        assert self._out is not None
        return self._out

    def metrics(self, seconds: float) -> dict[str, Any]:
        """The chosen candidate, from 1, and the score and traffic of each."""
        sent = self.sent.by_label
        counts = {"message_bytes": message_bytes(sent), "parameter_bytes": parameter_bytes(sent)}
        chosen = self._chosen + 1
        tried = {"epochs": len(self._stages), "best_epoch": chosen}
        return {**counts, **tried, "stage": chosen, "stages": self._stages}

    def _fit(self, config: FrugalConfig) -> FrugalResult:
        return train_frugal(self.comm, self.context, self._route, self.x_src, self.task, config)

    def _describe(self, number: int, tried: CandidateReport) -> dict[str, Any]:
        """Describe one candidate, with the traffic of all ranks. Collective."""
        here = torch.tensor([message_bytes(tried.sent), parameter_bytes(tried.sent)])
        messages, parameters = self.comm.all_reduce(here, label="control").tolist()
        return {
            "stage": number,
            "text": f"{tried.name}: validation {tried.score:.4f}",
            "sends": "rows" if messages else "nothing",
            "fits": tried.name,
            "val_score": tried.score,
            "message_bytes": messages,
            "parameter_bytes": parameters,
        }


def unfitted_model(in_features: int, out_features: int) -> Propagated:
    """Build the model before fitting, with zero weights."""
    return Propagated({0: torch.zeros(in_features, out_features)}, torch.zeros(out_features))
