"""The harness of benchmarks/chaos.py: drawing trials and reporting records."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chaos
import chaos_report
import pytest
from chaos_draw import FAULTS, METHODS, WORKERS, Setup, draw
from chaos_runs import _is_leftover


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """Put back the handlers that ``chaos.main`` replaces: later tests of this process look at them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


TRIALS = [draw(3, number) for number in range(400)]


def test_a_trial_is_a_function_of_seed_and_number() -> None:
    assert [draw(3, number) for number in (399, 5)] == [TRIALS[399], TRIALS[5]]
    assert draw(4, 5) != TRIALS[5]
    assert len(set(TRIALS)) == len(TRIALS)


def test_a_drawn_trial_stays_what_it_is() -> None:
    assert draw(0, 1).record() == {
        "seed": 0,
        "trial": 1,
        "setup": {
            "method": "lazy", "ranks": 1, "engine": "processes", "source": "generated", "workers": "",
            "staleness": 0, "hosts": False,
        },
        "fault": {
            "kind": "memory", "target": "run", "moment": "epoch", "share": 0.3253, "pick": 97024238, "pause_s": 0.0,
        },
    }  # fmt: skip


def test_every_method_fault_worker_and_number_of_ranks_is_drawn() -> None:
    setups = [trial.setup for trial in TRIALS]
    assert {setup.method for setup in setups} == set(METHODS)
    assert {setup.workers for setup in setups if setup.method == "pipeline"} == set(WORKERS)
    assert {setup.ranks for setup in setups} == {1, 2, 3}
    assert {trial.fault.kind for trial in TRIALS} == set(FAULTS)


def test_only_processes_that_somebody_can_end_are_stopped_for_good() -> None:
    targets = {trial.fault.target for trial in TRIALS if trial.fault.kind == "stop"}
    assert targets == {"rank", "worker"}
    for trial in TRIALS:
        if trial.fault.kind in ("kill", "stop", "pause"):
            assert trial.fault.target in trial.setup.roles


def test_workers_that_compute_with_numpy_have_an_undisturbed_run_of_their_own() -> None:
    torch, numpy = (Setup("pipeline", 2, "processes", "store", kind).reference for kind in ("hand", "lambda"))
    assert (torch.workers, numpy.workers) == ("inline", "http")
    assert torch.key != numpy.key


def record(number: int, kind: str, **more: Any) -> dict[str, Any]:
    """A trial without a defect, but for ``more``."""
    drawn = next(trial for trial in TRIALS[number:] if trial.fault.kind == kind).record()
    outcome = {
        "struck": True,
        "noticed_s": None,
        "resumed": False,
        "hung": False,
        "problems": [],
        "finished": True,
    }
    return drawn | outcome | {"identical": True, "leftovers": [], "late_orphans": [], "orphans": []} | more


def test_a_report_counts_trials_by_fault_and_lists_those_with_a_defect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        record(0, "kill", noticed_s=0.4, resumed=True),
        record(9, "kill", noticed_s=1.2, identical=None),
        record(0, "stop", noticed_s=9.1),
        record(0, "disk", orphans=["python -m siafu.rank"], leftovers=["tmp/a"], identical=False),
        record(0, "cut", hung=True, finished=False, identical=False),
    ]
    (tmp_path / "chaos.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in [{"reference": "full-1-local-generated"}, *records])
    )
    monkeypatch.setattr("sys.argv", ["chaos.py", "--report", str(tmp_path / "chaos.jsonl")])
    chaos.main()
    text = capsys.readouterr().out
    assert "| kill | 2 | 2 | 1 | 2 | 1 of 1 | 0.8 s | 1.2 s | 0 | 0 |" in text
    assert "| disk | 1 | 1 | 0 | 1 | 0 of 1 |  |  | 1 | 1 |" in text
    assert "| all | 5 | 5 | 1 | 4 | 2 of 4 | 1.2 s | 9.1 s | 1 | 1 |" in text
    assert "trials with a defect: 3" in text
    assert chaos_report.defects(records[2]) == ["noticed after 9.1 s"]
    assert chaos_report.defects(records[3]) == [
        "other weights",
        "orphan python -m siafu.rank",
        "leftover tmp/a",
    ]
    assert chaos_report.defects(records[4]) == ["hung"]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("home/run/config.toml", False),
        ("home/run/.lock", False),
        ("home/run/checkpoint/latest.safetensors", False),
        ("home/run/checkpoint/latest.safetensors.tmp", True),
        ("home/run/.measured.json", True),
        ("home/run/lease-0.json", True),
        ("home/.run.lock", True),
        ("store/parts/2-stream/part1_indices.bin", False),
        ("store/parts/.2-stream-9/manifest.json", True),
        ("shm/siafu-1", True),
        ("tmp/siafu-ranks-9/rank-0.json", True),
    ],
)
def test_a_file_that_is_none_of_the_runs_own_is_a_leftover(path: str, left: bool) -> None:
    assert _is_leftover(Path(path)) == left
