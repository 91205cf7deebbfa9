"""The average of several models' outputs."""

import pytest
import torch
from torch import Tensor

from siafu.graph import Block
from siafu.nn import Gnn, ModelConfig
from siafu.nn.ensemble import Ensemble, averaged


def outputs_of(count: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [4 * torch.randn(9, 5, generator=draw) for _ in range(count)]


def test_probabilities_of_classes_are_averaged() -> None:
    outputs = outputs_of()
    wanted = torch.stack([out.softmax(1) for out in outputs]).mean(0)
    torch.testing.assert_close(averaged(outputs, "class").exp(), wanted)
    assert averaged(outputs, "class").argmax(1).tolist() != torch.stack(outputs).mean(0).argmax(1).tolist()


def test_probabilities_of_labels_are_averaged() -> None:
    outputs = outputs_of()
    wanted = torch.stack([out.sigmoid() for out in outputs]).mean(0)
    torch.testing.assert_close(averaged(outputs, "labels").sigmoid(), wanted)


def test_numbers_are_averaged() -> None:
    outputs = outputs_of()
    torch.testing.assert_close(averaged(iter(outputs), "regression"), torch.stack(outputs).mean(0))


@pytest.mark.parametrize("kind", ["class", "labels"])
def test_extreme_logits_give_finite_averages(kind: str) -> None:
    outputs = [torch.tensor([[1e4, -1e4]]), torch.tensor([[-1e4, 1e4]])]
    found = averaged(outputs, kind)
    probability = found.softmax(1) if kind == "class" else found.sigmoid()
    torch.testing.assert_close(probability, torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize("kind", ["class", "labels", "regression"])
def test_an_ensemble_is_a_model_that_averages_its_members(kind: str) -> None:
    block = Block(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2], dtype=torch.int32), 3)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    members = [Gnn(ModelConfig(hidden=4), in_features=4, out_features=2).eval() for _ in range(2)]
    for seed, member in enumerate(members):
        member.reset(torch.Generator().manual_seed(seed))
    model = Ensemble(members, kind)
    wanted = averaged([member(block, x) for member in members], kind)
    torch.testing.assert_close(model(block, x), wanted)
    other = Ensemble([Gnn(ModelConfig(hidden=4), in_features=4, out_features=2) for _ in range(2)])
    other.load_state_dict(model.state_dict())
    assert other.kind == kind, "the weights say what is averaged"
