"""The ``ray`` engine: ranks are workers of Ray Train, on an existing Ray cluster. The only file here that imports Ray.

Ray places ranks and restarts the group when one is lost. It pickles the function between its own processes, which trust
each other. Ranks connect as on every other engine (``elastic.join``); the rendezvous store is on rank 0's host.
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
from siafu.launch.failures import RankFailure, RanksFailed, failure_from_error, is_secondary_failure
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
    """Call ``fn`` on ``ranks`` workers of the cluster, each with ``threads`` CPUs; return the results in rank order.

    When a rank is lost, Ray restarts all ranks, at most ``restarts`` times; ``fn`` then resumes from its checkpoint. An
    error of a rank itself is raised as RanksFailed. Every node needs siafu, and paths in ``fn`` must be absolute.
    """
    connect("to run on")
    _check_capacity(ranks * threads)
    result_actor = ray.remote(num_cpus=0)(_ResultActor).remote()
    secret = secrets.token_hex(32)  # travels with the function, in Ray's own messages
    comm_options = {"deadline_s": deadline_s, "settings": settings, "encrypt": encrypt}
    one = partial(_run_rank, fn, result_actor, secret=secret, threads=threads, comm_options=comm_options)
    with tempfile.TemporaryDirectory(prefix="siafu-ray-", ignore_cleanup_errors=True) as folder:
        trainer = TorchTrainer(
            lambda: one(),
            torch_config=_RendezvousConfig(),
            scaling_config=train.ScalingConfig(num_workers=ranks, resources_per_worker={"CPU": threads}),
            run_config=train.RunConfig(
                storage_path=folder, failure_config=train.FailureConfig(max_failures=restarts)
            ),
        )
        lost = _fit(trainer)
    results, failures = ray.get(result_actor.read.remote())
    if len(results) == ranks:
        return [results[rank] for rank in range(ranks)]
    if failures:
        raise RanksFailed(failures) from lost
    raise RanksFailed(_failures_of_lost_workers(lost, restarts)) from lost


def _check_capacity(cpus: int) -> None:
    """Raise ValueError if the cluster has too few CPUs, for which Ray would wait forever."""
    there = int(ray.cluster_resources().get("CPU", 0))
    if there < cpus:
        raise ValueError(
            f"the Ray cluster has {there} CPUs, but ranks times threads is {cpus}; "
            "use fewer ranks or threads, or more nodes"
        )


def _fit(trainer: TorchTrainer) -> Exception | None:
    """Run the trainer in a thread, so that the caller's signal handlers stay in force; return Ray's final error."""
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


def _failures_of_lost_workers(error: Exception | None, restarts: int) -> list[RankFailure]:
    """Make failures from Ray's error for workers that died without a report."""
    said: Mapping[int, Exception] = getattr(error, "worker_failures", {})
    message = f"lost, and again after {restarts} restarts"
    return [
        RankFailure(rank, "a Ray node", "killed", f"{message}: {_first_line(died)}")
        for rank, died in sorted(said.items())
    ] or [RankFailure(0, "a Ray node", "killed", f"{message}: {_first_line(error)}")]


def _first_line(error: Exception | None) -> str:
    return next(iter(str(error).strip().splitlines()), "Ray does not say why")


class _ResultActor:
    """A Ray actor that collects the results and failures of the last attempt."""

    def __init__(self) -> None:
        self._attempt = ""
        self._results: dict[int, Any] = {}
        self._failures: list[RankFailure] = []

    def _start_attempt(self, attempt: str) -> None:
        if attempt != self._attempt:
            self._attempt, self._results, self._failures = attempt, {}, []

    def record_result(self, attempt: str, rank: int, result: Any) -> None:
        """Record the result of a rank."""
        self._start_attempt(attempt)
        self._results[rank] = result

    def record_failure(self, attempt: str, failure: RankFailure) -> None:
        """Record the failure of a rank."""
        self._start_attempt(attempt)
        self._failures.append(failure)

    def read(self) -> tuple[dict[int, Any], list[RankFailure]]:
        """Return results by rank, and failures."""
        return self._results, self._failures


def _run_rank(
    fn: Callable[[Comm], Any],
    result_actor: Any,
    *,
    secret: str,
    threads: int,
    comm_options: Mapping[str, Any],
) -> None:
    """Run ``fn`` in a worker. A rank's own error is recorded, not raised: Ray restarts all ranks after an exception."""
    from siafu.launch.elastic import join

    environ = _torchrun_environment() | {SECRET: secret}
    attempt = environ["TORCHELASTIC_RUN_ID"]
    rank = int(environ["RANK"])
    torch.set_num_threads(threads)
    try:
        with join(environ, **comm_options) as comm:
            result = fn(comm)
    except Exception as error:
        failure = failure_from_error(error, rank=rank)
        ray.get(result_actor.record_failure.remote(attempt, failure))
        if is_secondary_failure(error) and not isinstance(error, PeerFailed):
            raise  # the lost peer may not have failed visibly, e.g. when it is suspended: Ray must restart
    else:
        ray.get(result_actor.record_result.remote(attempt, rank, result))


def _torchrun_environment() -> dict[str, str]:
    """Return the environment variables that torchrun would have set."""
    context = train.get_context()
    return {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": os.environ["MASTER_ADDR"],
        "MASTER_PORT": os.environ["MASTER_PORT"],
        "TORCHELASTIC_RUN_ID": f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    }


class _RendezvousConfig(TorchConfig):  # type: ignore[misc]
    """Sets up a group of workers: it only distributes the rendezvous address."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend class of this configuration."""
        return _RendezvousBackend


class _RendezvousBackend(Backend):  # type: ignore[misc]
    """For each attempt, picks an address and a free port of rank 0's host, and sends them to all ranks."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Distribute the rendezvous address before the function is called."""
        address, port = worker_group.execute_single(0, _address_and_port)
        worker_group.execute(_set_rendezvous_address, address, port)


def _address_and_port() -> tuple[str, int]:
    with socket.create_server(("", 0)) as free:
        return ray.util.get_node_ip_address(), free.getsockname()[1]


def _set_rendezvous_address(address: str, port: int) -> None:
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
