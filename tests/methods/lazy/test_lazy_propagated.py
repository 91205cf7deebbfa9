"""The model of hop features and smoothing against dense matrices."""

from pathlib import Path

import pytest
import torch
from lazy_parts import dense_s
from ranked import graph_of
from torch import Tensor

from siafu.comm.quantization import quantize_dequantize
from siafu.graph import Graph
from siafu.nn.propagated import Propagated
from siafu.store.tensors import load_tensors, save_tensors

DRAW = torch.Generator().manual_seed(3)
WEIGHT = torch.randn(3, 9, 4, generator=DRAW, dtype=torch.float64)
BIAS = torch.randn(4, generator=DRAW, dtype=torch.float64)


def unit_rows(graph: Graph) -> Tensor:
    assert graph.x is not None
    return graph.x / graph.x.square().sum(1, keepdim=True).sqrt().clamp(min=1e-30)


def model_of(hops: list[int], rounds: int, **form: object) -> Propagated:
    weights = {hop: WEIGHT[hop] for hop in hops}
    return Propagated(weights, BIAS, temperature=0.7, rounds=rounds, share=0.2, **form)  # type: ignore[arg-type]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("hops", "rounds"), [([0], 0), ([0, 2], 0), ([1], 3), ([0, 1, 2], 2)])
def test_the_model_equals_its_equation(hops: list[int], rounds: int, weighted: bool) -> None:
    graph = graph_of(weighted=weighted)
    s, x = dense_s(graph), unit_rows(graph)
    z = sum((torch.linalg.matrix_power(s, hop) @ x @ WEIGHT[hop] for hop in hops), torch.zeros(60, 4)) + BIAS
    wanted = p = (0.7 * z).softmax(1)
    for _ in range(rounds):
        wanted = 0.8 * s @ wanted + 0.2 * p
    out = model_of(hops, rounds)(graph.block, graph.x)
    torch.testing.assert_close(out, wanted.log() if rounds else 0.7 * z, rtol=1e-6, atol=1e-6)


def test_rows_are_rounded_before_propagation() -> None:
    graph = graph_of()
    s, x = dense_s(graph), unit_rows(graph)
    p = (0.7 * (s @ quantize_dequantize(x @ WEIGHT[1], "int8") + BIAS)).softmax(1)
    wanted = 0.8 * s @ quantize_dequantize(p, "int4") + 0.2 * p
    out = model_of([1], 1, scores="int8", probabilities="int4")(graph.block, graph.x)
    torch.testing.assert_close(out, wanted.log(), rtol=1e-6, atol=1e-6)


def test_a_saved_model_gives_the_same_output_bit_for_bit(tmp_path: Path) -> None:
    graph = graph_of()
    assert graph.x is not None
    model = model_of([0, 2], 3, scores="int8", probabilities="int4")
    save_tensors(tmp_path / "model.safetensors", model.state_dict(), {})
    state, _ = load_tensors(tmp_path / "model.safetensors")
    again = Propagated.of_state(state)
    assert torch.equal(again(graph.block, graph.x), model(graph.block, graph.x))
    with pytest.raises(ValueError, match=r"found \['bias'\]; expected the tensors"):
        Propagated.of_state({"bias": BIAS})


def test_the_model_predicts_unseen_nodes() -> None:
    graph, model = graph_of(), model_of([0, 2], 2)
    other = graph.reordered(torch.arange(59, -1, -1))
    assert graph.x is not None
    assert other.x is not None
    here: Tensor = model(graph.block, graph.x)
    torch.testing.assert_close(model(other.block, other.x).flip(0), here)
