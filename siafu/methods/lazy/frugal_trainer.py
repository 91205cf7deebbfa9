"""The frugal recipe as a training procedure. What it tries, one after another, are its stages."""

import time
from typing import Any

import torch
from torch import Tensor

from siafu.comm.config import CommConfig
from siafu.graph import Block
from siafu.methods.lazy.bytes_sent import message_bytes, parameter_bytes
from siafu.methods.lazy.frugal import Frugal, FrugalConfig, Tried, train_frugal
from siafu.nn.aggregate import widened
from siafu.nn.propagated import Propagated
from siafu.nn.streamed import Rows
from siafu.partition.cut import Part
from siafu.training.config import TrainConfig
from siafu.training.full import FullTrainer, Watch
from siafu.training.task import Task


class FrugalTrainer(FullTrainer):
    """Fits the frugal recipe on one rank's part; each thing it tries counts as an epoch.

    There is no checkpoint: it takes seconds, and a run that was killed begins anew and ends with the same bytes.
    """

    model: Propagated

    def __init__(
        self,
        part: Part,
        block: Block,
        x_own: Rows,
        task: Task,
        config: TrainConfig,
        *,
        seed: int,
        wire: CommConfig,
        features: bool = True,
    ) -> None:
        nothing = no_scores(x_own.shape[1], task.num_outputs)
        super().__init__(nothing, block, widened(x_own), task, config, seed=seed, wire=wire)
        self._route = part.route
        self._recipe = FrugalConfig() if features else FrugalConfig(hops=0)
        self._out: Tensor | None = None

    @property
    def stage(self) -> int:
        """Which of what was tried answers, from 1."""
        return self.done.best_epoch

    def outputs(self) -> Tensor:
        """What the best that was tried says of every row here."""
        assert self._out is not None
        return self._out

    def bytes_by_stage(self) -> list[dict[str, Any]]:
        """What was tried, how good it was and what it sent."""
        return self.done.stages

    def _train(self, watch: Watch) -> str:
        done, begun = self.done, time.monotonic()
        found = self._fit(self._recipe)
        self.model, self.block, self._out = found.model, found.block, found.out
        done.stages = [self._told(number, tried) for number, tried in enumerate(found.tried, 1)]
        scores = [tried.score for tried in found.tried]
        done.epoch, done.best_score = len(scores), scores[found.chosen]
        done.best_epoch = found.chosen + 1
        done.seconds = time.monotonic() - begun
        for stage in done.stages:
            watch.events.write("stage", epoch=stage["stage"], **stage)
            watch.say(stage["text"])
        watch.events.write("stop", epoch=done.epoch, reason="done")
        return "done"

    def _fit(self, config: FrugalConfig) -> Frugal:
        return train_frugal(self.comm, self.block, self._route, self.x_src, self.task, config)

    def _told(self, number: int, tried: Tried) -> dict[str, Any]:
        """One thing that was tried, with what all ranks sent for it. Collective."""
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


def no_scores(in_features: int, out_features: int) -> Propagated:
    """The model before anything is fitted."""
    return Propagated({0: torch.zeros(in_features, out_features)}, torch.zeros(out_features))
