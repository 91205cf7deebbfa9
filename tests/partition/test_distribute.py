"""Each rank gets its part, from the folder or over the network."""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from known_parts import assert_same_part

from siafu.comm import Comm, PeerFailed
from siafu.launch.local import run_threads
from siafu.partition.cut import Part
from siafu.partition.distribute import distribute_part
from siafu.partition.parts import PARTITION, Partition


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


def delivered(path: Path, *, blind: tuple[int, ...] = (), ranks: int = 3) -> tuple[list[Part], list[int]]:
    """The part of each rank, and what each rank sent; those that are blind look for the folder where it is not."""

    def rank(comm: Comm) -> tuple[Part, int]:
        part = distribute_part(comm, path.with_name("elsewhere") if comm.rank in blind else path)
        return part, comm.meter.total()

    parts, sent = zip(*run_threads(rank, ranks=ranks, threads=1, deadline_s=10), strict=True)
    return list(parts), list(sent)


def errors(path: Path, *, blind: tuple[int, ...] = ()) -> list[str]:
    """The error of each of three ranks; a rank whose peer failed reports the peer's error."""
    told: dict[int, str] = {}

    def rank(comm: Comm) -> None:
        try:
            distribute_part(comm, path.with_name("elsewhere") if comm.rank in blind else path)
            comm.barrier(label="later")
        except (ValueError, OSError, PeerFailed) as error:
            told[comm.rank] = str(error)
            raise

    with pytest.raises((ValueError, OSError)):
        run_threads(rank, ranks=3, threads=1, deadline_s=10)
    return [told[number] for number in range(3)]


@pytest.mark.parametrize("blind", [(), (1,), (1, 2)])
def test_every_rank_gets_its_part_whether_it_sees_the_folder_or_not(
    partition: Partition, parts: list[Part], blind: tuple[int, ...], tmp_path: Path
) -> None:
    found, sent = delivered(partition.path, blind=blind)
    for one, wanted in zip(found, parts, strict=True):
        assert_same_part(one, wanted)
    assert list((tmp_path / "temporary").iterdir()) == []
    size = [sum(array.num_bytes for array in spec.arrays.values()) for spec in partition.manifest.parts]
    manifest = (partition.path / PARTITION).stat().st_size
    assert sent[0] >= 2 * manifest + sum(size[rank] for rank in blind)
    assert sent[1] < 500, "no rank but the first sends more than whether it sees the folder"
    assert blind or sent[0] < 2 * manifest + 500


def test_large_arrays_come_in_pieces(
    partition: Partition, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.partition.distribute._CHUNK_BYTES", 7)
    for one, wanted in zip(delivered(partition.path, blind=(1, 2))[0], parts, strict=True):
        assert_same_part(one, wanted)


def test_parts_that_came_over_the_wire_may_be_written_to(partition: Partition) -> None:
    part = delivered(partition.path, blind=(2,))[0][2]
    assert part.own.x is not None
    part.own.x.mul_(2)
    assert torch.equal(part.own.x, 2 * partition.part(2).own.x)  # type: ignore[operator]


def test_an_old_copy_on_a_ranks_own_disk_is_not_taken(
    partition: Partition, parts: list[Part], tmp_path: Path
) -> None:
    shutil.copytree(partition.path, tmp_path / "elsewhere")
    manifest = tmp_path / "elsewhere" / PARTITION
    manifest.write_bytes(manifest.read_bytes().replace(b'"hash"', b'"mash"') + b"\xff")
    for one, wanted in zip(delivered(partition.path, blind=(1,))[0], parts, strict=True):
        assert_same_part(one, wanted)


@pytest.mark.parametrize("blind", [(), (1,)])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("damage", ["changed", "cut off", "missing"])
def test_a_damaged_part_is_told_to_all_ranks_by_the_name_of_its_file(
    partition: Partition, blind: tuple[int, ...], number: int, damage: str, tmp_path: Path
) -> None:
    file = partition.path / f"part{number}_x.bin"
    content = file.read_bytes()
    match damage:
        case "changed":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "cut off":
            file.write_bytes(content[:-4])
        case "missing":
            file.unlink()
    for said in errors(partition.path, blind=blind):
        assert str(file) in said
        assert 'make it again with "siafu partition"' in said
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", None])
def test_a_damaged_manifest_is_told_to_all_ranks(partition: Partition, content: bytes | None) -> None:
    file = partition.path / PARTITION
    file.unlink() if content is None else file.write_bytes(content)
    for said in errors(partition.path):
        assert str(file) in said


def test_a_partition_for_another_number_of_ranks_is_refused(partition: Partition) -> None:
    with pytest.raises(
        ValueError, match=r'has 3 parts for 2 ranks; .* make another with "siafu partition --parts 2"'
    ):
        delivered(partition.path, ranks=2)
