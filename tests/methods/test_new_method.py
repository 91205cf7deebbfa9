"""A method that is not siafu's own: a class in the table is all it takes to train, resume and predict."""

from pathlib import Path

import pytest
import torch
from torch import nn

import siafu
from siafu.methods import METHODS, Method, RankContext
from siafu.methods.full.procedure import infer_whole
from siafu.methods.method import ConfigLike
from siafu.methods.static import build_static_model, static_inputs
from siafu.training.byte_counter import ByteCounter
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import Callbacks, EpochPosition, EpochStats, Procedure


class SignProcedure(Procedure):
    """Gradient descent by the signs of gradients, on the whole graph."""

    def __init__(self, rank: RankContext) -> None:
        _, block, self.x_src, self.task, self.model = static_inputs(rank)
        self.block, self.comm, self.in_features = (
            block.with_static(self.x_src),
            rank.comm,
            self.x_src.shape[1],
        )
        self.optimizer = DistributedOptimizer(self.model, rank.config.train, rank.comm)
        self.sent = ByteCounter(rank.comm)

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        self.optimizer.zero_grad()
        loss = self.task.training_loss(self.model(self.block, self.x_src), epochs.start)
        loss.backward()
        total = self.optimizer.add_gradients(loss.detach())
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.data -= 0.01 * parameter.grad.sign()
        return [EpochStats(total)]

    def outputs(self) -> torch.Tensor:
        return infer_whole(self.model, self.block, self.x_src, self.task)

    def metrics(self, seconds: float) -> dict[str, float]:
        return {"signs": 1.0}


class Sign(Method):
    """The method."""

    def build(self, rank: RankContext) -> SignProcedure:
        return SignProcedure(rank)

    def build_model(
        self, config: ConfigLike, *, in_features: int, out_features: int, num_nodes: int
    ) -> nn.Module:
        return build_static_model(
            config, in_features=in_features, out_features=out_features, num_nodes=num_nodes
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_method_is_a_class_and_a_line_in_the_table(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "sign", Sign())
    graph = siafu.load("karate")
    given = {"method": "sign", "epochs": 30, "ranks": ranks, "engine": "local", "dropout": 0.0}
    whole = siafu.train(graph, out=tmp_path / "whole", **given)
    assert whole.metrics["signs"] == 1.0
    assert whole.metrics["train_accuracy"] > 0.9
    left = iter([None] * 12 + ["enough"])
    stop = Callbacks(should_stop=lambda: next(left, None))
    siafu.train(graph, out=tmp_path / "cut", callbacks=stop, **given)
    resumed = siafu.resume(tmp_path / "cut", graph=graph)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)
    assert siafu.predict(tmp_path / "whole", graph)["output"].shape == (34, 4)
