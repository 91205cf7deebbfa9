"""Quantized rows come back within the error bound of their precision; error feedback."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from siafu.comm.config import CommConfig
from siafu.comm.quantization import ErrorFeedback, decode, encode, quantize_dequantize

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


@st.composite
def tables(draw: st.DrawFn) -> Tensor:
    rows, width = draw(st.integers(0, 5)), draw(st.integers(0, 7))
    dtype = draw(st.sampled_from(DTYPES))
    value = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)
    values = draw(st.lists(st.lists(value, min_size=width, max_size=width), min_size=rows, max_size=rows))
    return torch.tensor(values, dtype=torch.float32).reshape(rows, width).nan_to_num().to(dtype)


@given(tables())
def test_fp32_leaves_rows_alone(rows: Tensor) -> None:
    assert encode(rows, "fp32") is rows
    assert torch.equal(decode(encode(rows, "fp32"), "fp32", rows.shape[1], rows.dtype), rows)


@given(tables())
def test_bf16_rounds_to_nearest(rows: Tensor) -> None:
    wire = encode(rows, "bf16")
    assert wire.dtype == torch.bfloat16
    back = decode(wire, "bf16", rows.shape[1], rows.dtype)
    near = back.isfinite()  # what lies beyond bfloat16's largest value becomes infinite
    error = (back.double() - rows.double()).abs()[near]
    assert bool((error <= rows.double().abs()[near] * 2**-8 + 2**-133).all())


def test_bf16_rounds_ties_to_even() -> None:
    ties = torch.tensor([[1 + 2**-8, 1 + 3 * 2**-8]])
    assert decode(encode(ties, "bf16"), "bf16", 2, torch.float32).tolist() == [[1.0, 1 + 4 * 2**-8]]
    odd = torch.tensor([[float("nan"), float("inf")]])
    assert str(decode(encode(odd, "bf16"), "bf16", 2, torch.float32).tolist()) == "[[nan, inf]]"


@given(tables().filter(lambda rows: bool(rows.isfinite().all())))
def test_int8_is_within_half_a_level_of_each_row(rows: Tensor) -> None:
    wire = encode(rows, "int8")
    assert wire.dtype == torch.uint8
    assert wire.shape == (rows.shape[0], rows.shape[1] + 4)
    back = decode(wire, "int8", rows.shape[1], rows.dtype)
    assert back.dtype == rows.dtype
    if rows.numel():
        largest = rows.double().abs().amax(1, keepdim=True)
        rounding = 2**-7 * largest if rows.dtype == torch.bfloat16 else 1e-5 * largest
        assert bool(((back.double() - rows.double()).abs() <= 0.5 * largest / 127 + rounding + 1e-42).all())
    zero = (rows == 0).all(1)
    assert not bool(back[zero].any())


@settings(deadline=None)  # of time: the machine may be busy
@given(tables().filter(lambda rows: bool(rows.isfinite().all())))
def test_int4_is_within_half_a_level_of_each_row(rows: Tensor) -> None:
    wire = encode(rows, "int4")
    assert wire.dtype == torch.uint8
    assert wire.shape == (rows.shape[0], (rows.shape[1] + 1) // 2 + 2)
    back = decode(wire, "int4", rows.shape[1], rows.dtype)
    assert back.dtype == rows.dtype
    assert bool(back.isfinite().all())
    if rows.numel():
        largest = rows.double().abs().amax(1, keepdim=True)
        rounding = 2**-6 * largest if rows.dtype == torch.bfloat16 else 1e-5 * largest
        level = largest / 7 * (1 + 2**-7) + 2**-133  # what the scale may be, itself rounded
        assert bool(((back.double() - rows.double()).abs() <= 0.5 * level + rounding).all())
    zero = (rows == 0).all(1)
    assert not bool(back[zero].any())


def test_int4_puts_two_numbers_in_a_byte() -> None:
    wire = encode(torch.tensor([[7.0, -7.0, 1.0], [0.0, 0.0, 0.0]]), "int4")
    assert wire[0, :2].tolist() == [15 | 1 << 4, 9]
    assert decode(wire, "int4", 3, torch.float32).tolist() == [[7.0, -7.0, 1.0], [0.0, 0.0, 0.0]]


@settings(deadline=None)
@given(tables().filter(lambda rows: bool(rows.isfinite().all())), st.sampled_from(["int8", "int4"]))
def test_quantization_is_idempotent_in_float64(rows: Tensor, precision: Any) -> None:
    once = quantize_dequantize(rows.double(), precision)
    assert torch.equal(quantize_dequantize(once, precision), once)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_int8_and_int4_refuse_nan_infinity_and_integers(bad: float, precision: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"row 1 holds NaN, infinity or .* {precision} cannot carry; send fp32"
    ):
        encode(torch.tensor([[1.0, 2.0], [bad, 1.0]]), precision)
    with pytest.raises(ValueError, match=f"{precision} takes a table of floating-point rows"):
        encode(torch.ones(3, 2, dtype=torch.int64), precision)


def test_wire_rows_of_another_shape_or_dtype_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"rows of int8 came as torch.uint8 \(2, 5\); expected torch.uint8 \(rows, 6\)"
    ):
        decode(torch.zeros(2, 5, dtype=torch.uint8), "int8", 2, torch.float32)
    with pytest.raises(ValueError, match=r"rows of int4 came as .*; expected torch.uint8 \(rows, 4\)"):
        decode(torch.zeros(2, 5, dtype=torch.uint8), "int4", 3, torch.float32)
    with pytest.raises(ValueError, match="expected fp32, bf16, int8 or int4"):
        encode(torch.zeros(2, 2), "fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_error_feedback_keeps_the_sum_of_sent_rows_near_the_sum_of_exact_rows(precision: Any) -> None:
    feedback = ErrorFeedback(precision)
    draw = torch.Generator().manual_seed(0)
    rows = torch.rand(4, 6, generator=draw)
    meant, got, plain = torch.zeros(4, 6), torch.zeros(4, 6), torch.zeros(4, 6)
    for _ in range(200):
        meant += rows
        got += decode(feedback.encode(("layer", 1), rows), precision, 6, torch.float32)
        plain += decode(encode(rows, precision), precision, 6, torch.float32)
    one_rounding = {"bf16": 2**-8, "int8": 1 / 127, "int4": 1 / 7}[precision]
    assert float((got - meant).abs().max()) < 2 * one_rounding
    assert float((plain - meant).abs().max()) > 10 * one_rounding


def test_error_feedback_resumes_from_its_state() -> None:
    rows = torch.rand(3, 5, generator=torch.Generator().manual_seed(1))
    first, second = ErrorFeedback("int8"), ErrorFeedback("int8")
    first.encode("a", rows)
    second.load(first.state())
    assert torch.equal(first.encode("a", rows), second.encode("a", rows))
    assert list(first.state()) == ["a"]
    assert not torch.equal(first.encode("b", rows), first.encode("a", rows))
    with pytest.raises(ValueError, match=r"exchange a sends .* but sent .* before"):
        first.encode("a", rows[:2])
    assert ErrorFeedback("fp32").encode("a", rows) is rows


def test_settings_have_their_defaults_and_limits() -> None:
    assert CommConfig() == CommConfig(precision="fp32", narrow=True, deadline=30)
    with pytest.raises(ValueError, match="greater than 0"):
        CommConfig(deadline=0)
    with pytest.raises(ValueError, match="fp32"):
        CommConfig(precision="fp16")  # type: ignore[arg-type]
