"""Rank, world size and rendezvous address from the environment variables of torchrun, Slurm or the user."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from siafu.launch.network_addresses import is_loopback_name

# Below Linux's ephemeral ports.
_FIRST_PORT, _NUM_PORTS = 12000, 20000
_HINT = "start ranks with siafu train --ranks, torchrun, srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"

_ATTEMPT = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
_SLURM_ATTEMPT = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """A rank and its rendezvous address.

    Attributes:
        rank: this rank, from 0.
        world_size: the number of ranks.
        address: the host of the rendezvous store, empty for a single rank.
        port: the port of the store; ranks of one host may have none (0).
        agent_hosts_store: whether torch's agent hosts the store; else rank 0 does.
        one_host: whether all ranks are known to share one host.
        attempt_id: distinguishes this attempt from others with the same rendezvous address.
    """

    rank: int
    world_size: int
    address: str
    port: int
    agent_hosts_store: bool
    one_host: bool
    attempt_id: str


def read_rank_environment(environ: Mapping[str, str]) -> RankEnvironment:
    """Read a rank's environment; raises a ValueError that names the variable at fault."""
    slurm = "RANK" not in environ and "SLURM_PROCID" in environ
    if "RANK" not in environ and not slurm:
        raise ValueError(f"no rank in the environment: neither RANK nor SLURM_PROCID is set; {_HINT}")
    rank = _number(environ, "SLURM_PROCID" if slurm else "RANK")
    size_name = "SLURM_NTASKS" if slurm else "WORLD_SIZE"
    world_size = _number(environ, size_name)
    if rank >= world_size:
        raise ValueError(f"rank is {rank} and {size_name} is {world_size}; expected a rank below it")
    one_host = world_size == 1 or _one_host(environ, world_size, slurm=slurm)
    return RankEnvironment(
        rank,
        world_size,
        address=environ.get("MASTER_ADDR", "") if one_host else _address(environ, slurm=slurm),
        port=_number({"MASTER_PORT": "0", **environ}, "MASTER_PORT")
        if one_host
        else _port(environ, slurm=slurm),
        agent_hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        one_host=one_host,
        attempt_id="/".join(environ.get(name, "") for name in (_SLURM_ATTEMPT if slurm else _ATTEMPT)),
    )


def _one_host(environ: Mapping[str, str], world_size: int, *, slurm: bool) -> bool:
    if slurm:
        return environ.get("SLURM_STEP_NUM_NODES", environ.get("SLURM_NNODES")) == "1"
    return environ.get("LOCAL_WORLD_SIZE") == str(world_size) or is_loopback_name(
        environ.get("MASTER_ADDR", "")
    )


def _address(environ: Mapping[str, str], *, slurm: bool) -> str:
    if environ.get("MASTER_ADDR"):
        return environ["MASTER_ADDR"]
    if slurm and environ.get("SLURM_JOB_NODELIST"):
        return next(hosts_of(environ["SLURM_JOB_NODELIST"]))
    raise ValueError(f"MASTER_ADDR is not set, the host of rank 0; {_HINT}")


def _port(environ: Mapping[str, str], *, slurm: bool) -> int:
    if environ.get("MASTER_PORT"):
        port = _number(environ, "MASTER_PORT")
        if not 0 < port < 1 << 16:
            raise ValueError(f"MASTER_PORT is {port}; expected 1 to 65535")
        return port
    if slurm and environ.get("SLURM_JOB_ID"):
        step = environ.get("SLURM_STEP_ID", "")
        steps = int(step) if step.isdecimal() else 0
        return _FIRST_PORT + (_number(environ, "SLURM_JOB_ID") + 7919 * steps) % _NUM_PORTS
    raise ValueError(f"MASTER_PORT is not set, a free port of rank 0's host; {_HINT}")


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; expected a number; {_HINT}")
    return int(text)


def hosts_of(nodelist: str) -> Iterator[str]:
    """Yield every host of a Slurm node list such as ``a[01-03,7],b2``, in order."""
    for prefix, inside, suffix in re.findall(r"([^\[\],]*)(?:\[([^\]]*)\])?([^\[\],]*)", nodelist):
        if inside:
            for span in inside.split(","):
                yield from (f"{prefix}{number}{suffix}" for number in _numbers(span, nodelist))
        elif prefix or suffix:
            yield prefix + suffix


def _numbers(span: str, nodelist: str) -> Iterator[str]:
    """Yield the numbers of ``08-11``, padded to the width of the first."""
    first, _, last = span.partition("-")
    if not first.isdecimal() or not (last or first).isdecimal():
        raise ValueError(f"SLURM_JOB_NODELIST is {nodelist!r}, which is not understood; set MASTER_ADDR")
    return (str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1))
