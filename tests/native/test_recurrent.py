"""The compiled LSTM against plain torch: outputs, states and gradients."""

import pytest
import torch
from torch import Tensor

from siafu import native
from siafu.native import LstmInputs, Term, recurrent_reference

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not native.compiled(), reason="the core was not compiled"),
]
STEPS = 5
SIZES = pytest.mark.parametrize(
    ("rows", "hidden"), [(1, 1), (7, 3), (50, 16), (101, 20)], ids=["one", "few", "whole-tiles", "odd"]
)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def given(rows: int, hidden: int, *, same: bool, masked: bool) -> LstmInputs:
    present = random(STEPS, rows, seed=9) > -0.5 if masked else None
    second = (rows, 4) if same else (STEPS, rows, 4)
    inputs = [
        Term(random(STEPS, rows, 5, seed=0), random(5, 4 * hidden, seed=1)),
        Term(random(*second, seed=2), random(4, 4 * hidden, seed=3)),
    ]
    weight, bias = random(hidden, 4 * hidden, seed=4) / hidden**0.5, random(4 * hidden, seed=5)
    state = random(rows, hidden, seed=6), random(rows, hidden, seed=7)
    return LstmInputs(inputs, weight, bias, present, state, STEPS)


def wide(lstm: LstmInputs) -> LstmInputs:
    """The same in double precision."""
    h, c = lstm.before
    return LstmInputs(
        [Term(x.double(), weight.double()) for x, weight in lstm.inputs],
        lstm.weight_h.double(),
        lstm.bias.double(),
        lstm.present,
        (h.double(), c.double()),
        STEPS,
    )


def near(one: Tensor | None, other: Tensor | None) -> None:
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=2e-5)


@SIZES
@pytest.mark.parametrize("same", [False, True], ids=["by-step", "the-same"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "some"])
@pytest.mark.parametrize("keep", [False, True], ids=["computed-again", "kept"])
@pytest.mark.parametrize("over", [False, True], ids=["beside", "over"])
def test_the_compiled_lstm_gives_what_plain_torch_gives(
    rows: int, hidden: int, same: bool, masked: bool, keep: bool, over: bool
) -> None:
    lstm = given(rows, hidden, same=same, masked=masked)
    out, after, gates = native.lstm(lstm, keep=keep)
    expected, expected_after = recurrent_reference.lstm(wide(lstm))
    near(out, expected)
    assert after is not None
    for one, other in zip(after, expected_after, strict=True):
        near(one, other)
    without = native.lstm(lstm, keep=keep, ends=False)
    assert without.after is None
    assert torch.equal(without.out, out)
    grad, of_h, of_c = (
        random(*out.shape, seed=11),
        random(rows, hidden, seed=12),
        random(rows, hidden, seed=13),
    )
    expected_grads = recurrent_reference.lstm_backward(
        wide(lstm), grad.double(), (of_h.double(), of_c.double()), wants=[True, True]
    )
    found = native.lstm_backward(
        lstm, grad, (of_h, of_c), gates=gates, wants=[True, True], apart=over, over=over
    )
    for one, other in zip(found, expected_grads, strict=True):
        near(one, other)


def test_gradients_that_nobody_asks_for_are_left_out() -> None:
    lstm = given(7, 3, same=False, masked=False)
    grad = random(STEPS, 7, 3, seed=11)
    found = native.lstm_backward(lstm, grad, (None, None), gates=None, wants=[True, False])
    expected = recurrent_reference.lstm_backward(wide(lstm), grad.double(), (None, None), wants=[True, False])
    assert found[2] is None
    assert expected[2] is None
    for one, other in zip(found[:2] + found[3:], expected[:2] + expected[3:], strict=True):
        near(one, other)


def test_gradients_of_inputs_come_in_the_memory_of_the_gates_where_they_fit() -> None:
    lstm = given(7, 2, same=False, masked=False)  # 8 gates a row, inputs 5 and 4 wide
    _, _, gates = native.lstm(lstm, keep=True)
    assert gates is not None
    grad = random(STEPS, 7, 2, seed=11)
    first, _, second, *_ = native.lstm_backward(
        lstm, grad, (None, None), gates=gates, wants=[True, True], apart=True
    )
    assert first is not None
    assert second is not None
    assert first.untyped_storage().data_ptr() == gates.untyped_storage().data_ptr()
    assert second.untyped_storage().data_ptr() != gates.untyped_storage().data_ptr()


def test_threads_do_not_change_a_bit() -> None:
    lstm = given(3000, 8, same=True, masked=True)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        out, after, gates = native.lstm(lstm, keep=True)
        grads = native.lstm_backward(lstm, out, after, gates=gates, wants=[True, True])
        found.append([out, *after, *grads])
    torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_gates_far_from_zero_saturate_without_nan() -> None:
    lstm = given(7, 3, same=False, masked=False)
    lstm = lstm._replace(bias=torch.tensor([200.0, -200, 1e30, -1e30, 90, -90, 0, 1, 2, 3, 88, -88]))
    out, (h, c), gates = native.lstm(lstm, keep=True)
    expected, (h_wide, c_wide) = recurrent_reference.lstm(wide(lstm))
    for one, other in ((out, expected), (h, h_wide), (c, c_wide)):
        near(one, other)
    found = native.lstm_backward(lstm, out, (h, c), gates=gates, wants=[True, True])
    assert all(each is not None and each.isfinite().all() for each in found)
