"""The distributed communication of temporal models, its transpose and its partition of time, on ranks as threads."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siafu.comm import Comm
from siafu.launch.local import run_threads
from siafu.methods.snapshots import transpose
from siafu.methods.snapshots.distributed_comm import DistributedTemporalComm
from siafu.methods.snapshots.time_partition import SegmentPartition, even_lengths, partition_segments
from siafu.methods.snapshots.transpose import PendingRows
from siafu.nn.temporal.temporal_comm import ActivityMask

T = TypeVar("T")
NODES, WIDTH = 5, 3
pytestmark = pytest.mark.usefixtures("one_thread")


def cuts_of(steps: int, ranks: int, segments: int = 1) -> list[SegmentPartition]:
    costs = [1.0 + step % 3 for step in range(steps)]
    return partition_segments(costs, even_lengths(steps, segments), ranks=ranks, num_nodes=NODES, start=4)


def rows_of(steps: int, width: int = WIDTH) -> Tensor:
    return torch.randn(steps, NODES, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def on_ranks(ranks: int, work: Callable[[Comm], T]) -> list[T]:
    return run_threads(work, ranks=ranks, threads=1)


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 9),
)
def test_every_step_and_every_node_has_one_owner(
    costs: list[float], ranks: int, segments: int, num_nodes: int
) -> None:
    lengths = even_lengths(len(costs), segments)
    cuts = partition_segments(costs, lengths, ranks=ranks, num_nodes=num_nodes, start=7)
    owned = [step for cut in cuts for rank in range(ranks) for step in cut.steps_of(rank)]
    assert owned == list(range(7, 7 + len(costs)))
    for cut in cuts:
        nodes = [node for rank in range(ranks) for node in range(num_nodes)[cut.nodes_of(rank)]]
        assert nodes == list(range(num_nodes))
        if sum(cut.num_steps) >= ranks:
            assert min(cut.num_steps) >= 1


def test_ranks_are_balanced_by_cost() -> None:
    (cut,) = partition_segments([8.0, 1, 1, 1, 1, 4], [6], ranks=2, num_nodes=1)
    assert cut.num_steps == (1, 5)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("steps", [2, 7])
@pytest.mark.parametrize("rows", [1, 1 << 13])
def test_rows_are_transposed_to_node_major_and_back(
    monkeypatch: pytest.MonkeyPatch, ranks: int, steps: int, rows: int
) -> None:
    monkeypatch.setattr(transpose, "_MIN_ROWS", rows)
    x, weight, (cut,) = rows_of(steps), rows_of(steps), cuts_of(steps, ranks)

    def transposed(comm: Comm) -> int:
        temporal_comm = DistributedTemporalComm(comm, [cut])
        mine = x[temporal_comm.own_steps].clone().requires_grad_()

        def double(chunk: int, by_node: Tensor) -> Tensor:
            assert torch.equal(by_node, x[:, temporal_comm.own_nodes][:, temporal_comm.node_chunks[chunk]])
            return by_node * 2

        back = temporal_comm.apply_node_major(mine, double)
        assert torch.equal(back, 2 * x[temporal_comm.own_steps])
        (back * weight[temporal_comm.own_steps]).sum().backward()
        assert torch.equal(mine.grad, 2 * weight[temporal_comm.own_steps])
        return len(temporal_comm.node_chunks)

    assert on_ranks(ranks, transposed) == [2 if ranks == 2 and rows == 1 else 1] * ranks


def test_chunks_are_worked_on_while_others_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transpose, "_MIN_ROWS", 1)
    (cut,) = partition_segments([1.0] * 4, [4], ranks=2, num_nodes=6)
    x = torch.randn(4, 6, WIDTH)

    def logged(comm: Comm) -> list[str]:
        temporal_comm, log = DistributedTemporalComm(comm, [cut]), []
        start = temporal_comm.start

        def noted(*given: Any, back: bool) -> PendingRows:
            number = sum(line.startswith("leave") for line in log)
            log.append(f"leave {number}")
            arrival = start(*given, back=back)

            def arrived() -> Tensor:
                log.append(f"come {number}")
                return arrival()

            return arrived

        monkeypatch.setattr(temporal_comm, "start", noted)
        mine = x[temporal_comm.own_steps].clone().requires_grad_()
        temporal_comm.apply_node_major(
            mine, lambda chunk, rows: Worked.apply(rows, chunk, log)
        ).sum().backward()
        return log

    there, back = on_ranks(2, logged)
    assert there == back
    forward = ["leave 0", "leave 1", "leave 2", "come 0", "work 0", "leave 3", "come 1", "work 1", "leave 4"]
    forward += ["come 2", "work 2", "leave 5", "come 3", "come 4", "come 5"]
    backward = ["leave 6", "leave 7", "leave 8", "come 8", "work back 2", "leave 9", "come 7", "work back 1"]
    backward += ["leave 10", "come 6", "work back 0", "leave 11", "come 11", "come 10", "come 9"]
    assert there == forward + backward


class Worked(torch.autograd.Function):
    """The identity, which logs its forward and backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, chunk: int, log: list[str]) -> Tensor:
        ctx.chunk, ctx.log = chunk, log
        log.append(f"work {chunk}")
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.log.append(f"work back {ctx.chunk}")
        return grads[0], None, None


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("count", [1, 4])
def test_the_temporal_halo_comes_from_the_owners_of_the_steps(ranks: int, segments: int, count: int) -> None:
    steps = 8
    x, weight, cuts = rows_of(steps), rows_of(steps + 1)[1:], cuts_of(steps, ranks, segments)
    expected = x.clone().requires_grad_()
    first = cuts[0].start

    def read(comm: Comm) -> Tensor:
        temporal_comm = DistributedTemporalComm(comm, cuts)
        own = x.clone().requires_grad_()
        kept, total = own.new_zeros(0, NODES, WIDTH), own.new_zeros(())
        for number, cut in enumerate(cuts):
            temporal_comm.begin_segment(number, "once")
            mine = [step - first for step in cut.steps_of(comm.rank)]
            before, kept = temporal_comm.temporal_halo(own[mine], kept, count=count)
            total = total + 0 * before.sum()  # every rank takes part in every exchange of gradients
            if mine:
                wanted = list(range(max(0, mine[0] - count), mine[0]))
                assert torch.equal(before, x[wanted])
                total = total + (before * weight[wanted]).sum() * (1 + comm.rank)
            else:
                assert not before.shape[0]
        (total + 0 * kept.sum()).backward()
        return own.grad

    for rank in range(ranks):
        for cut in cuts:
            mine = [step - first for step in cut.steps_of(rank)]
            if mine:
                wanted = list(range(max(0, mine[0] - count), mine[0]))
                (expected[wanted] * weight[wanted]).sum().mul(1 + rank).backward()
    found = sum(on_ranks(ranks, read))
    assert torch.allclose(found, expected.grad if expected.grad is not None else torch.zeros_like(found))


@pytest.mark.parametrize("ranks", [1, 3])
def test_steps_are_all_gathered(ranks: int) -> None:
    x, (cut,) = rows_of(7), cuts_of(7, ranks)

    def gathered(comm: Comm) -> None:
        temporal_comm = DistributedTemporalComm(comm, [cut])
        mine = x[temporal_comm.own_steps].clone().requires_grad_()
        rows = temporal_comm.all_gather_steps(mine)
        assert torch.equal(rows, x)
        (rows * x).sum().backward()
        assert torch.allclose(mine.grad, ranks * x[temporal_comm.own_steps])

    on_ranks(ranks, gathered)


def identity(chunk: int, rows: Tensor) -> Tensor:
    return rows


@pytest.mark.parametrize("rows", [1, 1 << 13])
def test_a_recomputed_segment_sends_nothing_forward(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(transpose, "_MIN_ROWS", rows)
    x, cuts = rows_of(6), cuts_of(6, 2, segments=2)

    def again(comm: Comm) -> None:
        temporal_comm = DistributedTemporalComm(comm, cuts)
        first = {}
        for number, cut in enumerate(cuts):
            temporal_comm.begin_segment(number, "once" if cut is cuts[-1] else "forward")
            with torch.no_grad():
                first[number] = temporal_comm.apply_node_major(
                    x[[s - 4 for s in cut.steps_of(comm.rank)]], identity
                )
        sent = comm.meter.sent.get("rows", 0)
        for number, cut in reversed(list(enumerate(cuts[:-1]))):  # the last is not recomputed
            temporal_comm.begin_segment(number, "recompute")
            mine = x[[s - 4 for s in cut.steps_of(comm.rank)]].requires_grad_()
            out = temporal_comm.apply_node_major(mine, identity)
            assert torch.equal(out, first[number])
            out.sum().backward()
            assert torch.equal(mine.grad, torch.ones_like(mine))
        assert comm.meter.sent.get("rows", 0) == sent
        assert comm.meter.sent["rows gradients"]

    on_ranks(2, again)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_volume_of_a_transpose_does_not_grow_with_the_number_of_ranks(ranks: int) -> None:
    (cut,) = partition_segments([1.0] * 8, [8], ranks=ranks, num_nodes=8)
    x = torch.randn(8, 8, WIDTH)

    def sent(comm: Comm) -> list[int]:
        counts = []
        for precision in ("fp32", "bf16"):
            before = comm.meter.total()
            temporal_comm = DistributedTemporalComm(comm, [cut], precision=precision)
            temporal_comm.apply_node_major(x[temporal_comm.own_steps], identity)
            counts.append(comm.meter.total() - before)
        return counts

    exact, half = map(sum, zip(*on_ranks(ranks, sent), strict=True))
    rows = 2 * 8 * 8 * (ranks - 1) / ranks  # there and back
    headers = 2 * ranks * (ranks - 1) * 200
    assert rows * WIDTH * 4 <= exact <= rows * WIDTH * 4 + headers
    assert rows * WIDTH * 2 <= half <= rows * WIDTH * 2 + headers


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_linear_recurrence_is_scanned_over_ranks(ranks: int) -> None:
    steps = 7
    (cut,), decay, gain, begin = cuts_of(steps, ranks), rows_of(steps), rows_of(steps + 1)[1:], rows_of(1)[0]
    state = begin.clone().requires_grad_()
    total, h = state.new_zeros(()), state
    for a, b in zip(decay, gain, strict=True):
        h = a * h + b
        total = total + h.sin().sum()
    (total + h.sum()).backward()

    def carried(comm: Comm) -> Tensor:
        temporal_comm = DistributedTemporalComm(comm, [cut])
        mine = begin.clone().requires_grad_()
        own = list(zip(decay[temporal_comm.own_steps], gain[temporal_comm.own_steps], strict=True))

        def compose_affine() -> tuple[Tensor, Tensor]:
            a, b = torch.ones_like(begin), torch.zeros_like(begin)
            for decay_t, gain_t in own:
                a, b = decay_t * a, decay_t * b + gain_t
            return a, b

        here, loss = temporal_comm.scan_state_before(mine, compose_affine), mine.new_zeros(())
        for decay_t, gain_t in own:
            here = decay_t * here + gain_t
            loss = loss + here.sin().sum()
        after = temporal_comm.broadcast_final_state(here)
        assert torch.allclose(after, h)
        (loss + after.sum() / comm.world_size).backward()
        assert mine.grad is not None
        return mine.grad

    assert torch.allclose(sum(on_ranks(ranks, carried)), state.grad)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 1 << 13])
def test_rows_of_inactive_nodes_are_not_sent_and_arrive_as_zeros(
    monkeypatch: pytest.MonkeyPatch, ranks: int, rows: int
) -> None:
    monkeypatch.setattr(transpose, "_MIN_ROWS", rows)
    steps = 6
    x, weight, (cut,) = rows_of(steps), rows_of(steps + 1)[1:], cuts_of(steps, ranks)
    mark = torch.rand(steps, NODES, generator=torch.Generator().manual_seed(2)) < 0.4
    kept = mark[..., None] if ranks > 1 else torch.ones(1)

    def transposed(comm: Comm) -> int:
        temporal_comm = DistributedTemporalComm(comm, [cut])
        mask_of_rank = ActivityMask(mark[temporal_comm.own_steps], mark[:, temporal_comm.own_nodes])
        mine = x[temporal_comm.own_steps].clone().requires_grad_()

        def double(chunk: int, by_node: Tensor) -> Tensor:
            assert torch.equal(
                by_node, (x * kept)[:, temporal_comm.own_nodes][:, temporal_comm.node_chunks[chunk]]
            )
            return by_node * 2

        back = temporal_comm.apply_node_major(mine, double, send_mask=mask_of_rank, return_mask=mask_of_rank)
        assert torch.equal(back, 2 * (x * kept)[temporal_comm.own_steps])
        (back * weight[temporal_comm.own_steps]).sum().backward()
        assert torch.equal(mine.grad, 2 * (weight * kept)[temporal_comm.own_steps])
        return comm.meter.sent.get("rows", 0)

    sent, headers = sum(on_ranks(ranks, transposed)), 4 * ranks * (ranks - 1) * 200
    assert sent <= 2 * int(mark.sum()) * WIDTH * 8 + headers
