"""Quantized all-reduce: the same bits on all ranks, and errors that do not accumulate."""

import pytest
import torch
from torch import Tensor

from siafu.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantized_all_reduce import QuantizedAllReduce
from siafu.launch.local import run_threads

SIZE = 1000  # no multiple of a row


def values_of(rank: int, step: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(100 * rank + step))


def sums(precision: Precision, ranks: int, steps: int) -> list[list[Tensor]]:
    """Return the sums of each rank in each step."""

    def rank(comm: Comm) -> list[Tensor]:
        adding = QuantizedAllReduce(comm, precision)
        return [adding.all_reduce(values_of(comm.rank, step), label="sum") for step in range(steps)]

    return run_threads(rank, ranks=ranks, threads=1)


@pytest.mark.parametrize(
    ("precision", "off"), [("fp32", 1e-5), ("bf16", 0.05), ("int8", 0.12), ("int4", 2.2)]
)
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_sums_are_the_same_everywhere_and_errors_do_not_add_up(
    precision: Precision, off: float, ranks: int
) -> None:
    steps = 20
    found = sums(precision, ranks, steps)
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))
    wanted = [sum(values_of(rank, step) for rank in range(ranks)) for step in range(steps)]
    for one, right in zip(found[0], wanted, strict=True):
        torch.testing.assert_close(one, right, rtol=0, atol=off * ranks)
    torch.testing.assert_close(sum(found[0]), sum(wanted), rtol=0, atol=off * ranks)


def test_a_quantized_all_reduce_resumes_from_its_state() -> None:
    def rank(comm: Comm) -> bool:
        one, other = QuantizedAllReduce(comm, "int8"), QuantizedAllReduce(comm, "int8")
        one.all_reduce(values_of(comm.rank, 0), label="sum")
        other.load_state(one.state())
        later = [each.all_reduce(values_of(comm.rank, 1), label="sum") for each in (one, other)]
        return torch.equal(*later)

    assert all(run_threads(rank, ranks=2, threads=1))


def test_fewer_bytes_are_sent() -> None:
    def rank(comm: Comm) -> dict[str, int]:
        for precision in ("fp32", "bf16", "int8", "int4"):
            QuantizedAllReduce(comm, precision).all_reduce(torch.randn(100_000), label=precision)
        return comm.meter.sent

    sent = run_threads(rank, ranks=2, threads=1)[0]
    assert sent["bf16"] < 0.52 * sent["fp32"]
    assert sent["int8"] < 0.27 * sent["fp32"]
    assert sent["int4"] < 0.14 * sent["fp32"]


def test_without_error_feedback_calls_are_independent_and_of_any_size() -> None:
    def rank(comm: Comm) -> list[Tensor]:
        adding = QuantizedAllReduce(comm, "int8", width=64, error_feedback=False)
        values = values_of(comm.rank, 0)
        return [adding.all_reduce(some, label="sum") for some in (values, values, values[:10])]

    for first, again, few in run_threads(rank, ranks=3, threads=1):
        wanted = sum(values_of(rank, 0) for rank in range(3))
        assert torch.equal(first, again)
        torch.testing.assert_close(first, wanted, rtol=0, atol=0.1)
        torch.testing.assert_close(few, wanted[:10], rtol=0, atol=0.1)
