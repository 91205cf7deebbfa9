"""``elastic.join``: ranks that cannot connect raise an error with the reason, in time."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from rank_work import TIMEOUT_S, Starter

from siafu.launch import elastic
from siafu.launch.elastic import join
from siafu.launch.network_addresses import choose_bind_address, listen_for_rendezvous


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


def test_a_missing_rendezvous_store_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "RENDEZVOUS_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    began = time.monotonic()
    with (
        pytest.raises(TimeoutError, match="check that rank 0 runs there"),
        join(environ(1, port), deadline_s=1.0),
    ):
        pytest.fail("joined")
    assert time.monotonic() - began < TIMEOUT_S


def test_another_service_at_the_rendezvous_address_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "RENDEZVOUS_TIMEOUT_S", 0.5)
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


def test_a_rank_that_never_joins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "RENDEZVOUS_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    store = elastic._TCPRendezvousStore(elastic.read_rank_environment(environ(0, port)))
    with pytest.raises(TimeoutError, match="all 2 ranks were started"):
        store.get("address of rank 1", timeout_s=0.5)


def test_ranks_with_other_settings_are_refused(program: Callable[..., list[str]], start: Starter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    both = [start(program(work), **environ(rank, port)) for rank, work in enumerate(("exchange", "refuse"))]
    said = [process.communicate(timeout=TIMEOUT_S)[1] for process in both]
    assert all(process.returncode for process in both)
    assert all("settings" in each for each in said), said


def test_a_single_rank_joins_without_a_rendezvous() -> None:
    before = threading.active_count()
    with join({"RANK": "0", "WORLD_SIZE": "1"}, deadline_s=1.0) as comm:
        assert comm.world_size == 1
    assert threading.active_count() == before


def test_ranks_listen_on_the_loopback_if_the_rendezvous_is_there() -> None:
    assert choose_bind_address("127.0.0.1", 1) == "127.0.0.1"
    assert choose_bind_address("localhost", 1) == "127.0.0.1"
    host, listening = listen_for_rendezvous("localhost", 0)
    with listening:
        assert (host, listening.getsockname()[0]) == ("127.0.0.1", "127.0.0.1")


def test_an_unknown_host_is_named() -> None:
    with pytest.raises(ValueError, match=r"'no-such-host.invalid'.*set MASTER_ADDR"):
        choose_bind_address("no-such-host.invalid", 1)
