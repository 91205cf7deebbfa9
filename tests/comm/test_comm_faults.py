"""Ranks that fail, die, are suspended, hang or leave: every wait ends with an error that names rank and phase."""

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from groups import LONG_S, Processes, run_mesh, run_processes, run_threads, start_processes, tell

from siafu.comm import Comm, CommError, PeerFailed, PeerLost

Run = Callable[..., list[Any]]
every_transport = pytest.mark.parametrize("run", [run_threads, run_mesh])


def catching(comm: Comm, fn: Callable[[Comm], None]) -> BaseException | None:
    """What the rank raised, told to the peers as an engine tells them."""
    try:
        fn(comm)
    except Exception as error:
        comm.fail(f"{type(error).__name__}: {error}")
        return error
    return None


def fail_in_the_middle(comm: Comm) -> None:
    comm.barrier(label="layer 1")
    if comm.rank == 1:
        raise ZeroDivisionError("rank one fell over")
    comm.all_reduce(torch.ones(100_000), label="gradients")


@pytest.mark.parametrize("run", [run_threads, run_mesh, run_processes])
def test_a_failure_ends_the_waits_of_all_other_ranks_with_its_message(run: Run, tmp_path: Path) -> None:
    outcomes = run(catching, fail_in_the_middle, world_size=3, tmp_path=tmp_path)
    assert isinstance(outcomes[1], ZeroDivisionError)
    for rank in (0, 2):
        assert isinstance(outcomes[rank], PeerFailed)
        assert outcomes[rank].peer == 1
        assert outcomes[rank].phase in ("layer 1", "gradients")  # it may still wait for the third rank
        assert str(outcomes[rank]).startswith("rank 1 on ")
        assert 'failed in "layer 1": ZeroDivisionError: rank one fell over' in str(outcomes[rank])


def leave_early(comm: Comm) -> None:
    comm.barrier(label="layer 1")
    if comm.rank == 0:
        comm.all_gather(torch.ones(1), label="layer 2")


@every_transport
def test_a_rank_that_ends_early_ends_the_waits_for_it(run: Run) -> None:
    with pytest.raises(PeerLost, match=r'rank 1 on .* ended before "layer 2", which rank 0 on .* called'):
        run(leave_early)


def close_and_call(comm: Comm) -> None:
    comm.barrier(label="x")
    comm.close()
    comm.barrier(label="later")


@every_transport
def test_calls_on_a_closed_comm_raise_an_error(run: Run) -> None:
    with pytest.raises(CommError, match=r'(closed its group; it cannot call "later")|ended before "later"'):
        run(close_and_call)


def post_much_and_leave(comm: Comm) -> int:
    got: list[int] = []
    all_here = threading.Event()
    comm.on_post(lambda peer, tag, rows: (got.append(rows.numel()), len(got) == 10 and all_here.set()))  # type: ignore[func-returns-value]
    if comm.rank == 0:
        for tag in range(10):
            comm.post(1, tag, torch.ones(1_000_000), label="post")
        return 0
    assert all_here.wait(LONG_S)
    return sum(got)


@every_transport
def test_posts_before_close_arrive(run: Run) -> None:
    assert run(post_much_and_leave) == [0, 10_000_000]


def wait_for_rank_one(comm: Comm, then: str) -> BaseException | None:
    """Rank 1 says that it is ready and does what it is told to; the others wait for it."""
    comm.barrier(label="ready")
    tell("ready")
    if comm.rank == 1:
        _do(comm, then)
    return catching(comm, lambda comm: comm.barrier(label="halo layer 1"))


def _do(comm: Comm, what: str) -> None:
    match what:
        case "sleep":
            time.sleep(LONG_S)
        case "compute":
            end = time.monotonic() + 3.5
            while time.monotonic() < end:
                torch.ones(200, 200) @ torch.ones(200, 200)
        case "wait for itself":
            threading.Event().wait()


def start_ready(
    tmp_path: Path,
    then: str,
    *,
    deadline_s: float,
    world_size: int = 2,
    fn: Callable[..., Any] = wait_for_rank_one,
) -> Processes:
    ranks = start_processes(fn, then, tmp_path=tmp_path, world_size=world_size, deadline_s=deadline_s)
    for rank in range(world_size):
        assert ranks.next_message(rank) == "ready"
    return ranks


def test_a_killed_rank_is_detected_at_once(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, "sleep", deadline_s=LONG_S, world_size=3)
    os.kill(ranks.pid(1), signal.SIGKILL)
    began = time.monotonic()
    for error in ranks.outcomes([0, 2]):
        assert isinstance(error, PeerLost | PeerFailed)
        assert "rank 1 on host1 is gone" in str(error)
        assert 'waited in "halo layer 1"' in str(error)
    assert time.monotonic() - began < LONG_S / 4


def test_a_suspended_rank_is_detected_within_the_deadline(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, "sleep", deadline_s=2)
    os.kill(ranks.pid(1), signal.SIGSTOP)
    began = time.monotonic()
    (error,) = ranks.outcomes([0])
    assert isinstance(error, PeerLost)
    assert (error.peer, error.host, error.phase) == (1, "host1", "halo layer 1")
    silent = re.match(r"rank 1 on host1 was silent for ([\d.]+) s ", str(error))
    assert silent
    assert float(silent[1]) >= 1.5  # the deadline less two ticks
    assert 'while rank 0 on host0 waited in "halo layer 1"; it was last heard in "' in str(error)
    assert 1 < time.monotonic() - began < LONG_S / 4


def test_long_computation_counts_as_progress(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, "compute", deadline_s=1.5)
    assert ranks.outcomes() == [None, None]


def test_a_rank_that_is_alive_but_stuck_is_detected(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, "wait for itself", deadline_s=1)
    (error,) = ranks.outcomes([0])
    assert isinstance(error, PeerLost)
    assert str(error).startswith(
        "rank 1 on host1 made no progress for 0.75 s while rank 0 on host0 waited in"
    )
    assert 'since "ready" it neither computed nor sent' in str(error)


def test_the_rank_at_the_end_of_a_chain_of_waits_is_named(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, "", deadline_s=1, world_size=3, fn=wait_in_a_row)
    for error in ranks.outcomes([0, 1]):
        assert isinstance(error, PeerLost | PeerFailed)
        assert "rank 2 on host2 made no progress for 0.75 s" in str(error)


def wait_in_a_row(comm: Comm, _: str) -> BaseException | None:
    """Rank 0 waits for 1, 1 for 2, and 2 for nobody."""
    comm.barrier(label="ready")
    tell("ready")
    if comm.rank == 2:
        threading.Event().wait()
    return catching(comm, lambda comm: void(comm.receive(comm.rank + 1, label="row")))


def void(_: Any) -> None:
    return None


def stop_the_waiter(comm: Comm, folder: str) -> int:
    comm.barrier(label="ready")
    tell("ready")
    if comm.rank == 0:
        return int(comm.receive(1, label="answer"))
    while not (Path(folder) / "go").exists():
        torch.ones(200, 200) @ torch.ones(200, 200)
    comm.send(0, torch.tensor(42), label="answer")
    return 42


def test_a_waiter_that_was_suspended_itself_goes_on_waiting(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, str(tmp_path), deadline_s=1.5, fn=stop_the_waiter)
    os.kill(ranks.pid(0), signal.SIGSTOP)
    time.sleep(3)  # two deadlines
    os.kill(ranks.pid(0), signal.SIGCONT)
    time.sleep(0.5)
    (tmp_path / "go").touch()
    assert ranks.outcomes() == [42, 42]


def wait_in_a_circle(comm: Comm, _: str) -> BaseException | None:
    comm.barrier(label="ready")
    tell("ready")
    return catching(comm, lambda comm: void(comm.receive((comm.rank + 1) % 3, label=f"circle {comm.rank}")))


def test_a_deadlock_of_ranks_is_reported(tmp_path: Path) -> None:
    ranks = start_ready(tmp_path, "", deadline_s=1, world_size=3, fn=wait_in_a_circle)
    for error in ranks.outcomes():
        assert isinstance(error, PeerLost | PeerFailed)
        assert "ranks wait for each other" in str(error)
        assert 'rank 1 on host1 for rank 2 in "circle 1"' in str(error)


def send_to_who_is_stopped(comm: Comm, how: str) -> BaseException | None:
    comm.barrier(label="ready")
    tell("ready")
    time.sleep(0.5)

    def send(comm: Comm) -> None:
        for tag in range(1000):
            if how == "send":
                comm.send(1, torch.ones(5_000_000), label="large")
            else:
                comm.post(1, tag, torch.ones(100_000), label="large")
                time.sleep(0.01)

    return catching(comm, send) if comm.rank == 0 else None


@pytest.mark.parametrize("how", ["send", "post"])
def test_sending_to_a_suspended_rank_ends_too(tmp_path: Path, how: str) -> None:
    ranks = start_ready(tmp_path, how, deadline_s=1.5, fn=send_to_who_is_stopped)
    os.kill(ranks.pid(1), signal.SIGSTOP)
    (error,) = ranks.outcomes([0])
    assert isinstance(error, PeerLost)
    assert str(error).startswith("rank 1 on host1 was silent for")


def test_threads_that_are_all_stuck_are_detected() -> None:
    with pytest.raises(
        PeerLost, match=r"rank \d on .* made no progress for 0.75 s while rank \d on .* waited in"
    ):
        run_threads(stand_still, deadline_s=1)


def stand_still(comm: Comm) -> None:
    if comm.rank == 1:
        for _ in range(100):
            time.sleep(0.1)
            if comm.channel("end")._transport.receive_queue.error_for(0):  # type: ignore[attr-defined]
                return
    comm.receive(1, label="never")


def compute_long(comm: Comm) -> None:
    if comm.rank == 1:
        _do(comm, "compute")
    comm.barrier(label="after computing")


def test_long_computation_of_a_thread_counts_as_progress() -> None:
    run_threads(compute_long, deadline_s=1.5)
