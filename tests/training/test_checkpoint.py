"""The exact state of training: written, read, refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from siafu.store.tensors import load_tensors, save_tensors
from siafu.training.adam import Adam, Group
from siafu.training.checkpoint import LoopState, load_checkpoint, save_checkpoint
from siafu.training.loop import Loop
from siafu.training.procedure import Monitor

MakeLoop = Callable[..., Loop]
MakeMonitor = Callable[..., Monitor]


def test_a_checkpoint_brings_back_weights_optimiser_and_progression(
    make_loop: MakeLoop, make_monitor: MakeMonitor
) -> None:
    loop, watch = make_loop(checkpoint_seconds=0, patience=0), make_monitor()
    loop.fit(watch)
    loop.procedure.model.load_state_dict(
        {name: value + 1 for name, value in loop.procedure.model.state_dict().items()}
    )
    save_checkpoint(watch.checkpoint, loop.procedure.model, loop.procedure.optimizer.adam, loop.state)
    other = make_loop()
    other.resume(watch.checkpoint)
    for name, value in loop.procedure.model.state_dict().items():
        assert torch.equal(other.procedure.model.state_dict()[name], value), name
    wanted, found = loop.procedure.optimizer.adam.state, other.procedure.optimizer.adam.state
    assert wanted.keys() == found.keys()
    for slot in wanted:
        for name, value in wanted[slot].items():
            assert torch.equal(found[slot][name], value), name
    assert other.state.best.keys() == loop.state.best.keys()
    for name, value in loop.state.best.items():
        assert torch.equal(other.state.best[name], value), name
    loop.state.best = other.state.best = {}
    assert other.state == loop.state


def test_a_checkpoint_of_another_run_is_refused(make_loop: MakeLoop, make_monitor: MakeMonitor) -> None:
    loop, watch = make_loop(), make_monitor()
    loop.state.run = "mine"
    loop.fit(watch)
    with pytest.raises(ValueError, match="the checkpoint of another run; put the right one back"):
        make_loop().resume(watch.checkpoint)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = Adam([Group(list(model.parameters()))], lr=0.01)
    save_checkpoint(tmp_path / "c", model, optimizer, LoopState())
    tensors, state = load_tensors(tmp_path / "c")
    save_tensors(tmp_path / "c", tensors, state | {"version": 99})
    with pytest.raises(ValueError, match="not a checkpoint of this version of siafu"):
        load_checkpoint((tmp_path / "c").read_bytes(), model, optimizer, run="", what="c")


def test_a_checkpoint_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    model, wider = nn.Linear(2, 2), nn.Linear(2, 3)
    save_checkpoint(tmp_path / "c", model, Adam([Group(list(model.parameters()))], lr=0.01), LoopState())
    with pytest.raises(ValueError, match="its weights do not fit the model"):
        load_checkpoint(
            (tmp_path / "c").read_bytes(),
            wider,
            Adam([Group(list(wider.parameters()))], lr=0.01),
            run="",
            what="c",
        )


def test_a_damaged_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = Adam([Group(list(model.parameters()))], lr=0.01)
    save_checkpoint(tmp_path / "c", model, optimizer, LoopState())
    data = bytearray((tmp_path / "c").read_bytes())
    data[-1] ^= 1
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(ValueError, match=r"c: damaged: .*; delete it to train from the first epoch"):
        load_checkpoint((tmp_path / "c").read_bytes(), model, optimizer, run="", what="c")


def test_a_parameter_that_is_used_twice_can_be_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    optimizer = Adam([Group(list(model.parameters()))], lr=0.01)
    save_checkpoint(tmp_path / "c", model, optimizer, LoopState(epoch=3))
    assert load_checkpoint((tmp_path / "c").read_bytes(), model, optimizer, run="", what="c")[0].epoch == 3


def test_the_first_epoch_is_kept_at_once_and_then_the_last(
    make_loop: MakeLoop, make_monitor: MakeMonitor, tmp_path: Path
) -> None:
    make_loop(checkpoint_seconds=1e6, epochs=4).fit(make_monitor())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["epoch"] for event in events if event["phase"] == "checkpoint"] == [1, 4]
