"""Tensors and a state in one file: exact, damage is detected, written completely or not at all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from siafu.store.tensors import load_tensors, save_tensors

TENSORS = {
    "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "steps": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "none": torch.empty(0, 4),
}
STATE = {"epoch": 3, "seconds": [0.1, 0.25], "name": "żuk", "best": None}


def test_tensors_and_state_come_back_exactly(tmp_path: Path) -> None:
    size = save_tensors(tmp_path / "t", TENSORS, STATE)
    tensors, state = load_tensors(tmp_path / "t")
    assert size == (tmp_path / "t").stat().st_size
    assert state == STATE
    assert tensors.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype
        assert torch.equal(tensors[name], value), name


def test_equal_contents_are_equal_bytes_in_any_order_and_layout(tmp_path: Path) -> None:
    save_tensors(tmp_path / "one", TENSORS, STATE)
    turned = {name: TENSORS[name] for name in reversed(TENSORS)} | {
        "weight": TENSORS["weight"].T.contiguous().T
    }
    save_tensors(tmp_path / "other", turned, dict(reversed(STATE.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(4.0)
    save_tensors(tmp_path / "t", {"whole": whole, "again": whole, "half": whole[:2]}, {})
    assert load_tensors(tmp_path / "t")[0]["half"].tolist() == [0, 1]


@pytest.mark.parametrize("flip", [1, 0x80])
def test_a_flipped_bit_is_noticed_at_every_byte(tmp_path: Path, flip: int) -> None:
    save_tensors(tmp_path / "t", TENSORS, STATE)
    data = (tmp_path / "t").read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= flip
        _refused_or_same(tmp_path / "t", bytes(damaged))


def test_a_file_cut_off_anywhere_is_noticed(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", TENSORS, STATE)
    data = (tmp_path / "t").read_bytes()
    for length in range(len(data)):
        (tmp_path / "t").write_bytes(data[:length])
        with pytest.raises(ValueError, match="t: not a tensor file of siafu, or damaged"):
            load_tensors(tmp_path / "t")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="any: not a tensor file of siafu"):
        load_tensors(path)


@pytest.mark.parametrize(
    "metadata", [None, {"siafu": "[]"}, {"siafu": "1"}, {"siafu": '["{}", "00"]'}, {"other": "x"}]
)
def test_a_foreign_file_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "t", metadata)
    with pytest.raises(ValueError, match=r"t: (not a tensor file of siafu|damaged)"):
        load_tensors(tmp_path / "t")


def test_a_state_that_json_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_tensors(tmp_path / "t", {}, {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def _refused_or_same(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        tensors, state = load_tensors(path)
    except ValueError:
        return
    _assert_same(tensors, state)


def _assert_same(tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    assert state == STATE
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert tensors.keys() == TENSORS.keys()
