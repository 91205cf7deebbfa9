"""Contract of Comm, over every transport."""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from groups import LONG_S, run_mesh, run_processes, run_threads
from torch import Tensor

from siafu.comm import CollectiveMismatch, Comm, single_rank_comm
from siafu.comm.tensor_bytes import DTYPES

Run = Callable[..., list[Any]]
every_transport = pytest.mark.parametrize("run", [run_threads, run_mesh])
processes_too = pytest.mark.parametrize("run", [run_threads, run_mesh, run_processes])
sizes = pytest.mark.parametrize("world_size", [1, 2, 3, 5])


def rows_of(rank: int, *, rows: int, width: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    values = torch.randn(rows, width, generator=torch.Generator().manual_seed(rank)) * 50
    return values.to(dtype)


def counts(world_size: int) -> list[list[int]]:
    """``counts[a][b]`` rows go from rank a to rank b; some pairs have none, so has the last rank."""
    last = world_size - 1
    return [[0 if a == last else (a * 7 + b * 3) % 5 for b in range(world_size)] for a in range(world_size)]


def deal(comm: Comm, dtype: torch.dtype) -> Tensor:
    table = counts(comm.world_size)
    send, recv = table[comm.rank], [row[comm.rank] for row in table]
    return comm.all_to_all(rows_of(comm.rank, rows=sum(send), dtype=dtype), send, recv, label="deal")


def dealt(world_size: int, rank: int, dtype: torch.dtype) -> Tensor:
    table = counts(world_size)
    given = [rows_of(a, rows=sum(table[a]), dtype=dtype).split(table[a]) for a in range(world_size)]
    return torch.cat([parts[rank] for parts in given])


@processes_too
@sizes
def test_all_to_all_returns_rows_in_rank_order(run: Run, world_size: int, tmp_path: Path) -> None:
    results = run(deal, torch.float32, world_size=world_size, tmp_path=tmp_path)
    for rank, got in enumerate(results):
        assert torch.equal(got, dealt(world_size, rank, torch.float32))


def exchange_all_dtypes(comm: Comm) -> None:
    for dtype in DTYPES:
        assert torch.equal(deal(comm, dtype), dealt(comm.world_size, comm.rank, dtype))
        gathered = comm.all_gather(rows_of(comm.rank, rows=comm.rank, dtype=dtype), label="gather")
        for rank, got in enumerate(gathered):
            assert torch.equal(got, rows_of(rank, rows=rank, dtype=dtype))
        given = rows_of(9, rows=4, dtype=dtype) if comm.rank == 1 else None
        assert torch.equal(comm.broadcast(given, root=1, label="broadcast"), rows_of(9, rows=4, dtype=dtype))


@processes_too
def test_collectives_carry_all_dtypes(run: Run, tmp_path: Path) -> None:
    run(exchange_all_dtypes, world_size=3, tmp_path=tmp_path)


def exchange_shapes(comm: Comm) -> None:
    for shape in [(), (0,), (0, 5), (5, 0), (2, 0, 3), (1,) * 10, (2, 3, 4, 5)]:
        values = torch.full(shape, float(comm.rank))
        for rank, got in enumerate(comm.all_gather(values, label="shapes")):
            assert got.shape == shape
            assert torch.equal(got, torch.full(shape, float(rank)))
        assert comm.all_reduce(values, label="shapes").shape == shape
    turned = torch.arange(12.0).reshape(3, 4).T  # not contiguous
    assert torch.equal(comm.broadcast(turned, label="turned"), torch.arange(12.0).reshape(3, 4).T)


@every_transport
def test_collectives_carry_any_shape(run: Run) -> None:
    run(exchange_shapes, world_size=2)


def reduce_sizes(comm: Comm, dtype: torch.dtype) -> list[Tensor]:
    sums = []
    for size in (0, 1, 2, 7, 1000, 20_011):
        values = rows_of(comm.rank, rows=size, width=1, dtype=dtype)
        sums.append(comm.all_reduce(values, label=f"sum of {size}"))
        assert torch.equal(values, rows_of(comm.rank, rows=size, width=1, dtype=dtype))
    return sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_all_reduce_adds_in_rank_order_on_every_rank_and_transport(
    dtype: torch.dtype, world_size: int
) -> None:
    by_transport = [run(reduce_sizes, dtype, world_size=world_size) for run in (run_threads, run_mesh)]
    for place, size in enumerate((0, 1, 2, 7, 1000, 20_011)):
        want = rows_of(0, rows=size, width=1, dtype=dtype)
        for rank in range(1, world_size):
            want = want + rows_of(rank, rows=size, width=1, dtype=dtype)
        for results in by_transport:
            for sums in results:
                assert torch.equal(sums[place], want)


def test_all_reduce_over_processes_has_the_same_bits_as_over_threads(tmp_path: Path) -> None:
    threads = run_threads(reduce_sizes, torch.float32, world_size=3)
    processes = run_processes(reduce_sizes, torch.float32, world_size=3, tmp_path=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(threads[0], processes[2], strict=True))


def share_text(comm: Comm) -> str:
    comm.barrier(label="start")
    return comm.broadcast_text("gëtt it ✓" if comm.rank == 2 else None, root=2, label="text")


@every_transport
def test_text_is_broadcast(run: Run) -> None:
    assert run(share_text, world_size=3) == ["gëtt it ✓"] * 3


def talk_directly(comm: Comm) -> list[int]:
    if comm.rank == 0:
        for number in range(20):
            size = 100_000 if number % 7 == 0 else 2  # some are copied, some are waited for
            comm.send(1, torch.full((size,), number), label="direct")
        return [int(comm.receive(1, label="answer"))]
    got = [int(comm.receive(0, label="direct")[-1]) for _ in range(20)]
    comm.send(0, torch.tensor(sum(got)), label="answer")
    return got


@processes_too
def test_direct_messages_keep_their_order(run: Run, tmp_path: Path) -> None:
    assert run(talk_directly, tmp_path=tmp_path) == [[190], list(range(20))]


def use_many_channels(comm: Comm) -> None:
    def talk(name: str, seed: int) -> None:
        channel = comm.channel(name)
        for turn in range(5):
            values = rows_of(seed + turn, rows=30 * seed + 1)
            got = channel.all_gather(values + comm.rank, label=name)
            assert all(torch.equal(one, values + rank) for rank, one in enumerate(got))
            total = channel.all_reduce(values, label=name)
            torch.testing.assert_close(total, values * comm.world_size)

    names = [f"channel {i}" for i in range(6)]
    # Each rank goes through the channels in an order of its own.
    order = sorted(names, key=lambda name: hash((int(name[-1]) * 7 + comm.rank * 3) % 5))
    errors: list[BaseException] = []

    def run(name: str) -> None:
        try:
            talk(name, int(name[-1]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert comm.channel("a") is comm.channel("a")
    assert comm.channel("a").channel("b") is not comm.channel("b")


@every_transport
@pytest.mark.parametrize("world_size", [2, 3])
def test_channels_do_not_disturb_each_other(run: Run, world_size: int) -> None:
    run(use_many_channels, world_size=world_size)


def start_many(comm: Comm) -> None:
    """Exchanges under way at once on one channel, collected in another order than they were started in."""
    n, table = comm.world_size, [2] * comm.world_size
    rows = [rows_of(turn, rows=2 * n) for turn in range(4)]
    dealing = [comm.start_all_to_all(one, table, table, label="deal") for one in rows]
    adding = [comm.start_all_reduce(rows_of(turn, rows=20_000), label="add") for turn in range(4)]
    small = comm.start_all_reduce(torch.tensor([comm.rank]), label="small")
    for turn in (3, 1, 0, 2):
        torch.testing.assert_close(adding[turn].wait(), rows_of(turn, rows=20_000) * n)
        want = torch.cat([rows[turn].split(2)[comm.rank]] * n)
        assert torch.equal(dealing[turn].wait(), want)
    assert small.wait() == sum(range(n))
    assert small.wait() is small.wait()


@every_transport
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_started_collectives_may_be_waited_for_in_any_order(run: Run, world_size: int) -> None:
    run(start_many, world_size=world_size)


def overlap(comm: Comm) -> None:
    """Rank 1 never waits before rank 0 is through: what was started goes on by itself."""
    pending = comm.start_all_reduce(torch.ones(100_000), label="overlapped")
    other = comm.channel("other")
    if comm.rank == 0:
        assert pending.wait()[0] == 2
        other.send(1, torch.zeros(1), label="through")
    else:
        other.receive(0, label="through")
        assert pending.wait()[-1] == 2


@processes_too
def test_a_started_all_reduce_progresses_before_any_rank_waits(run: Run, tmp_path: Path) -> None:
    run(overlap, tmp_path=tmp_path)


def exchange_large(comm: Comm) -> None:
    """64 MB each way at once, while a small exchange on another channel takes its turns."""
    n = 16_000_000
    send = [0, 0]
    send[1 - comm.rank] = n
    rows = torch.arange(n, dtype=torch.float32) + comm.rank
    pending = comm.start_all_to_all(rows, send, send, label="large")
    assert comm.channel("small").all_reduce(torch.ones(1), label="small") == 2
    got = pending.wait()
    assert torch.equal(got, torch.arange(n, dtype=torch.float32) + (1 - comm.rank))


@processes_too
def test_large_messages_go_both_ways_at_once(run: Run, tmp_path: Path) -> None:
    run(exchange_large, tmp_path=tmp_path)


def own_memory(comm: Comm) -> None:
    given = torch.ones(2, 3)
    table = [1] * comm.world_size if comm.world_size == 2 else [2]
    results = [
        comm.all_to_all(given, table, table, label="own"),
        comm.all_reduce(given, label="own"),
        *comm.all_gather(given, label="own"),
        comm.broadcast(given, label="own"),
    ]
    comm.barrier(label="all have theirs")
    given.fill_(7)
    comm.barrier(label="all have changed theirs")
    for result in results:
        assert not bool((result == 7).any())


@every_transport
@pytest.mark.parametrize("world_size", [1, 2])
def test_results_share_no_memory_with_arguments(run: Run, world_size: int) -> None:
    run(own_memory, world_size=world_size)


def send_and_change(comm: Comm) -> None:
    posted: SimpleQueue[Tensor] = SimpleQueue()
    comm.on_post(lambda peer, tag, rows: posted.put(rows))
    for size in (10, 2_000_000):
        if comm.rank == 0:
            values = torch.zeros(size)
            comm.send(1, values, label="x")
            values.fill_(1)
            values = torch.zeros(size)
            comm.post(1, 0, values, label="x")
            values.fill_(1)
        else:
            assert not bool(comm.receive(0, label="x").any())
            assert not bool(posted.get(timeout=LONG_S).any())


@every_transport
def test_arguments_of_send_and_post_may_be_changed_at_once(run: Run) -> None:
    run(send_and_change)


def post_around(comm: Comm) -> list[tuple[int, int, float]]:
    got: list[tuple[int, int, float]] = []
    all_here = threading.Event()

    def arrived(peer: int, tag: int, rows: Tensor) -> None:
        got.append((peer, tag, float(rows.sum())))
        if len(got) == 5 * comm.world_size:
            all_here.set()

    def post(tag: int) -> None:
        for peer in range(comm.world_size):
            comm.post(peer, tag, torch.full((2, 2), float(tag)), label="post")

    for tag in (-1, 0):
        post(tag)  # before anybody listens
    comm.barrier(label="posted")
    comm.on_post(arrived)
    for tag in (2**40, 3, 4):
        post(tag)
    assert all_here.wait(60)
    return got


@every_transport
@pytest.mark.parametrize("world_size", [1, 3])
def test_posts_arrive_with_their_tags_in_the_order_of_each_sender(run: Run, world_size: int) -> None:
    for got in run(post_around, world_size=world_size):
        for peer in range(world_size):
            mine = [(tag, total) for sender, tag, total in got if sender == peer]
            assert mine == [(tag, 4.0 * tag) for tag in (-1, 0, 2**40, 3, 4)]


def post_and_break(comm: Comm) -> None:
    def arrived(peer: int, tag: int, rows: Tensor) -> None:
        raise ZeroDivisionError("cannot use it")

    comm.on_post(arrived)
    comm.post(1 - comm.rank, 1, torch.ones(1), label="post")
    comm.receive(1 - comm.rank, label="never sent")


@every_transport
def test_an_error_in_the_post_callback_ends_the_waits_of_its_rank(run: Run) -> None:
    with pytest.raises(RuntimeError, match="cannot use it"):
        run(post_and_break)


def metered(comm: Comm) -> dict[str, int]:
    n, table = comm.world_size, [1000] * comm.world_size
    comm.all_to_all(torch.ones(1000 * n, 8), table, table, label="rows")
    comm.all_reduce(torch.ones(100_000), label="gradients")
    comm.all_reduce(torch.ones(1), label="loss")
    comm.all_gather(torch.ones(comm.rank), label="gather")
    comm.broadcast(torch.ones(600_000), label="weights")
    comm.barrier(label="barrier")
    comm.channel("x").post(0, 1, torch.ones(5), label="post")
    if comm.rank == 1:
        comm.send(0, torch.ones(5), label="direct")
    if comm.rank == 0:
        comm.receive(1, label="direct")
    comm.barrier(label="barrier")
    sent = comm.meter.sent
    assert comm.meter.total() >= sum(sent.values())
    sent.pop("beats", None)
    return sent


def test_the_byte_meter_counts_the_same_on_every_transport(tmp_path: Path) -> None:
    threads = run_threads(metered, world_size=3)
    assert threads == run_mesh(metered, world_size=3)
    assert threads == run_processes(metered, world_size=3, tmp_path=tmp_path)
    payload = {"rows": 2 * 32_000, "gradients": 4 * 400_000 // 3, "loss": 2 * 4, "weights": 2 * 2_400_000}
    for label, num_bytes in payload.items():
        assert num_bytes <= threads[0][label] <= num_bytes + 1000


def test_a_single_rank_sends_nothing() -> None:
    comm = single_rank_comm()
    assert comm.all_reduce(torch.ones(3), label="x").tolist() == [1, 1, 1]
    assert comm.all_to_all(torch.ones(3), [3], [3], label="x").tolist() == [1, 1, 1]
    assert comm.broadcast_text("x", label="x") == "x"
    assert comm.broadcast_text("", label="x") == ""
    comm.barrier(label="x")
    assert comm.meter.sent == {}
    assert comm.meter.total() == 0
    comm.close()
    comm.close()


def call_differently(comm: Comm, kind: str) -> None:
    if kind == "label":
        comm.barrier(label=f"phase {comm.rank}")
    elif kind == "shape":
        comm.all_reduce(torch.ones(2 + comm.rank), label="x")
    elif kind == "large shape":
        comm.all_reduce(torch.ones(100_000 + comm.rank), label="x")
    elif kind == "dtype":
        comm.all_reduce(torch.ones(2, dtype=DTYPES[7 + comm.rank]), label="x")
    else:
        send, recv = ([0, 2], [0, 3]) if comm.rank == 0 else ([2, 0], [2, 0])
        comm.all_to_all(torch.ones(2, 2), send, recv, label="x")


@every_transport
@pytest.mark.parametrize("kind", ["label", "shape", "large shape", "dtype", "counts"])
def test_mismatched_collectives_raise_an_error(run: Run, kind: str) -> None:
    with pytest.raises(
        CollectiveMismatch, match=r"rank \d on .* sent .* where rank \d on .* expected"
    ) as caught:
        run(call_differently, kind)
    assert caught.value.phase in ("x", "phase 0", "phase 1")


def test_wrong_use_is_refused_before_anything_is_sent() -> None:
    comm = single_rank_comm()
    with pytest.raises(ValueError, match="expected 1 counts each"):
        comm.all_to_all(torch.ones(2), [1, 1], [1, 1], label="x")
    with pytest.raises(ValueError, match="send adds up to 1"):
        comm.all_to_all(torch.ones(2), [1], [1], label="x")
    with pytest.raises(ValueError, match="sends itself 2 rows but expects 1"):
        comm.all_to_all(torch.ones(2), [2], [1], label="x")
    with pytest.raises(
        ValueError, match=r"a tensor of torch.complex64 cannot travel .* expected one of bool"
    ):
        comm.all_reduce(torch.ones(2, dtype=torch.complex64), label="x")
    with pytest.raises(ValueError, match="expected a dense one on the CPU"):
        comm.all_reduce(torch.ones(2, device="meta"), label="x")
    with pytest.raises(ValueError, match="there is no rank 1"):
        comm.send(1, torch.ones(1), label="x")
    with pytest.raises(ValueError, match="cannot send to itself"):
        comm.receive(0, label="x")
    with pytest.raises(ValueError, match="nothing to broadcast"):
        comm.broadcast(None, label="x")
    with pytest.raises(ValueError, match="too long"):
        comm.barrier(label="x" * 201)
