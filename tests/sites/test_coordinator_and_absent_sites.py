"""Training ends well although sites leave, return or are slow, and although the coordinator is killed."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trial_federation import Trial, serving, trained_here

from siafu.config import build
from siafu.graph import Graph
from siafu.launch.sites.schema import make
from siafu.sites.coordinator import FederationFailed
from siafu.sites.coordinator_attempt import AttemptOutcome, CoordinatorAttempt
from siafu.sites.file_transfer import split_into_pieces
from siafu.sites.service import SiteService
from siafu.training.procedure import Callbacks
from siafu.wire.heartbeats import Suspicion

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, Any] = {"method": "lazy", "train.epochs": 30, "model.hidden": 16}
# Stages that still go on when who went is missed, or is back.
LONG = SETTINGS | {"train.epochs": 120, "train.patience": 0}


def when(epoch: int, do: Callable[[], None], said: list[str]) -> Callbacks:
    """An callbacks who does something once, when so many epochs are done."""
    left = [do]

    def on_epoch(number: int, total: int, **_: Any) -> None:
        if number >= epoch and left:
            left.pop()()

    return Callbacks(on_epoch, say=said.append)


@pytest.fixture
def trial(graph: Graph, tmp_path: Path) -> Iterator[Trial]:
    with serving(tmp_path / "sites", graph) as made:
        yield made


@pytest.mark.parametrize("epoch", [3, 130])
def test_a_disconnected_site_that_returns_takes_part_to_the_end(
    epoch: int, trial: Trial, graph: Graph, tmp_path: Path
) -> None:
    said: list[str] = []

    def replug() -> None:
        trial.end("b")
        trial.serve("b")

    run = trial.federate(callbacks=when(epoch, replug, said), **LONG)
    here = trained_here(graph, tmp_path / "here", **LONG)
    assert run.metrics["finished"]
    assert run.metrics["away"] == []
    assert len([text for text in said if text.startswith("training with a, b, c")]) >= 2
    assert run.metrics["ledger_bytes"] == run.metrics["bytes_sent"]
    assert (run.directory / "model.safetensors").read_bytes() == (
        here.directory / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("epoch", [3, 130])
def test_the_others_go_on_without_a_site_that_is_gone_for_good(epoch: int, trial: Trial) -> None:
    said: list[str] = []
    gone = when(epoch, lambda: trial.end("c"), said)
    run = trial.federate(callbacks=gone, federation={"patience": 0.5}, **LONG)
    assert run.metrics["finished"]
    assert run.metrics["away"] == ["c"]
    assert "site c is away; the others go on without it" in said
    assert run.metrics["test_accuracy"] > 0.45  # a third of so few nodes is missing; benchmarks tell more


def test_an_absent_site_joins_again_after_a_stage(trial: Trial) -> None:
    said: list[str] = []
    watching = when(3, lambda: trial.end("c"), said)

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("site c is away"):
            trial.serve("c")

    callbacks = Callbacks(watching.on_epoch, say=say)
    run = trial.federate(callbacks=callbacks, federation={"patience": 0.5}, **LONG)
    assert run.metrics["finished"]
    assert run.metrics["away"] == []
    assert "site c is back" in said
    members = [text.partition(",  in")[0] for text in said if text.startswith("training with")]
    assert ["a, b, c" in text for text in members] == [True, False, True]


def test_a_returning_site_that_does_not_fit_does_not_end_the_run(trial: Trial) -> None:
    said: list[str] = []
    watching = when(3, lambda: trial.end("c"), said)

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("site c is away"):
            trial.change("c", 'features = "boundary"', 'features = "never"')
            trial.serve("c")

    callbacks = Callbacks(watching.on_epoch, say=say)
    run = trial.federate(callbacks=callbacks, federation={"patience": 0.5}, **LONG)
    assert run.metrics["finished"]
    assert run.metrics["away"] == ["c"]
    why = "the policy of site c lets no features out"
    assert len([text for text in said if f"the others go on without it: {why}" in text]) == 1
    assert [text for text in trial.said["c"] if why in text]  # where it can be mended


def followed(members: list[str], **places: Any) -> CoordinatorAttempt:
    """An attempt that was not begun."""
    run: Any = SimpleNamespace(places=places, config=build({}, {"comm": {"deadline": 10}}))
    return CoordinatorAttempt(run, members, {}, Counter())


def test_a_reported_wait_for_a_site_outside_the_group_blames_no_site() -> None:
    followup, outcome = followed(["a", "b"]), AttemptOutcome()
    followup._process("a", make("Report", state="training", waits_for="nobody", waited=99), outcome)
    assert followup.detector.culprit() is None
    followup._process("a", make("Report", state="training", waits_for="b", waited=99), outcome)
    assert followup.detector.culprit() == Suspicion("b")


def test_run_files_are_accepted_only_from_the_first_site_and_only_whole() -> None:
    kept: list[bytes] = []
    followup = followed(["a", "b"], model=kept.append)
    outcome, (piece,) = AttemptOutcome(), split_into_pieces("model", b"weights")
    followup._process("b", make("Report", piece=piece), outcome)
    assert outcome.lost == {"b": "site b sent a file of the run, which a alone sends"}
    followup._process("a", make("Report", piece=piece), outcome)
    assert kept == [b"weights"]
    piece.data = b"weightz"
    followup._process("a", make("Report", piece=piece), outcome)
    assert outcome.lost["a"] == "site a sent a damaged piece of a file"
    assert kept == [b"weights"]


def test_a_site_s_error_text_is_shown_without_control_characters() -> None:
    followup = followed(["a"])
    outcome = AttemptOutcome()
    followup._process("a", make("Report", state="failed", text="\x1b[2Jgone\n"), outcome)
    assert outcome.states["a"].text == " [2Jgone "


def test_a_missed_quorum_is_an_error_that_names_the_absent_sites(trial: Trial) -> None:
    trial.end("b")
    trial.end("c")
    with pytest.raises(
        FederationFailed, match=r"1 of 3 sites are available, but a stage needs 2(.|\n)*b at 127"
    ):
        trial.federate(federation={"patience": 0.2}, **SETTINGS)


def test_a_restarted_coordinator_resumes_the_run(
    trial: Trial, graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.federate(callbacks=when(36, kill, []), **SETTINGS)
    said: list[str] = []
    run = trial.federate(callbacks=Callbacks(say=said.append), **SETTINGS)
    here = trained_here(graph, tmp_path / "here", **SETTINGS)
    assert run.metrics["finished"]
    assert (run.directory / "model.safetensors").read_bytes() == (
        here.directory / "model.safetensors"
    ).read_bytes()


def test_a_restarted_coordinator_checks_that_sites_have_the_same_data(trial: Trial, graph: Graph) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        trial.federate(callbacks=when(3, kill, []), **SETTINGS)
    trial.end("b")
    table = trial.folder / "b" / "cross.csv"
    *lines, _ = table.read_text().splitlines()
    table.write_text("\n".join(lines) + "\n")
    trial.serve("b")
    with pytest.raises(
        FederationFailed, match="site b has other data than when the run began; put them back"
    ):
        trial.federate(**SETTINGS)


def test_other_sites_get_their_order_after_the_first_site_has_its_checkpoint(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begun = SiteService.begin, list[str]()

    def noted(self: SiteService, pieces: Iterator[bytes]) -> bytes:
        answer = begin(self, pieces)
        begun.append(self.site_data.config.name)
        return answer

    monkeypatch.setattr(SiteService, "begin", noted)
    trial.federate(**SETTINGS | {"train.epochs": 2})
    assert begun[0] == "a"
    assert sorted(begun) == ["a", "b", "c"]


def test_a_slow_site_is_left_out_after_the_deadline(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    import siafu.sites.site_attempt as attempt

    train_rank, release = attempt.train_rank, threading.Event()

    def slowly(comm: Any, *args: Any, **given: Any) -> Any:
        if comm.hosts[comm.rank] == "b" and comm.world_size == 3:
            release.wait(60)
        return train_rank(comm, *args, **given)

    monkeypatch.setattr(attempt, "train_rank", slowly)
    said: list[str] = []
    settings = SETTINGS | {"comm.deadline": 6}
    run = trial.federate(callbacks=Callbacks(say=said.append), federation={"patience": 0.5}, **settings)
    release.set()
    assert run.metrics["finished"]
    assert "site b is too slow; the others go on without it" in said
    assert run.metrics["away"] == ["b"]
