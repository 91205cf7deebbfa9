"""Settings apply to some methods, models and tasks: others are refused if asked for, and left out if in a file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from in_process import command
from pydantic import BaseModel

import siafu
from siafu.applying import unmet_condition
from siafu.config import (
    Config,
    build,
    from_assignments,
    parse_toml,
    without_unused,
    write_toml,
)
from siafu.dynamic import DynamicGraph, Protocol
from siafu.graph import Graph
from siafu.run_folder import existing_folder

pytestmark = pytest.mark.usefixtures("one_thread")

TABLES = {
    name: info.annotation
    for name, info in Config.model_fields.items()
    if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)
}
# Settings of a run on a graph that does not change, and the error.
REFUSED = [
    (
        "method=full sampled.batch_size=8",
        "sampled.batch_size is a setting of method sampled, but the method is full; add --method sampled or leave it "
        "out",
    ),
    (
        "sampled.fanout=5",
        "sampled.fanout is a setting of method sampled, but the method is full; add --method sampled or leave it out",
    ),
    (
        "method=sampled pipeline.workers=inline",
        "pipeline.workers is a setting of method pipeline, but the method is sampled; add --method pipeline or leave "
        "it out",
    ),
    (
        "model.heads=2",
        "model.heads is a setting of models gat and gatv2, but the model is gcn; add --model gat or leave it out",
    ),
    (
        "model.kind=sage model.hops=2",
        "model.hops is a setting of model appnp, but the model is sage; add --model appnp or leave it out",
    ),
    (
        "model.kind=auto model.hops=2",
        "model.hops is a setting of model appnp, but the models to try are gcn, sage and gat; add --model appnp or "
        "leave it out",
    ),
    (
        "model.kind=gcn model.band=2",
        "model.band is a setting of model tm-gcn, but the model is gcn; leave it out",
    ),
    ("model.kind=sgc model.hidden=8", "model.hidden does not apply to model sgc; leave it out"),
    (
        "method=lazy lazy.quorum=0.5",
        "lazy.quorum does not apply while lazy.clients is none; set lazy.clients to node or leave it out",
    ),
    (
        "method=lazy lazy.recipe=frugal lazy.bits=8",
        "lazy.bits does not apply while lazy.recipe is frugal; leave it out",
    ),
    (
        "lazy.quorum=0.5",
        "lazy.quorum is a setting of method lazy, but the method is full; add --method lazy or leave it out",
    ),
    (
        "link.negatives=2",
        "link.negatives is a setting of task link, but the task is node; add --task link or leave it out",
    ),
    (
        "task=link train.at_k=5",
        "train.at_k is a setting of tasks node and edge, but the task is link; add --task node or leave it out",
    ),
    (
        "task=link link.recency=true",
        "link.recency is a setting of method snapshots, for graphs that change over time, but the method is full; "
        "leave it out",
    ),
    (
        "snapshots.window=2",
        "snapshots.window is a setting of method snapshots, for graphs that change over time, but the method is full; "
        "leave it out",
    ),
    (
        "train.focal_gamma=1",
        "train.focal_gamma applies only while train.loss is focal, but it is cross_entropy; set train.loss to focal or "
        "leave it out",
    ),
    (
        "correct_and_smooth.scale=2.0",
        "correct_and_smooth.scale applies only while correct_and_smooth.enabled is true, but it is false; set "
        "correct_and_smooth.enabled to true or leave it out",
    ),
    (
        "method=pipeline pipeline.function=f",
        "pipeline.function applies only while pipeline.workers is lambda or http, but it is processes; set "
        "pipeline.workers to lambda or leave it out",
    ),
]
METHODS: dict[str, dict[str, Any]] = {
    "full": {"train": {"epochs": 4}},
    "sampled": {"method": "sampled", "sampled": {"batch_size": 40}, "train": {"epochs": 3}},
    "pipeline": {"method": "pipeline", "pipeline": {"workers": "inline"}, "train": {"epochs": 3}},
    "lazy": {"method": "lazy", "lazy": {"bits": 8}, "train": {"epochs": 4}},
    "auto": {"model": {"kind": "auto"}, "train": {"epochs": 20}},
    "gat": {"model": {"kind": "gat", "heads": 2, "hidden": 8}, "train": {"epochs": 3}},
    "link": {"task": "link", "train": {"epochs": 2}, "model": {"hidden": 8}},
}
# Of several runs, as one file that serves them all.
SHARED = """
[model]
hidden = 8
heads = 2
hops = 3
[train]
epochs = 2
loss = "focal"
focal_gamma = 1.0
[sampled]
batch_size = 40
[lazy]
quorum = 0.5
clients = 20
[pipeline]
workers = "inline"
[snapshots]
window = 2
[link]
negatives = 2
"""


def over_time() -> DynamicGraph:
    src, dst, t = np.random.default_rng(0).integers(0, 12, (3, 200)).astype(np.int64)
    protocol = Protocol(window=2, edge_life=2, negatives=2)
    return DynamicGraph.from_events(src, dst, t, num_nodes=12, undirected=True, protocol=protocol)


@pytest.mark.parametrize("table", TABLES)
def test_every_setting_of_a_table_says_when_it_applies(table: str) -> None:
    applies = TABLES[table].applies  # type: ignore[attr-defined]
    assert list(applies) == list(TABLES[table].model_fields)


def test_conditions_name_settings_and_values_that_there_are() -> None:
    for kind in TABLES.values():
        for each in {each for some in kind.applies.values() for each in some}:  # type: ignore[attr-defined]
            for value in (*each.values, *([] if each.advice is None else [each.advice])):
                given: dict[str, Any] = {}
                table, _, name = each.key.rpartition(".")
                given |= {table: {name: value}} if table else {name: value}
                build(given)


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[settings for settings, _ in REFUSED])
def test_a_setting_that_does_not_apply_is_refused_with_the_nearest_fix(
    graph: Graph, tmp_path: Path, settings: str, message: str
) -> None:
    tables = from_assignments(settings.split())
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        siafu.train(graph, out=tmp_path / "run", config=tables)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("settings", "message"), REFUSED[:5], ids=[settings for settings, _ in REFUSED[:5]])
def test_the_command_line_refuses_it_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, message: str
) -> None:
    sets = [text for setting in settings.split() for text in ("--set", setting)]
    code, _, said = command("train", "karate", *sets, "--out", tmp_path / "run", capsys=capsys)
    assert (code in (1, 2), f"error: {message}\n" in said) == (True, True), said
    assert not (tmp_path / "run").exists()


def test_all_settings_that_do_not_apply_are_told_at_once(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"model\.heads is .*\nmodel\.hops is "):
        siafu.train(graph, heads=2, hops=2)


def test_of_many_settings_that_do_not_apply_the_first_are_told(graph: Graph) -> None:
    everything = build().model_dump(exclude_none=True)
    with pytest.raises(
        ValueError, match=r"^(.*leave it out\n){5}\d\d other settings .* give a TOML file"
    ) as caught:
        siafu.train(graph, config=everything)
    assert len(str(caught.value).splitlines()) == 6


def test_a_graph_that_changes_over_time_decides_the_method_and_the_task(tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"batch_size": 8}, "is a setting of method sampled, but the method is snapshots; leave it out"),
        ({"normalize": "rows"}, "data.normalize does not apply to method snapshots; leave it out"),
        ({"heads": 2}, "is a setting of models gat and gatv2, but the model is evolvegcn-o; leave it out"),
        (
            {"band": 2},
            "is a setting of model tm-gcn, but the model is evolvegcn-o; add --model tm-gcn or leave",
        ),
        (
            {"at_k": 2},
            "is a setting of tasks node and edge, but the task is link; add --task node or leave it",
        ),
    ]
    for settings, message in refused:
        with pytest.raises(ValueError, match=message):
            siafu.train(over_time(), out=tmp_path / "run", **settings)
    run = siafu.train(over_time(), out=tmp_path / "run", epochs=1, hidden=4, window=1, activity=False)
    text = (run.directory / "config.toml").read_text()
    assert ("[snapshots]" in text, "[sampled]" in text, "normalize" in text) == (True, False, False)
    other = siafu.train(over_time(), config=run.directory / "config.toml", out=tmp_path / "again")
    assert weights(run.directory) == weights(other.directory)


@pytest.mark.parametrize(
    ("kind", "method"),
    [("gat", "full"), ("gat", "sampled"), ("gat", "pipeline"), ("gat", "lazy"), ("appnp", "sampled")],
)
def test_one_file_serves_several_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, method: str
) -> None:
    (tmp_path / "all.toml").write_text(SHARED.replace("clients = 20\n", ""))
    asked = (
        "--config",
        tmp_path / "all.toml",
        "--method",
        method,
        "--model",
        kind,
        "--out",
        tmp_path / "run",
    )
    code, _, said = command("train", "karate", *asked, capsys=capsys)
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if "that do not apply to this run" in line)
    other = "model.hops" if kind == "gat" else "model.heads"
    own = {"sampled": "sampled.batch_size", "pipeline": "pipeline.workers", "lazy": "lazy.clients"}.get(
        method
    )
    for key in (other, "snapshots.window", "link.negatives", "lazy.quorum"):
        assert key in line
    for key in ("model.hidden", "train.focal_gamma", own or "train.epochs"):
        assert key not in line
    config = parse_toml(existing_folder(tmp_path / "run").read_config())
    assert (config.model.hidden, config.train.gamma, config.link.negatives) == (8, 1.0, None)
    text = (tmp_path / "run" / "config.toml").read_text()
    assert ("heads" in text, "hops" in text) == (kind == "gat", kind == "appnp")
    tables = {name for name in ("sampled", "pipeline", "lazy", "snapshots", "link") if f"[{name}]" in text}
    assert tables == {method} - {"full"}


def test_a_flag_is_refused_though_the_file_says_so_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "all.toml").write_text(SHARED)
    asked = ("--config", tmp_path / "all.toml", "--set", "sampled.batch_size=40")
    code, _, said = command("train", "karate", *asked, "--out", tmp_path / "run", capsys=capsys)
    assert (code, "sampled.batch_size is a setting of method sampled" in said) == (1, True), said


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_the_config_of_a_run_holds_what_applied_and_repeats_it(
    graph: Graph, tmp_path: Path, name: str
) -> None:
    run = siafu.train(graph, out=tmp_path / "run", config=METHODS[name])
    config = parse_toml(existing_folder(run.directory).read_config())
    assert write_toml(config) == existing_folder(run.directory).read_config()
    written = (run.directory / "config.toml").read_text()
    for table, kind in TABLES.items():
        _, _, lines = written.partition(f"[{table}]\n")
        lines = lines.partition("\n\n")[0]
        found = {line.partition(" = ")[0] for line in lines.splitlines()} & set(kind.model_fields)
        assert not {key for key in found if unmet_condition(config, f"{table}.{key}")}
    other = siafu.train(graph, config=run.directory / "config.toml", out=tmp_path / "again")
    assert weights(other.directory) == weights(run.directory)
    assert existing_folder(other.directory).read_config() == existing_folder(run.directory).read_config()


def test_a_config_that_lists_all_settings_is_read_resumed_and_predicted_from(
    graph: Graph, tmp_path: Path
) -> None:
    left = iter([None, "SIGTERM"])
    stop = siafu.run.Callbacks(should_stop=lambda: next(left, None))
    whole = siafu.train(graph, out=tmp_path / "whole", epochs=6, hidden=8)
    run = siafu.train(graph, out=tmp_path / "run", epochs=6, hidden=8, search="off", callbacks=stop)
    folder = existing_folder(run.directory)
    rest = "\n[sampled]\nbatch_size = 1024\n\n[lazy]\nquorum = 0.0\n\n[link]\nrecency = false\n"
    folder.write_config(folder.read_config() + rest)
    assert parse_toml(folder.read_config()) == parse_toml(write_toml(run.settings))
    (folder.checkpoint).unlink()  # it belongs to the text before
    done = siafu.resume(run.directory, graph=graph)
    assert done.metrics["finished"]
    assert weights(done.directory) == weights(whole.directory)
    assert siafu.predict(siafu.open(run.directory), graph)["output"].shape[0] == graph.num_nodes


def test_settings_that_are_left_out_have_their_defaults_again() -> None:
    config = build({"method": "full", "sampled": {"batch_size": 8}, "model": {"heads": 2, "hidden": 8}})
    assert without_unused(config) == build({"model": {"hidden": 8}})


def test_an_unused_setting_decides_about_no_other() -> None:
    config = build({"lazy": {"recipe": "frugal", "clients": "node"}, "correct_and_smooth": {"enabled": True}})
    assert unmet_condition(config, "lazy.bits") == unmet_condition(config, "sampled.fanout")._replace(  # type: ignore[union-attr]
        values=("lazy",), advice="lazy"
    )
    assert unmet_condition(config, "correct_and_smooth.scale") is None


def test_a_module_of_your_own_has_no_settings_of_models(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"model\.hidden does not apply to model custom; leave it out"):
        siafu.train(graph, model=torch.nn.Linear(12, 3), hidden=8)


def test_a_setting_of_one_of_the_kinds_that_race_applies(graph: Graph, tmp_path: Path) -> None:
    run = siafu.train(graph, model="auto", heads=2, epochs=4, out=tmp_path / "run")
    kind = run.settings.model.kind
    assert ("heads = 2" in (run.directory / "config.toml").read_text()) == (kind == "gat")


SEARCHES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"batch_size": 8}, {}, "sampled.batch_size is a setting of method sampled, but the method is full"),
    (
        {"model": "gcn", "heads": 2},
        {},
        "model.heads is a setting of models gat and gatv2, but the model is gcn; add --model gat",
    ),
    (
        {"hidden": 8},
        {"model.kind": ["gcn", "sage"], "sampled.batch_size": [8, 16]},
        "space: sampled.batch_size is a setting of method sampled, but the method is full",
    ),
    (
        {"heads": 2},
        {"model.kind": ["gcn", "sage"]},
        "model.heads is a setting of models gat and gatv2, but the models to try are gcn and sage; add --model gat",
    ),
    ({}, {"model.hops": [1, 2]}, "space: model.hops is no setting of gcn"),
]


@pytest.mark.parametrize(("settings", "space", "message"), SEARCHES)
def test_a_search_refuses_settings_that_do_not_apply(
    graph: Graph, tmp_path: Path, settings: dict[str, Any], space: dict[str, Any], message: str
) -> None:
    pytest.importorskip("optuna")
    from siafu.tuning import tune

    with pytest.raises(ValueError, match=message):
        tune(graph, trials=1, out=tmp_path / "search", space=space or None, **settings)


def test_a_search_gives_a_fixed_setting_to_the_trials_whose_model_has_it(
    graph: Graph, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    from siafu.tuning import tune

    space = {"model.kind": ["gcn", "gat"], "model.hidden": [4, 8]}
    found = tune(graph, trials=3, epochs=2, heads=2, space=space, out=tmp_path / "search")
    assert {trial.state for trial in found.trials} == {"completed"}
    for trial in found.trials:
        text = (found.directory / f"trial-{trial.number}" / "config.toml").read_text()
        assert ("heads = 2" in text) == ('kind = "gat"' in text)
