"""Ranks as workers of Ray Train, on a Ray cluster that exists. The one file of this room that names Ray.

Ray places ranks and starts the group again when one is lost; it pickles the function between its own processes, which
trust each other. Ranks meet and talk as on every other engine (``elastic.join``), at an address of rank 0's host.
"""

import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch

from siafu.comm import Comm, PeerFailed
from siafu.extras import require_extra
from siafu.launch.failures import RankFailure, RanksFailed, failure_from, is_echo
from siafu.launch.secret import SECRET
from siafu.workers.ray_tasks import connect

with require_extra("engine ray", "ray"):
    import ray
    from ray import train
    from ray.train.backend import Backend
    from ray.train.torch import TorchConfig, TorchTrainer

T = TypeVar("T")


def run_on_ray(
    fn: Callable[[Comm], T],
    *,
    ranks: int,
    threads: int,
    deadline_s: float = 30.0,
    settings: str = "",
    encrypt: bool = True,
    restarts: int = 3,
) -> list[T]:
    """Call ``fn`` on ``ranks`` workers of the cluster, each with ``threads`` CPUs; what they return, in rank order.

    Ray starts all ranks again, at most ``restarts`` times, when one is lost; ``fn`` then goes on from its checkpoint.
    An error of a rank's own is raised as RanksFailed. Every node needs siafu, and paths in ``fn`` are to be absolute.
    """
    connect("to run on")
    _check_room(ranks * threads)
    desk = ray.remote(num_cpus=0)(_Desk).remote()
    secret = secrets.token_hex(32)  # travels with the function, in Ray's own messages
    wire = {"deadline_s": deadline_s, "settings": settings, "encrypt": encrypt}
    one = partial(_run_rank, fn, desk, secret=secret, threads=threads, wire=wire)
    with tempfile.TemporaryDirectory(prefix="siafu-ray-", ignore_cleanup_errors=True) as folder:
        trainer = TorchTrainer(
            lambda: one(),
            torch_config=_Meeting(),
            scaling_config=train.ScalingConfig(num_workers=ranks, resources_per_worker={"CPU": threads}),
            run_config=train.RunConfig(
                storage_path=folder, failure_config=train.FailureConfig(max_failures=restarts)
            ),
        )
        lost = _fit(trainer)
    results, failures = ray.get(desk.read.remote())
    if len(results) == ranks:
        return [results[rank] for rank in range(ranks)]
    if failures:
        raise RanksFailed(failures) from lost
    raise RanksFailed(_lost(lost, restarts)) from lost


def _check_room(cpus: int) -> None:
    """Ray waits without end for what a cluster does not have."""
    there = int(ray.cluster_resources().get("CPU", 0))
    if there < cpus:
        raise ValueError(
            f"the Ray cluster has {there} CPUs, but ranks times threads is {cpus}; "
            "use fewer ranks or threads, or more nodes"
        )


def _fit(trainer: TorchTrainer) -> Exception | None:
    """Train; in a thread, so that Ray leaves the caller's signal handlers in force. Returns what Ray gave up with."""
    gave_up: list[Exception] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            gave_up.append(error)

    running = threading.Thread(target=fit, daemon=True)
    running.start()
    try:
        running.join()
    except BaseException:
        ray.shutdown()  # ends all workers of this driver
        raise
    return gave_up[0] if gave_up else None


def _lost(error: Exception | None, restarts: int) -> list[RankFailure]:
    """What Ray says of workers that died without a word."""
    said: Mapping[int, Exception] = getattr(error, "worker_failures", {})
    message = f"lost, and again after {restarts} restarts"
    return [
        RankFailure(rank, "a Ray node", "killed", f"{message}: {_first_line(died)}")
        for rank, died in sorted(said.items())
    ] or [RankFailure(0, "a Ray node", "killed", f"{message}: {_first_line(error)}")]


def _first_line(error: Exception | None) -> str:
    return next(iter(str(error).strip().splitlines()), "Ray does not say why")


class _Desk:
    """An actor where ranks leave results and failures; what the last attempt left counts."""

    def __init__(self) -> None:
        self._attempt = ""
        self._results: dict[int, Any] = {}
        self._failures: list[RankFailure] = []

    def _turn_to(self, attempt: str) -> None:
        if attempt != self._attempt:
            self._attempt, self._results, self._failures = attempt, {}, []

    def done(self, attempt: str, rank: int, result: Any) -> None:
        """A rank ended well."""
        self._turn_to(attempt)
        self._results[rank] = result

    def failed(self, attempt: str, failure: RankFailure) -> None:
        """A rank failed."""
        self._turn_to(attempt)
        self._failures.append(failure)

    def read(self) -> tuple[dict[int, Any], list[RankFailure]]:
        """All that was left."""
        return self._results, self._failures


def _run_rank(
    fn: Callable[[Comm], Any], desk: Any, *, secret: str, threads: int, wire: Mapping[str, Any]
) -> None:
    """In a worker. An error of its own is left at the desk and not raised, since Ray would start all again for it."""
    from siafu.launch.elastic import join

    environ = _environ() | {SECRET: secret}
    attempt = environ["TORCHELASTIC_RUN_ID"]
    rank = int(environ["RANK"])
    torch.set_num_threads(threads)
    try:
        with join(environ, **wire) as comm:
            result = fn(comm)
    except Exception as error:
        failure = failure_from(error, rank=rank)
        ray.get(desk.failed.remote(attempt, failure))
        if is_echo(error) and not isinstance(error, PeerFailed):
            raise  # a peer is lost and may have told nobody, as when it is stopped: Ray must know
    else:
        ray.get(desk.done.remote(attempt, rank, result))


def _environ() -> dict[str, str]:
    """What torchrun would have set."""
    context = train.get_context()
    return {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": os.environ["MASTER_ADDR"],
        "MASTER_PORT": os.environ["MASTER_PORT"],
        "TORCHELASTIC_RUN_ID": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    }


class _Meeting(TorchConfig):  # type: ignore[misc]
    """How a group of workers is set up: it learns where to meet, and no more."""

    @property
    def backend_cls(self) -> type[Backend]:
        """What sets up."""
        return _MeetingBackend


class _MeetingBackend(Backend):  # type: ignore[misc]
    """For each attempt, asks rank 0's host for an address and a free port, and tells all."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Before the function is called."""
        address, port = worker_group.execute_single(0, _address_and_port)
        worker_group.execute(_remember, address, port)


def _address_and_port() -> tuple[str, int]:
    with socket.create_server(("", 0)) as free:
        return ray.util.get_node_ip_address(), free.getsockname()[1]


def _remember(address: str, port: int) -> None:
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
