"""Runs from Python: train, resume, open, predict; equal results, and refusals."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import siafu
from siafu.data import community, random_labels
from siafu.graph import Block, Graph
from siafu.nn import Gcn
from siafu.nn.config import ATTENTION
from siafu.results.read import read_run
from siafu.run_folder import RunFolder
from siafu.training.procedure import Callbacks

KINDS = ["gcn", "sage", "gat", "gatv2", "gin", "mlp"]


pytestmark = pytest.mark.usefixtures("one_thread")


def small(kind: str) -> dict[str, Any]:
    """Settings of a small model of a kind."""
    return {"hidden": 8, "heads": 2} if kind in ATTENTION else {"hidden": 8}


def stop_after(epochs: int) -> Callbacks:
    """Stops a run once, so many epochs after it began."""
    left = iter([None] * (epochs - 1) + ["SIGTERM"])
    return Callbacks(lambda *_, **__: None, lambda: next(left, None))


class Own(nn.Module):
    """A user's model with a layer of siafu's, and dropout and batch norm of torch's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.drop, self.norm, self.last = (
            Gcn(12, 8),
            nn.Dropout(),
            nn.BatchNorm1d(8),
            nn.Linear(8, 3),
        )

    def forward(self, block: Block, x: Tensor) -> Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(block, x)))))


def weights(run: siafu.Run | Path) -> bytes:
    path = run if isinstance(run, Path) else run.directory
    return (path / "model.safetensors").read_bytes()


def test_the_documented_way_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = siafu.load("karate")
    run = siafu.train(graph, model="gcn", method="full", epochs=30, seed=0)
    assert run.directory == Path("runs/karate-gcn-full-1")
    assert run.test_accuracy == run.metrics["test_accuracy"] > 0.5
    assert isinstance(run.model, nn.Module)
    again = siafu.open(run.directory)
    assert again.metrics == run.metrics
    assert again.settings == run.settings
    one, other = siafu.predict(run, graph), siafu.predict(again, graph)
    assert torch.equal(one["output"], other["output"])
    assert one["output"].shape == (34, 4)
    assert siafu.train("karate", epochs=1).directory == Path("runs/karate-gcn-full-2")


def test_a_run_leaves_the_files_it_promises(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, out=tmp_path / "run", epochs=2)
    found = sorted(
        str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*") if path.is_file()
    )
    assert found == [
        *(".lock", "checkpoint/latest.safetensors", "config.toml", "events.jsonl", "inputs.safetensors"),
        *("metrics.json", "model.safetensors"),
    ]


def test_predictions_are_what_the_metrics_were_counted_on(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=5)
    guess = siafu.predict(siafu.open(tmp_path / "run"), graph)["output"].argmax(1)
    assert graph.y is not None
    assert graph.test_mask is not None
    right = (guess == graph.y)[graph.test_mask].double().mean()
    assert run.test_accuracy == pytest.approx(float(right))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(
    graph: Graph, tmp_path: Path, kind: str
) -> None:
    def train(name: str, seed: int) -> bytes:
        return weights(
            siafu.train(graph, model=kind, out=tmp_path / name, epochs=3, seed=seed, **small(kind))
        )

    first = train("one", 5)
    assert train("again", 5) == first
    assert train("other", 6) != first


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_resumes_exactly(graph: Graph, tmp_path: Path, kind: str) -> None:
    settings = {"model": kind, "epochs": 6, "norm": "batch", **small(kind)}
    whole = siafu.train(graph, out=tmp_path / "whole", **settings)
    stopped = siafu.train(graph, out=tmp_path / "run", callbacks=stop_after(2), **settings)
    assert (stopped.metrics["finished"], stopped.metrics["epochs"], stopped.model) == (False, 2, None)
    resumed = siafu.resume(tmp_path / "run", graph=graph)
    assert weights(resumed) == weights(whole)
    assert resumed.metrics["test_score"] == whole.metrics["test_score"]


def test_a_users_module_trains_resumes_and_opens_as_ours_do(graph: Graph, tmp_path: Path) -> None:
    whole = siafu.train(graph, model=Own(), out=tmp_path / "whole", epochs=8)
    assert (whole.metrics["model"], whole.test_accuracy > 1 / 3) == ("custom", True)
    siafu.train(graph, model=Own(), out=tmp_path / "run", epochs=8, callbacks=stop_after(3))
    with pytest.raises(ValueError, match="trained a module of your own; resume it from Python with model="):
        siafu.resume(tmp_path / "run", graph=graph)
    siafu.resume(tmp_path / "run", graph=graph, model=Own())
    assert weights(tmp_path / "run") == weights(whole)
    with pytest.raises(ValueError, match="trained a module of your own; open it from Python with model="):
        siafu.open(tmp_path / "run")
    opened = siafu.open(tmp_path / "run", model=Own())
    assert torch.equal(siafu.predict(opened, graph)["output"], siafu.predict(whole, graph)["output"])
    with pytest.raises(ValueError, match="embeddings are known of siafu's own models only"):
        siafu.predict(opened, graph, embeddings=True)


def test_random_labels_are_learned_no_better_than_by_chance(tmp_path: Path) -> None:
    graph = random_labels(community(2000, degree=10, classes=4, features=16))
    run = siafu.train(graph, out=tmp_path / "run", epochs=40, hidden=32)
    assert abs(run.test_accuracy - 1 / 4) < 0.08  # 500 nodes: four deviations


def test_the_graph_is_worth_more_than_the_features_alone(tmp_path: Path) -> None:
    graph = community(1000, degree=10, classes=4, features=16)
    run = siafu.train(graph, out=tmp_path / "run", epochs=40, baseline=True)
    assert run.metrics["baseline"]["model"] == "mlp"
    assert run.metrics["test_score"] > run.metrics["baseline"]["test_score"] + 0.1
    alone = siafu.train(graph, out=tmp_path / "alone", epochs=40, model="mlp")
    assert alone.metrics["test_score"] == run.metrics["baseline"]["test_score"]


@pytest.mark.parametrize("stops", [[3], [6], [3, 4, 2]])
def test_a_run_with_a_baseline_resumes_exactly_wherever_it_stopped(
    graph: Graph, tmp_path: Path, stops: list[int]
) -> None:
    whole = siafu.train(graph, out=tmp_path / "whole", epochs=5, baseline=True)
    run = siafu.train(graph, out=tmp_path / "run", epochs=5, baseline=True, callbacks=stop_after(stops[0]))
    for epochs in stops[1:]:
        assert not run.metrics["finished"]
        run = siafu.resume(tmp_path / "run", graph=graph, callbacks=stop_after(epochs))
    assert not run.metrics["finished"]
    assert not (tmp_path / "run" / "metrics.json").exists()
    run = siafu.resume(tmp_path / "run", graph=graph)
    assert weights(run) == weights(whole)
    assert weights(tmp_path / "run" / "baseline") == weights(tmp_path / "whole" / "baseline")
    assert run.metrics["baseline"]["test_score"] == whole.metrics["baseline"]["test_score"]


def test_several_seeds_give_means_and_deviations(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=4, seed=7, seeds=3, baseline=True)
    each = [siafu.open(tmp_path / "run" / f"seed-{place}") for place in range(3)]
    assert [one.metrics["seed"] for one in each] == [7, 8, 9]
    scores = torch.tensor([one.test_accuracy for one in each], dtype=torch.float64)
    assert run.metrics["test_accuracy"] == pytest.approx(float(scores.mean()))
    assert run.metrics["test_accuracy_std"] == pytest.approx(float(scores.std()))
    assert (run.metrics["seeds"], run.metrics["finished"], run.model) == (3, True, None)
    without = torch.tensor([one.metrics["baseline"]["test_score"] for one in each], dtype=torch.float64)
    assert run.metrics["baseline"]["test_score"] == pytest.approx(float(without.mean()))
    assert siafu.open(tmp_path / "run").metrics == run.metrics
    with pytest.raises(ValueError, match=r"holds 3 runs; choose one, such as .*seed-0"):
        siafu.predict(run, graph)
    alone = siafu.train(graph, out=tmp_path / "alone", epochs=4, seed=8)
    assert weights(alone) == weights(each[1])


def test_several_seeds_resume_where_they_stopped(graph: Graph, tmp_path: Path) -> None:
    whole = siafu.train(graph, out=tmp_path / "whole", epochs=4, seeds=3)
    stopped = siafu.train(graph, out=tmp_path / "run", epochs=4, seeds=3, callbacks=stop_after(6))
    assert (stopped.metrics["finished"], stopped.metrics["run"]) == (False, str(tmp_path / "run"))
    run = siafu.resume(tmp_path / "run", graph=graph)
    assert run.metrics["test_accuracy"] == whole.metrics["test_accuracy"]
    for place in range(3):
        assert weights(tmp_path / "run" / f"seed-{place}") == weights(tmp_path / "whole" / f"seed-{place}")


def test_several_seeds_of_a_users_module_each_begin_with_its_weights(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, model=Own(), out=tmp_path / "run", epochs=3, seeds=2)
    alone = siafu.train(graph, model=Own(), out=tmp_path / "alone", epochs=3, seed=1)
    assert weights(tmp_path / "run" / "seed-1") == weights(alone)


def test_resuming_a_finished_run_only_opens_it(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=3)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    again = siafu.resume(tmp_path / "run")  # needs no graph either
    assert again.metrics == run.metrics
    assert again.model is not None
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_a_run_without_a_checkpoint_begins_again(graph: Graph, tmp_path: Path) -> None:
    whole = siafu.train(graph, out=tmp_path / "whole", epochs=4)
    siafu.train(graph, out=tmp_path / "run", epochs=4, callbacks=stop_after(2))
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    assert weights(siafu.resume(tmp_path / "run", graph=graph)) == weights(whole)
    phases = [
        json.loads(line)["phase"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    ]
    assert phases.count("start") == 2
    assert phases.count("resume") == 1


def test_a_run_is_not_resumed_on_other_data(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, out=tmp_path / "run", epochs=4, callbacks=stop_after(1))
    assert graph.x is not None
    with pytest.raises(ValueError, match="trained on other data: community now has the fingerprint"):
        siafu.resume(tmp_path / "run", graph=replace(graph, x=graph.x + 1))
    with pytest.raises(
        ValueError, match="trained on a graph given in Python; resume it from there with graph="
    ):
        siafu.resume(tmp_path / "run")


def test_an_unfinished_run_is_not_opened(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=4, callbacks=stop_after(1))
    with pytest.raises(ValueError, match=r'has not ended; continue it with "siafu resume'):
        siafu.open(tmp_path / "run")
    with pytest.raises(ValueError, match=r'stopped before its end; continue it with "siafu resume'):
        siafu.predict(run, graph)


def test_a_path_is_found_again_from_another_folder(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from siafu.store import write_store

    (tmp_path / "there").mkdir()
    write_store(graph, tmp_path / "there" / "store")
    monkeypatch.chdir(tmp_path / "there")
    siafu.train("store", out=tmp_path / "run", epochs=4, callbacks=stop_after(1))
    monkeypatch.chdir(tmp_path)
    assert siafu.resume("run").metrics["finished"]


def test_reordering_is_invisible(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    off = siafu.train(graph, out=tmp_path / "off", epochs=5, reorder="off")
    on = siafu.train(graph, out=tmp_path / "on", epochs=5, reorder="on")
    one = siafu.predict(off, graph)["output"]
    monkeypatch.setattr("siafu.training.inputs._REORDER_FROM", 1)
    other = siafu.predict(on, graph)["output"]
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_features_train_every_kind(graph: Graph, tmp_path: Path, kind: str) -> None:
    assert graph.x is not None
    narrow = replace(graph, x=graph.x.bfloat16())
    wide = replace(graph, x=graph.x.bfloat16().float())
    one = siafu.train(narrow, model=kind, out=tmp_path / "narrow", epochs=3, **small(kind))
    other = siafu.train(wide, model=kind, out=tmp_path / "wide", epochs=3, **small(kind))
    outputs = [siafu.predict(run, each)["output"] for run, each in ((one, narrow), (other, wide))]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def with_labels(graph: Graph, make: Callable[[Tensor], Tensor]) -> Graph:
    assert graph.y is not None
    return replace(graph, y=make(graph.y))


def test_many_labels_are_learned(graph: Graph, tmp_path: Path) -> None:
    labels = with_labels(graph, lambda y: torch.nn.functional.one_hot(y, 3).to(torch.uint8))
    run = siafu.train(labels, out=tmp_path / "run", epochs=60, class_weights="balanced")
    assert run.metrics["metric"] == "micro_f1"
    assert run.metrics["test_score"] == run.metrics["test_micro_f1"] > 0.5
    with pytest.raises(AttributeError, match="no test accuracy: this run measured micro_f1"):
        _ = run.test_accuracy


@pytest.mark.parametrize("targets", [1, 2])
def test_numbers_are_learned(graph: Graph, tmp_path: Path, targets: int) -> None:
    numbers = with_labels(graph, lambda y: y.float()[:, None].repeat(1, targets))
    run = siafu.train(numbers, out=tmp_path / "run", epochs=60)
    assert (run.metrics["metric"], run.metrics["task"]) == ("mae", "regression")
    assert run.metrics["test_mae"] < 0.65  # the mean of the classes 0, 1 and 2 would be off by 0.67
    assert siafu.predict(run, numbers)["output"].shape == (240, targets)


def test_embeddings_are_what_the_last_layer_reads(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=2, hidden=8)
    found = siafu.predict(run, graph, embeddings=True, out=tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").column_names == ["id", "class", "probability", "embedding"]
    assert found["embedding"].shape == (240, 8)
    assert isinstance(run.model, nn.Module)
    torch.testing.assert_close(run.model.layers[-1](graph.block, found["embedding"]), found["output"])  # type: ignore[operator, union-attr, index]


def test_predict_takes_the_folder_of_a_run_and_the_name_of_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = siafu.train("karate", out="run", epochs=2)
    expected = siafu.predict(run, siafu.load("karate"))["output"]
    for folder in ("run", Path("run")):
        for graph in (None, "karate", siafu.load("karate")):
            assert torch.equal(siafu.predict(folder, graph)["output"], expected)


@pytest.mark.parametrize(
    ("run", "given", "message"),
    [
        ("absent", None, "absent: no such folder; give the folder of a run"),
        (7, None, "run is a int; expected what siafu.train returned, or a run's folder"),
        ("run", 7, "the graph is a int; expected a siafu Graph or DynamicGraph, a PyG Data"),
        ("run", "absent", "no data set or path 'absent'"),
        ("run", None, "run: trained on a graph given in Python; name the data to predict"),
    ],
)
def test_predict_refuses_other_types(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any, given: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    siafu.train(graph, out="run", epochs=1)
    with pytest.raises(ValueError, match=message):
        siafu.predict(run, given)


def test_a_graph_with_other_features_is_not_predicted(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, out=tmp_path / "run", epochs=2)
    assert graph.x is not None
    with pytest.raises(ValueError, match=r"community: has 5 features, but the model was trained on 12"):
        siafu.predict(run, replace(graph, x=graph.x[:, :5]))


def test_settings_come_from_keywords_and_tables(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(
        graph,
        out=tmp_path / "run",
        config={"model": {"kind": "sage", "hidden": 4}, "train": {"epochs": 9}},
        epochs=2,
    )
    assert (run.metrics["model"], run.settings.model.hidden, run.metrics["epochs"]) == ("sage", 4, 2)
    with pytest.raises(ValueError, match=r"hiden is not a setting; did you mean hidden\?"):
        siafu.train(graph, out=tmp_path / "other", hiden=4)
    assert not (tmp_path / "other").exists()


def test_nothing_is_written_for_a_graph_that_cannot_be_trained_on(graph: Graph, tmp_path: Path) -> None:
    for bad in (replace(graph, y=None), replace(graph, train_mask=None)):
        with pytest.raises(ValueError, match="community: no "):
            siafu.train(bad, out=tmp_path / "run")
        with pytest.raises(ValueError, match="community: no "):
            siafu.train(bad, out=tmp_path / "run", seeds=2)
    assert not (tmp_path / "run").exists()


def fail_in_the_first_epoch(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("siafu.methods.full.procedure.set_keys", fail)


@pytest.mark.parametrize("more", [{}, {"seeds": 2}, {"ranks": 2, "engine": "local"}])
@pytest.mark.parametrize("out", [None, "new/folder", "there"])
def test_a_run_that_fails_before_its_first_epoch_leaves_nothing_behind(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str | None, more: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / ".notes").touch()
    fail_in_the_first_epoch(monkeypatch, ValueError("cannot be"))
    with pytest.raises(ValueError, match="cannot be"):
        siafu.train(graph, out=out, **more)
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "there",
        "there/.notes",
    ]


def test_a_run_that_is_interrupted_before_its_first_epoch_can_be_resumed(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        fail_in_the_first_epoch(patched, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt) as interrupted:
            siafu.train(graph, out=tmp_path / "run", epochs=2)
    (note,) = interrupted.value.__notes__
    assert note == f"go on with: siafu.resume({str(tmp_path / 'run')!r}, graph=…) in Python"
    assert siafu.resume(tmp_path / "run", graph=graph).metrics["finished"]


def test_a_run_that_fails_after_an_epoch_keeps_its_folder(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(epoch: int, *_: Any, **__: Any) -> None:
        if epoch == 2:
            raise ValueError("cannot be")

    with pytest.raises(ValueError, match="cannot be"):
        siafu.train(graph, out=tmp_path / "run", epochs=3, callbacks=Callbacks(fail))
    assert siafu.resume(tmp_path / "run", graph=graph).metrics["finished"]


def test_a_folder_that_holds_something_is_refused(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, out=tmp_path / "run", epochs=1)
    with pytest.raises(
        ValueError, match=r'run: already holds a run; continue it with "siafu resume .*run" or choose'
    ):
        siafu.train(graph, out=tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"other: not empty \(it holds notes.txt\); choose another --out"):
        siafu.train(graph, out=tmp_path / "other")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file: a file stands there; choose another --out"):
        siafu.train(graph, out=tmp_path / "file")


def test_an_empty_folder_and_one_with_the_leftovers_of_a_kill_are_accepted(
    graph: Graph, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.toml.0123456789abcdef.tmp").write_text("half")
    siafu.train(graph, out=tmp_path / "run", epochs=1)
    assert not list((tmp_path / "run").glob("*.tmp"))


def test_a_folder_that_another_process_writes_is_refused(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, out=tmp_path / "run", epochs=4, callbacks=stop_after(1))
    with RunFolder(tmp_path / "run").locked():
        with pytest.raises(ValueError, match="run: another process is writing this run; wait for it"):
            siafu.resume(tmp_path / "run", graph=graph)
        with pytest.raises(ValueError, match="run: another process is writing this run; wait for it"):
            siafu.train(graph, out=tmp_path / "run")
    assert siafu.resume(tmp_path / "run", graph=graph).metrics["finished"]


@pytest.mark.parametrize("action", [siafu.resume, siafu.open])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, action: Callable[[Path], siafu.Run]) -> None:
    with pytest.raises(ValueError, match="nothing: no such folder; give the folder of a run"):
        action(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"not a run: it has no config\.toml"):
        action(tmp_path)


def test_progress_is_shown_on_a_terminal_and_in_a_notebook(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    siafu.train(graph, out=tmp_path / "run", epochs=1)
    assert capsys.readouterr() == ("", ""), "a library that nobody watches is silent"


def two_cliques() -> siafu.Graph:
    """Two cliques of ten nodes, joined by one edge; nothing is known of the nodes but the side of a few."""
    pairs = [(a, b) for side in (0, 10) for a in range(side, side + 10) for b in range(side, a)] + [(9, 10)]
    place = torch.arange(20)
    return siafu.Graph.from_edges(
        torch.tensor(pairs).T,
        y=(place >= 10).long(),
        train_mask=place % 5 == 0,
        val_mask=place % 5 == 1,
        test_mask=place % 5 > 1,
        undirected=True,
    )


def test_a_graph_without_features_is_learned_by_a_row_for_each_node(tmp_path: Path) -> None:
    graph = two_cliques()
    run = siafu.train(graph, out=tmp_path / "run", epochs=60)
    assert run.test_accuracy == 1
    opened = siafu.open(tmp_path / "run")
    predicted = siafu.predict(opened, graph, embeddings=True)
    assert predicted["output"].argmax(1).tolist() == graph.y.tolist()
    assert predicted["embedding"].shape == (20, 64)


def test_learned_rows_belong_to_nodes_in_any_order(tmp_path: Path) -> None:
    graph = two_cliques()
    plain, mixed = (
        siafu.train(graph, out=tmp_path / reorder, epochs=5, reorder=reorder) for reorder in ("off", "on")
    )
    for one, other in zip(plain.model.parameters(), mixed.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_learned_rows_are_refused_for_other_nodes(tmp_path: Path) -> None:
    run = siafu.train(two_cliques(), out=tmp_path / "run", epochs=2)
    with pytest.raises(ValueError, match="the 20 nodes it was trained on"):
        siafu.predict(run, siafu.load("karate"))


def test_a_module_of_ones_own_is_refused_a_graph_without_features(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no features for your module"):
        siafu.train(two_cliques(), model=Gcn(4, 2), out=tmp_path / "run")


def test_a_run_in_a_folder_with_planted_links_leaves_their_targets_alone(
    graph: Graph, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    for planted in (".config.toml.tmp", ".metrics.json.tmp", ".model.safetensors.tmp"):
        (run / planted).symlink_to(tmp_path / "secret")
    siafu.train(graph, out=run, epochs=1)
    assert (tmp_path / "secret").read_text() == "mine"


def test_a_planted_link_in_the_place_of_the_lock_is_refused(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"\.lock: is a symbolic link"):
        siafu.train(graph, out=tmp_path / "run", epochs=1)
    assert (tmp_path / "secret").read_text() == "mine"


def test_a_run_that_was_stopped_and_resumed_is_whole(graph: Graph, tmp_path: Path) -> None:
    siafu.train(graph, out=tmp_path / "run", epochs=4, callbacks=stop_after(2))
    assert read_run(tmp_path / "run").damage == ()
    siafu.resume(tmp_path / "run", graph=graph)
    record = read_run(tmp_path / "run")
    assert (record.damage, record.notes, record.epochs.epoch.tolist()) == ((), (), [1, 2, 3, 4])
