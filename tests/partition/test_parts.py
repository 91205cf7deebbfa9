"""Parts on disk: round trips, damage, atomic writes, and reuse by name."""

import errno
import json
import os
import random
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from known_parts import OWNERS, assert_same_part

from siafu import cli
from siafu.graph import Graph
from siafu.partition.create import PartitionRequest, cut_in_memory, find_or_create
from siafu.partition.cut import Part, cut
from siafu.partition.parts import PARTITION, Partition, is_partition, open_partition, write_partition
from siafu.store import ArrayWriter, write_store
from siafu.store.manifest import _seal
from siafu.training.inputs import fingerprint


def read_all(path: Path) -> list[Part]:
    """Every part, as its rank reads it."""
    partition = open_partition(path)
    return [partition.part(number) for number in range(len(partition.manifest.parts))]


def test_parts_are_read_as_they_were_cut(partition: Partition, parts: list[Part], graph: Graph) -> None:
    for found, wanted in zip(read_all(partition.path), parts, strict=True):
        assert_same_part(found, wanted)
    assert (partition.num_edges, partition.manifest.num_nodes) == (graph.num_edges, graph.num_nodes)
    assert (partition.manifest.fingerprint, partition.manifest.by) == ("f", "hash")
    partition.verify()


@pytest.mark.parametrize("parts", [1, 5])
def test_a_graph_of_which_little_is_known_is_read_as_it_was_cut(tmp_path: Path, parts: int) -> None:
    graph = Graph.from_edges([[0, 1], [1, 0]], num_nodes=3)
    owner = torch.zeros(3, dtype=torch.int32)  # all other parts are empty
    write_partition(tmp_path / "p", graph, cut(graph, owner, parts=parts), fingerprint="f", by="hash")
    wanted = [one.part(graph) for one in cut(graph, owner, parts=parts)]
    for found, part in zip(read_all(tmp_path / "p"), wanted, strict=True):
        assert_same_part(found, part)
    assert read_all(tmp_path / "p")[-1].own.x is None


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.arange(16).view(8, 2).bfloat16(), torch.arange(24).view(8, 3).remainder(2).to(torch.uint8)),
        (torch.zeros(8, 1), torch.tensor([1.5, float("nan")] * 4)),
    ],
)
def test_features_and_labels_of_every_kind_are_read_as_they_were(
    graph: Graph, tmp_path: Path, x: torch.Tensor, y: torch.Tensor
) -> None:
    graph, owner = replace(graph, x=x, y=y, edge_weight=None), torch.tensor(OWNERS, dtype=torch.int32)
    write_partition(tmp_path / "p", graph, cut(graph, owner, parts=3), fingerprint="f", by="hash")
    for found, one in zip(read_all(tmp_path / "p"), cut(graph, owner, parts=3), strict=True):
        wanted = one.part(graph).own
        assert found.own.x is not None
        assert found.own.y is not None
        torch.testing.assert_close(found.own.x, wanted.x, rtol=0, atol=0)
        torch.testing.assert_close(found.own.y, wanted.y, rtol=0, atol=0, equal_nan=True)


def test_rows_are_written_a_range_at_a_time(
    graph: Graph, parts: list[Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.partition.parts._CHUNK_BYTES", 1)
    owner = torch.tensor(OWNERS, dtype=torch.int32)
    write_partition(tmp_path / "p", graph, cut(graph, owner, parts=3), fingerprint="f", by="hash")
    for found, wanted in zip(read_all(tmp_path / "p"), parts, strict=True):
        assert_same_part(found, wanted)


# Damage.


def refused(path: Path, wanted: list[Part]) -> bool:
    """Return whether reading fails with an expected error; otherwise compare the parts with the true ones."""
    try:
        found = read_all(path)
    except (ValueError, OSError):
        with pytest.raises((ValueError, OSError), match=re.escape(str(path))):
            open_partition(path).verify()
        return True
    for one, other in zip(found, wanted, strict=True):
        assert_same_part(one, other)
    return False


def test_a_flipped_bit_anywhere_is_noticed(partition: Partition, parts: list[Part]) -> None:
    chance = random.Random(0)
    for file in sorted(partition.path.iterdir()):
        content = file.read_bytes()
        for place in chance.sample(range(len(content)), min(6, len(content))):
            changed = bytearray(content)
            changed[place] ^= 1 << chance.randrange(8)
            file.write_bytes(changed)
            assert refused(partition.path, parts) or file.name == PARTITION, (file.name, place)
        file.write_bytes(content)
    assert not refused(partition.path, parts)


def test_files_cut_off_grown_or_missing_are_refused(partition: Partition, parts: list[Part]) -> None:
    for file in sorted(partition.path.iterdir()):
        content = file.read_bytes()
        for other in (content[: len(content) // 2], content[:-2], content + b"\1"):
            file.write_bytes(other)
            assert refused(partition.path, parts) or other == content, (file.name, len(other))
        file.unlink()
        with pytest.raises(FileNotFoundError, match=re.escape(file.name)):
            read_all(partition.path)
        file.write_bytes(content)


def test_of_a_part_that_is_damaged_the_others_are_still_read(partition: Partition, parts: list[Part]) -> None:
    (partition.path / "part1_x.bin").write_bytes(b"damaged")
    assert_same_part(partition.part(0), parts[0])
    with pytest.raises(ValueError, match=r'part1_x\.bin: 7 bytes.*make it again with "siafu partition"'):
        partition.part(1)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "\x00", '{"checksum": null}', '{"schema_version": 1}'])
def test_a_foreign_manifest_is_refused(partition: Partition, text: str) -> None:
    (partition.path / PARTITION).write_text(text)
    with pytest.raises(ValueError, match=r"partition\.json.*make it again"):
        open_partition(partition.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["parts"][0]["arrays"]["x"].update(file="../x.bin"), r"arrays\.x\.file"),
        (lambda m: m["parts"][0]["arrays"]["x"].update(dtype="object"), r"arrays\.x\.dtype"),
        (lambda m: m.update(more=1), "more"),
        (lambda m: m.update(kind="graph"), "kind"),
        (lambda m: m.update(schema_version=2), "schema_version is 2; expected 1"),
        (lambda m: m["parts"][0].update(send=[1, 2.5]), r"parts\.0\.send"),
    ],
)
def test_a_manifest_that_says_what_it_may_not_is_refused(
    partition: Partition, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    fields = json.loads((partition.path / PARTITION).read_text())
    del fields["checksum"]
    change(fields)
    (partition.path / PARTITION).write_text(json.dumps({**fields, "checksum": _seal(fields)}))
    with pytest.raises(ValueError, match=message):
        open_partition(partition.path)


def test_a_folder_that_is_no_partition_is_refused(tmp_path: Path) -> None:
    assert not is_partition(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is not a partition: it has no partition\.json; make one"):
        open_partition(tmp_path)


# Writing.


def cuts_of(graph: Graph, parts: int = 3) -> Any:
    return cut(graph, torch.tensor(OWNERS, dtype=torch.int32), parts=parts)


def test_an_existing_folder_is_never_overwritten(
    graph: Graph, partition: Partition, parts: list[Part]
) -> None:
    with pytest.raises(FileExistsError, match="exists already"):
        write_partition(partition.path, graph, cuts_of(graph), fingerprint="g", by="hash")
    assert [path.name for path in partition.path.parent.iterdir()] == ["parts"]
    assert not refused(partition.path, parts)


def test_a_full_disk_leaves_nothing_and_says_what_to_do(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, left = ArrayWriter.append, iter(range(12))

    def fail(self: ArrayWriter, rows: Any) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole(self, rows)

    monkeypatch.setattr(ArrayWriter, "append", fail)
    with pytest.raises(
        OSError, match=r"No space left on device while writing the partition .* free some space"
    ):
        write_partition(tmp_path / "p", graph, cuts_of(graph), fingerprint="f", by="hash")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def limit(which: int, value: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def test_a_file_larger_than_allowed_leaves_nothing(graph: Graph, tmp_path: Path) -> None:
    graph = replace(graph, x=torch.ones(8, 4096))
    with limit(resource.RLIMIT_FSIZE, 1 << 15), pytest.raises(OSError, match="File too large while writing"):
        write_partition(tmp_path / "p", graph, cuts_of(graph), fingerprint="f", by="hash")
    assert list(tmp_path.iterdir()) == []


def test_parts_may_be_many_more_than_files_that_may_be_open(graph: Graph, tmp_path: Path) -> None:
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as quickly as can be
    with limit(resource.RLIMIT_NOFILE, used + 30):
        made = write_partition(tmp_path / "p", graph, cuts_of(graph, 8), fingerprint="f", by="hash")
    assert len(made.manifest.parts) == 8
    made.verify()


def test_an_interrupted_writer_leaves_nothing(graph: Graph, tmp_path: Path) -> None:
    def interrupted() -> Iterator[Any]:
        yield next(iter(cuts_of(graph)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_partition(tmp_path / "p", graph, interrupted(), fingerprint="f", by="hash")
    assert list(tmp_path.iterdir()) == []


# Found by name.


def wanted(graph: Graph, parts: int = 3, by: str = "hash", **more: Any) -> PartitionRequest:
    return PartitionRequest(
        **{"fold": 0, "reorder": False, "fingerprint": fingerprint(graph), **more}, parts=parts, by=by
    )


def no_word(_: str) -> None:
    """Listen to nothing."""


def test_a_partition_is_made_once_and_then_found(graph: Graph, tmp_path: Path) -> None:
    said: list[str] = []
    made = find_or_create(tmp_path / "home", graph, wanted(graph), say=said.append)
    assert said[-1] == f"writing 3 parts to {tmp_path / 'home' / '3-hash'}"
    found = find_or_create(tmp_path / "home", graph, wanted(graph), say=said.append)
    assert (found.path, len(said)) == (made.path, len(said))
    for number, part in enumerate(cut_in_memory(graph, wanted(graph), say=no_word)):
        assert_same_part(found.part(number), part)


def test_names_tell_apart_all_that_parts_depend_on(graph: Graph, tmp_path: Path) -> None:
    for name, rows in (("one.npy", OWNERS), ("same.npy", OWNERS), ("other.npy", OWNERS[::-1])):
        np.save(tmp_path / name, np.array(rows))
    given = [wanted(graph, by=str(tmp_path / name)).name for name in ("one.npy", "same.npy", "other.npy")]
    assert given[0] == given[1] != given[2]
    assert re.fullmatch(r"3-given-[0-9a-f]{16}", given[0])
    assert wanted(graph).name == "3-hash"
    assert wanted(graph, 2, "stream", fold=4).name == "2-stream-fold4"
    assert wanted(graph, 2, "stream", reorder=True).name == "2-stream-ordered"


def test_a_file_of_parts_is_followed(graph: Graph, tmp_path: Path) -> None:
    np.save(tmp_path / "given.npy", np.array(OWNERS))
    by = str(tmp_path / "given.npy")
    found = find_or_create(tmp_path / "home", graph, wanted(graph, by=by), say=no_word)
    for number in range(3):
        owned = found.part(number).own.node_id
        assert owned is not None
        assert {OWNERS[node] for node in owned.tolist()} == {number}, "by the user's numbers"


def test_a_way_to_cut_that_is_neither_known_nor_a_file_is_refused(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"partition\.by is 'strem', and there is no such file; expected stream"
    ):
        find_or_create(tmp_path / "home", graph, wanted(graph, by="strem"), say=no_word)
    assert list(tmp_path.iterdir()) == []


def test_a_partition_of_another_graph_is_refused(graph: Graph, tmp_path: Path) -> None:
    find_or_create(tmp_path, graph, wanted(graph), say=no_word)
    assert graph.x is not None
    other = replace(graph, x=graph.x + 1)
    with pytest.raises(
        ValueError, match=r"3-hash: was made for another graph: .* remove the folder and make it"
    ):
        find_or_create(tmp_path, other, wanted(other), say=no_word)


def test_a_partition_that_another_process_created_meanwhile_is_used(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = find_or_create(tmp_path, graph, wanted(graph), say=no_word)
    looks = iter([False])
    monkeypatch.setattr("siafu.partition.create.is_partition", lambda path: next(looks, True))
    assert find_or_create(tmp_path, graph, wanted(graph), say=no_word).path == made.path
    (tmp_path / "2-hash").mkdir()
    monkeypatch.setattr("siafu.partition.create.is_partition", is_partition)
    with pytest.raises(FileExistsError, match="2-hash exists already; remove it first"):
        find_or_create(tmp_path, graph, wanted(graph, 2), say=no_word)


# The commands.


def command(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["siafu", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    code = ended.value.code
    return code if isinstance(code, int) else 0


def test_a_store_is_cut_listed_and_verified_by_commands(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    write_store(graph, store)
    assert command("info", store, "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["partitions"] == []
    assert command("partition", store, "--parts", 2, "--json", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["parts"], found["by"], found["partition"]) == (
        2,
        "stream",
        str(store / "parts" / "2-stream"),
    )
    assert (sum(found["nodes"]), sum(found["edges"])) == (8, 11)
    assert found["halo"] == [
        sum(spec.recv) for spec in open_partition(Path(found["partition"])).manifest.parts
    ]
    assert "writing 2 parts to" in said.err
    assert command("partition", store, "--parts", 3, "--by", "hash", monkeypatch=monkeypatch) == 0
    assert re.search(r"^parts +3$", capsys.readouterr().out, re.MULTILINE)
    (store / "parts" / ".4-hash.partial-1").mkdir()
    shutil.copy(store / "parts" / "3-hash" / PARTITION, store / "parts" / ".4-hash.partial-1")
    assert command("info", store, "--verify", "--json", monkeypatch=monkeypatch) == 0
    about = json.loads(capsys.readouterr().out)
    assert (about["partitions"], about["verified"]) == (["2-stream", "3-hash"], True)
    assert command("info", store, monkeypatch=monkeypatch) == 0
    assert re.search(r"^partitions +2-stream, 3-hash$", capsys.readouterr().out, re.MULTILINE)
    (store / "parts" / "3-hash" / "part1_x.bin").write_bytes(b"")
    assert command("info", store, "--json", monkeypatch=monkeypatch) == 0, "without --verify no array is read"
    assert command("info", store, "--verify", monkeypatch=monkeypatch) == 1
    assert "part1_x.bin: 0 bytes; expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["store", "--parts", 0],
            1,
            "eight: 0 parts of 8 nodes; expected at least 1 part and a node for each",
        ),
        (
            ["store", "--parts", 9],
            1,
            "eight: 9 parts of 8 nodes; expected at least 1 part and a node for each",
        ),
        (["store", "--parts", "two"], 2, "--parts"),
        (["store"], 2, "--parts"),
        (["store", "--parts", 2, "--by", "no.npy"], 1, "partition.by is 'no.npy', and there is no such file"),
        (["store", "--parts", 2, "--fold", 3], 1, "fold 3 was asked for"),
        (["nothing", "--parts", 2], 1, "nothing is not a store"),
    ],
)
def test_a_wrong_command_is_told_in_a_line(
    graph: Graph,
    tmp_path: Path,
    arguments: list[object],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_store(graph, Path("store"))
    assert command("partition", *arguments, monkeypatch=monkeypatch) == code
    said = capsys.readouterr()
    assert message in said.err
    assert (said.out, "Traceback" in said.err) == ("", False)
    assert not list((tmp_path / "store").glob("parts/*"))


def forge_part(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the manifest says, with a seal that fits."""
    text = json.loads((path / PARTITION).read_text())
    text.pop("checksum")
    change(text)
    (path / PARTITION).write_text(json.dumps({**text, "checksum": _seal(text)}))


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("indices", 0, 8, r"part 0: eight: indices\[0\] names node 8 of \d nodes"),
        ("indices", 0, -1, r"names node -1"),
        ("indptr", 1, 99, r"indptr\[2\] is \d, but the offset before it is 99"),
        ("indptr", -1, 2, r"indptr\[4\] is 2, but"),
        ("route", 0, 4, r"route\[0\] names node 4 of 4 nodes"),
        ("route", 0, -1, r"route\[0\] names node -1"),
        ("halo_id", 0, 8, r"halo_id\[0\] names node 8 of 8 nodes"),
        ("node_id", 0, -3, r"node_id\[0\] names node -3"),
        ("y", 0, -5, r"y\[0\] is -5"),
    ],
)
def test_a_part_whose_arrays_are_out_of_range_is_refused_even_with_the_right_checksum(
    partition: Partition, name: str, place: int, value: int, message: str
) -> None:
    file = partition.path / f"part0_{name}.bin"
    values = np.fromfile(file, np.int32 if name == "indices" else np.int64)
    values[place] = value
    values.tofile(file)
    checksum = xxhash.xxh3_128_hexdigest(values.tobytes())
    forge_part(partition.path, lambda m: m["parts"][0]["arrays"][name].update(xxh3_128=checksum))
    with pytest.raises(ValueError, match=message):
        open_partition(partition.path).part(0)


def test_a_part_whose_halo_stands_before_its_own_rows_is_refused(partition: Partition) -> None:
    part = next(each for each in read_all(partition.path) if int(each.own.indptr.diff().max()) > 1)
    row = int(part.own.indptr.diff().argmax())
    file = partition.path / f"part{part.number}_indices.bin"
    values = np.fromfile(file, np.int32)
    values[int(part.own.indptr[row])] = part.own.num_nodes + part.own.num_halo - 1
    values[int(part.own.indptr[row]) + 1] = 0
    values.tofile(file)
    checksum = xxhash.xxh3_128_hexdigest(values.tobytes())
    forge_part(
        partition.path, lambda m: m["parts"][part.number]["arrays"]["indices"].update(xxh3_128=checksum)
    )
    with pytest.raises(ValueError, match=f"the indices of row {row} fall"):
        open_partition(partition.path).part(part.number)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["parts"][0]["send"].__setitem__(1, 99), "part 0 sends 99 rows to part 1, which gets"),
        (lambda m: m["parts"][0]["send"].__setitem__(1, -1), "greater than or equal to 0"),
        (lambda m: m["parts"][0]["send"].pop(), "does not say what it sends"),
        (lambda m: m["parts"][0]["arrays"].pop("route"), "arrays lacks route"),
        (lambda m: m["parts"][0]["arrays"].update(secret=m["parts"][0]["arrays"]["y"]), "an unknown secret"),
        (lambda m: m.update(num_nodes=9), "the parts own 8 nodes of 9"),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused_even_with_the_right_seal(
    partition: Partition, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    forge_part(partition.path, change)
    with pytest.raises(ValueError, match=message):
        open_partition(partition.path)
