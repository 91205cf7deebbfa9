"""A rank's place is read from the environment, or refused with the name of the variable."""

import pytest

from siafu.launch.rank_environment import hosts_of, place_of

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
    place = place_of(TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (place.rank, place.world_size, place.address, place.port) == (1, 4, "hostA", 29500)
    assert (place.hosted, place.one_host, place.attempt) == (True, False, "/2")
    assert place_of(TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}).one_host


def test_slurm_sets_enough() -> None:
    place = place_of(SLURM)
    assert (place.rank, place.world_size, place.address, place.hosted) == (3, 4, "n07", False)
    assert 12000 <= place.port < 32000
    assert place.port == place_of(SLURM | {"SLURM_PROCID": "0"}).port
    assert place.port != place_of(SLURM | {"SLURM_STEP_ID": "1"}).port
    given = place_of(SLURM | {"MASTER_ADDR": "hostB", "MASTER_PORT": "4000"})
    assert (given.address, given.port) == ("hostB", 4000)


def test_torchrun_below_slurm_counts() -> None:
    assert place_of(SLURM | TORCHRUN).rank == 1


def test_a_rank_alone_needs_no_meeting_place() -> None:
    assert place_of({"RANK": "0", "WORLD_SIZE": "1"}).address == ""


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
def test_what_is_missing_or_wrong_is_named(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        place_of(environ)


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
