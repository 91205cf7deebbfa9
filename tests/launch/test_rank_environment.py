"""The rank environment is read from variables, or refused with the name of the variable at fault."""

import pytest

from siafu.launch.rank_environment import hosts_of, read_rank_environment

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "hostA",
    "MASTER_PORT": "29500",
    "LOCAL_WORLD_SIZE": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_NODELIST": "n[07-08],m1",
    "SLURM_JOB_ID": "45678",
}


def test_torchrun_sets_all_of_it() -> None:
    rank_env = read_rank_environment(
        TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert (rank_env.rank, rank_env.world_size, rank_env.address, rank_env.port) == (1, 4, "hostA", 29500)
    assert (rank_env.agent_hosts_store, rank_env.one_host, rank_env.attempt_id) == (True, False, "/2")
    assert read_rank_environment(TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}).one_host


def test_slurm_sets_enough() -> None:
    rank_env = read_rank_environment(SLURM)
    assert (rank_env.rank, rank_env.world_size, rank_env.address, rank_env.agent_hosts_store) == (
        3,
        4,
        "n07",
        False,
    )
    assert 12000 <= rank_env.port < 32000
    assert rank_env.port == read_rank_environment(SLURM | {"SLURM_PROCID": "0"}).port
    assert rank_env.port != read_rank_environment(SLURM | {"SLURM_STEP_ID": "1"}).port
    given = read_rank_environment(SLURM | {"MASTER_ADDR": "hostB", "MASTER_PORT": "4000"})
    assert (given.address, given.port) == ("hostB", 4000)


def test_torchrun_below_slurm_counts() -> None:
    assert read_rank_environment(SLURM | TORCHRUN).rank == 1


def test_a_single_rank_needs_no_rendezvous_address() -> None:
    assert read_rank_environment({"RANK": "0", "WORLD_SIZE": "1"}).address == ""


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "neither RANK nor SLURM_PROCID is set"),
        (TORCHRUN | {"RANK": "one"}, "RANK is 'one'; expected a number"),
        (TORCHRUN | {"RANK": "4"}, "rank is 4 and WORLD_SIZE is 4"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT is 70000; expected 1 to 65535"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"RANK": "0"}, "WORLD_SIZE is ''"),
        (SLURM | {"SLURM_JOB_NODELIST": "n[a-b]"}, "SLURM_JOB_NODELIST is 'n\\[a-b\\]'"),
    ],
)
def test_a_missing_or_wrong_variable_is_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_rank_environment(environ)


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("a", ["a"]),
        ("a,b2", ["a", "b2"]),
        ("a[1-3,7],b2", ["a1", "a2", "a3", "a7", "b2"]),
        ("gpu-[008-011]", ["gpu-008", "gpu-009", "gpu-010", "gpu-011"]),
        ("n[1,3]-ib", ["n1-ib", "n3-ib"]),
    ],
)
def test_node_lists_of_slurm(nodelist: str, hosts: list[str]) -> None:
    assert list(hosts_of(nodelist)) == hosts
