"""A damaged store is detected: opening it gives the same graph or an error, never other data."""

import json
import random
import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from siafu.graph import Graph
from siafu.store import open_store
from siafu.store.manifest import _seal

Same = Callable[[Graph, Graph], None]


def refused(path: Path, graph: Graph, same: Same) -> bool:
    """Return whether opening fails with an expected error; otherwise compare the graph with the true one."""
    try:
        found = open_store(path).graph()
    except (ValueError, OSError):
        return True
    same(graph, found)
    return False


def test_a_flipped_bit_anywhere_is_noticed_or_does_not_matter(
    graph: Graph, store_path: Path, same: Same
) -> None:
    chance = random.Random(0)
    noticed = 0
    for file in sorted(store_path.iterdir()):
        content = file.read_bytes()
        for place in chance.sample(range(len(content)), min(60, len(content))):
            changed = bytearray(content)
            changed[place] ^= 1 << chance.randrange(8)
            file.write_bytes(changed)
            found = refused(store_path, graph, same)
            assert found or file.name == "manifest.json", (file.name, place)  # there, white space is free
            noticed += found
        file.write_bytes(content)
    assert noticed > 200
    same(graph, open_store(store_path).graph())


def test_overwritten_stretches_are_noticed(graph: Graph, store_path: Path, same: Same) -> None:
    chance = random.Random(1)
    for file in sorted(store_path.iterdir()):
        content = file.read_bytes()
        for _ in range(10):
            start = chance.randrange(len(content))
            noise = chance.randbytes(min(8, len(content) - start))
            file.write_bytes(content[:start] + noise + content[start + len(noise) :])
            refused(store_path, graph, same)
        file.write_bytes(content)


def test_files_cut_short_or_grown_are_refused(graph: Graph, store_path: Path, same: Same) -> None:
    for file in sorted(store_path.iterdir()):
        content = file.read_bytes()
        for kept in {0, 1, len(content) // 2, len(content) - 2}:
            file.write_bytes(content[:kept])
            assert refused(store_path, graph, same), (file.name, kept)
        file.write_bytes(content + b"\1")
        assert refused(store_path, graph, same), file.name
        file.write_bytes(content)


def test_missing_files_are_refused(graph: Graph, store_path: Path, same: Same) -> None:
    for file in sorted(store_path.iterdir()):
        file.rename(store_path.parent / "away")
        with pytest.raises(FileNotFoundError, match=file.name):
            open_store(store_path)
        (store_path.parent / "away").rename(file)


def test_swapped_files_are_refused(graph: Graph, store_path: Path, same: Same) -> None:
    kept = store_path.parent / "kept"
    shutil.copytree(store_path, kept)
    for one, other in permutations(sorted(p.name for p in store_path.iterdir()), 2):
        shutil.copy(kept / one, store_path / other)
        assert refused(store_path, graph, same), (one, other)
        shutil.copy(kept / other, store_path / other)


def test_the_error_names_the_file_and_both_checksums(store_path: Path) -> None:
    store = open_store(store_path)
    content = bytearray((store_path / "x.bin").read_bytes())
    content[3] ^= 1
    (store_path / "x.bin").write_bytes(content)
    found, expected = xxhash.xxh3_128_hexdigest(bytes(content)), store.manifest.arrays["x"].xxh3_128
    with pytest.raises(ValueError, match=rf"x\.bin: checksum is {found}, but the manifest says {expected}"):
        store.verify()


def test_small_arrays_are_verified_even_when_large_ones_are_not(store_path: Path) -> None:
    content = bytearray((store_path / "y.bin").read_bytes())
    content[0] ^= 1
    (store_path / "y.bin").write_bytes(content)
    with pytest.raises(ValueError, match=r"y\.bin"):
        open_store(store_path).graph(verify=False)


def forge(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest and seal it again, as a hostile or faulty writer would."""
    fields = json.loads((path / "manifest.json").read_text())
    del fields["checksum"]
    change(fields)
    (path / "manifest.json").write_text(json.dumps({**fields, "checksum": _seal(fields)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["arrays"]["x"].update(file="../x.bin"), "arrays.x.file"),
        (lambda m: m["arrays"]["x"].update(file="/etc/passwd"), "arrays.x.file"),
        (lambda m: m["arrays"]["x"].update(file="y.bin"), "same file"),
        (lambda m: m["arrays"]["x"].update(dtype="object"), "arrays.x.dtype"),
        (lambda m: m["arrays"]["y"].update(dtype="bool"), "arrays.y is bool"),
        (lambda m: m["arrays"]["x"].update(shape=[-5, -3]), "arrays.x.shape"),
        (lambda m: m["arrays"]["x"].update(shape=[15, 1]), "arrays.x has shape"),
        (
            lambda m: m["arrays"]["x"].update(shape=[5, 0]),
            "arrays.x is .5, 0.; expected at least one feature",
        ),
        (lambda m: m["arrays"]["x"].update(shape=[5, 3.0]), "arrays.x.shape"),
        (lambda m: m["arrays"]["x"].update(shape=[5, 10**30]), "x.bin: 60 bytes"),
        (lambda m: m["arrays"]["indptr"].update(shape=[]), "indptr is empty"),
        (lambda m: m["arrays"].update(z=m["arrays"].pop("x")), "arrays.z is unknown"),
        (lambda m: m["arrays"].pop("indices"), "lacks indices"),
        (lambda m: m["arrays"].pop("node_names_bytes"), "belong together"),
        (lambda m: m.update(more=1), "more"),
        (lambda m: m.update(schema_version=2), "schema_version is 2; expected 1"),
        (lambda m: m.update(kind="pickle"), "kind"),
        (lambda m: m.update(undirected="yes"), "undirected"),
        (lambda m: m.pop("provenance"), "provenance"),
    ],
)
def test_a_manifest_that_says_what_it_may_not_is_refused(
    store_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    forge(store_path, change)
    with pytest.raises(ValueError, match=message):
        open_store(store_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "3", '"x"', "[" * 100_000, "\x00", '{"checksum": null}'])
def test_a_foreign_manifest_is_refused(store_path: Path, text: str) -> None:
    (store_path / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json"):
        open_store(store_path)


def replace_array(path: Path, name: str, values: np.ndarray) -> None:
    """Put other values in the place of an array, with a checksum that fits."""
    (path / f"{name}.bin").write_bytes(values.tobytes())
    checksum = xxhash.xxh3_128_hexdigest(values.tobytes())
    forge(path, lambda m: m["arrays"][name].update(xxh3_128=checksum))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("indptr", [0, 2, 1, 5, 7, 7], r"indptr\[2\] is 1, but the offset before it is 2"),
        ("indptr", [1, 2, 3, 5, 7, 7], r"indptr\[0\] is 1"),
        ("indptr", [0, 2, 3, 5, 6, 6], "ends at 6, but there are 7"),
        ("indices", [0, 1, 2, 3, 4, 5, 0], "names node 5 of 5"),
        ("indices", [0, 1, 2, -1, 4, 0, 0], "names node -1 of 5"),
        ("y", [0, 1, -5, 2, 0], r"y\[2\] is -5; expected a class from 0, or -1 for none"),
        ("y", [0, 1, 3, 2, 0], r"y\[2\] is 3, but there are names of 3 classes"),
        ("val_mask", [1, 1, 0, 0, 0], "node 0 is in val_mask and in another mask"),
    ],
)
def test_rows_that_make_no_graph_are_refused_even_with_the_right_checksum(
    store_path: Path, name: str, values: list[int], message: str
) -> None:
    dtype = {"indices": np.int32, "val_mask": np.uint8}.get(name, np.int64)
    replace_array(store_path, name, np.array(values, dtype=dtype))
    with pytest.raises(ValueError, match=message):
        open_store(store_path).graph()


def test_names_whose_offsets_lead_astray_are_refused(store_path: Path) -> None:
    replace_array(store_path, "node_names_offsets", np.array([0, 3, 10**9, 4, 5, 6]))
    with pytest.raises(ValueError, match="node_names"):
        open_store(store_path).graph()


def test_a_folder_or_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a store"):
        open_store(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file; expected the folder of a store"):
        open_store(tmp_path / "file")
