"""Where ranks cannot meet, each says why, in time."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from rank_work import TIMEOUT_S, Starter

from siafu.launch import elastic
from siafu.launch.elastic import join
from siafu.launch.network_addresses import address_to_bind, listen


def environ(rank: int, port: int) -> dict[str, str]:
    """A rank of a group that may be on several hosts."""
    where = {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", "SIAFU_SECRET": "a secret of the tests"} | where


def test_a_port_in_use_is_named() -> None:
    with (
        socket.create_server(("", 0)) as taken,
        pytest.raises(ValueError, match=r"port \d+ of .* is in use.*set MASTER_PORT"),
        join(environ(0, taken.getsockname()[1]), deadline_s=1.0),
    ):
        pytest.fail("joined")


def test_a_meeting_place_that_nobody_keeps_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "MEETING_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    began = time.monotonic()
    with (
        pytest.raises(TimeoutError, match="check that rank 0 runs there"),
        join(environ(1, port), deadline_s=1.0),
    ):
        pytest.fail("joined")
    assert time.monotonic() - began < TIMEOUT_S


def test_something_else_at_the_meeting_place_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "MEETING_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:  # it takes connections and never answers
        with (
            pytest.raises(TimeoutError, match="nothing else listens on that port"),
            join(environ(1, other.getsockname()[1]), deadline_s=1.0),
        ):
            pytest.fail("joined")
        _hang_up(other)


def _hang_up(listener: socket.socket) -> None:
    """Let the call that was given up end."""
    listener.settimeout(0.2)
    try:
        while True:
            listener.accept()[0].close()
    except TimeoutError:
        pass


def test_a_rank_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "MEETING_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    board = elastic._Board(elastic.place_of(environ(0, port)))
    with pytest.raises(TimeoutError, match="all 2 ranks were started"):
        board.get("address of rank 1", timeout_s=0.5)


def test_ranks_with_other_settings_are_refused(program: Callable[..., list[str]], start: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    both = [start(program(work), **environ(rank, port)) for rank, work in enumerate(("exchange", "refuse"))]
    said = [process.communicate(timeout=TIMEOUT_S)[1] for process in both]
    assert all(process.returncode for process in both)
    assert all("settings" in each for each in said), said


def test_a_rank_alone_joins_nobody() -> None:
    before = threading.active_count()
    with join({"RANK": "0", "WORLD_SIZE": "1"}, deadline_s=1.0) as comm:
        assert comm.world_size == 1
    assert threading.active_count() == before


def test_ranks_listen_on_the_loopback_where_they_meet_there() -> None:
    assert address_to_bind("127.0.0.1", 1) == "127.0.0.1"
    assert address_to_bind("localhost", 1) == "127.0.0.1"
    host, listening = listen("localhost", 0)
    with listening:
        assert (host, listening.getsockname()[0]) == ("127.0.0.1", "127.0.0.1")


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ValueError, match=r"'no-such-host.invalid'.*set MASTER_ADDR"):
        address_to_bind("no-such-host.invalid", 1)
