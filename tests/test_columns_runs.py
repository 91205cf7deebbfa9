"""Whole runs on tables with columns of any kind: from CSV to scores, and the same encoding for other tables."""

import csv
import json
import random
import runpy
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pa_csv
import pytest
import torch
from in_process import command

import siafu
from siafu.data.importing import import_graph
from siafu.graph import Graph
from siafu.inference import open_run
from siafu.inference.prediction import smooths
from siafu.launch.sites.config import SiteConfig
from siafu.native import SparseRows
from siafu.store_partitions import partition_store
from siafu.training.procedure import Callbacks

pytestmark = pytest.mark.usefixtures("one_thread")
Siafu = Callable[..., tuple[int, str, str]]
COLUMNS = ["id", "country", "age", "opened", "label"]


def write(path: Path, head: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def people(count: int = 300) -> list[list[object]]:
    """Rows of nodes whose class shows in their country and age."""
    draws = random.Random(0)
    rows: list[list[object]] = []
    for i in range(count):
        label = int(draws.random() < 0.4)
        country = draws.choice(["GB", "DE", "FR"] if label else ["KE", "BR", "FR"])
        age = "" if draws.random() < 0.1 else round(draws.gauss(60 if label else 40, 8))
        opened = f"20{draws.randrange(10, 25)}-{draws.randrange(1, 13):02}-{draws.randrange(1, 29):02}"
        rows.append([f"p{i}", country, age, opened, label])
    return rows


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with people.csv, calls.csv and a store of both."""
    folder, draws = tmp_path_factory.mktemp("tables"), random.Random(1)
    write(folder / "people.csv", COLUMNS, people())
    ends: list[list[object]] = [[f"p{draws.randrange(300)}", f"p{draws.randrange(300)}"] for _ in range(900)]
    write(folder / "calls.csv", ["src", "dst"], ends)
    import_graph(folder / "store", nodes=folder / "people.csv", edges=folder / "calls.csv")
    return folder


@pytest.fixture(scope="module")
def trained(tables: Path) -> Path:
    """The folder of a run on the store."""
    return siafu.train(tables / "store", model="sage", epochs=30, hidden=16, out=tables / "run").directory


@pytest.fixture
def run_siafu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Siafu:
    """Runs a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: command(*arguments, capsys=capsys)


def reimported(
    folder: Path, tables: Path, change: Callable[[list[list[object]]], list[list[object]]]
) -> Path:
    """A store of the same people and calls, after a change of the table of people, head included."""
    rows = change([list(COLUMNS), *people()])
    nodes = write(folder / "people.csv", [str(name) for name in rows[0]], rows[1:])
    import_graph(folder / "store", nodes=nodes, edges=tables / "calls.csv")
    return folder / "store"


def test_from_csv_to_scores_by_three_commands(run_siafu: Siafu, tables: Path, tmp_path: Path) -> None:
    code, out, err = run_siafu(
        "import", "s", "--nodes", tables / "people.csv", "--edges", tables / "calls.csv", "--json"
    )
    assert code == 0, err
    found = json.loads(out)
    assert found["columns"]["node columns"]["country"] == "category: 5 values"
    assert "node column age" in err
    assert "300 labelled nodes were split 60/20/20 by class at random (seed 0)" in err
    code, out, err = run_siafu("train", "s", "--model", "sage", "--epochs", "40", "--out", "run", "--json")
    assert code == 0, err
    assert json.loads(out)["test_accuracy"] > 0.8
    assert 'normalize = "none"' in (tmp_path / "run" / "config.toml").read_text()
    code, _, err = run_siafu("predict", "run", "--out", "p.csv")
    assert code == 0, err
    assert pa_csv.read_csv(tmp_path / "p.csv").column("id").to_pylist()[:2] == ["p0", "p1"]


def test_a_table_with_columns_and_rows_in_another_order_gets_the_same_scores(
    trained: Path, tables: Path, tmp_path: Path
) -> None:
    def turned(rows: list[list[object]]) -> list[list[object]]:
        head, *rest = rows
        return [[row[place] for place in (4, 2, 0, 3, 1)] for row in (head, *rest[::-1])]

    other = siafu.load(reimported(tmp_path, tables, turned))
    assert isinstance(other, Graph)
    expected = siafu.predict(trained)["output"]
    found = siafu.predict(trained, other)["output"]
    order = [int(name.as_py()[1:]) for name in other.node_names]
    torch.testing.assert_close(found, expected[order])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: [row[:2] + row[3:] for row in rows],
            "lacks the column 'age'; the model was trained on country, age",
        ),
        (
            lambda rows: [[*row, name] for row, name in zip(rows, ["shoe", *range(300)], strict=True)],
            "has the column 'shoe', which the model does not know",
        ),
        (
            lambda rows: [[*row[:2], "age" if row[2] == "age" else f"a{row[2]}", *row[3:]] for row in rows],
            "column 'age' is a category here, but a number in the training data; import it with the schema",
        ),
    ],
)
def test_a_table_with_other_columns_is_refused(
    run_siafu: Siafu,
    trained: Path,
    tables: Path,
    tmp_path: Path,
    change: Callable[..., list[list[object]]],
    message: str,
) -> None:
    code, _, err = run_siafu("predict", trained, reimported(tmp_path, tables, change))
    assert code == 1
    assert message in err


def test_columns_and_plain_features_do_not_replace_each_other(
    trained: Path, tables: Path, tmp_path: Path
) -> None:
    graph = siafu.load(tables / "store")
    assert isinstance(graph, Graph)
    plain = graph.encoded()
    with pytest.raises(
        ValueError, match=r"has no columns, but the model was trained on country, age, opened"
    ):
        siafu.predict(trained, plain)
    run = siafu.train(plain, epochs=1, out=tmp_path / "plain")
    assert not (run.directory / "encoder.json").exists()
    with pytest.raises(
        ValueError, match=r"has columns \(country, age, opened\), but the model was trained on plain"
    ):
        siafu.predict(run, graph)


def test_statistics_come_from_the_training_nodes_of_the_run(trained: Path, tables: Path) -> None:
    graph = siafu.load(tables / "store")
    assert isinstance(graph, Graph)
    assert graph.columns is not None
    assert graph.train_mask is not None
    ages = graph.columns[1].values[graph.train_mask.numpy()]
    fields = json.loads((trained / "encoder.json").read_text())
    assert fields["columns"][1]["scaling"]["mean"] == np.nanmean(ages)


def test_a_run_that_was_stopped_resumes_to_the_same_weights(tables: Path, tmp_path: Path) -> None:
    how = {"model": "gcn", "epochs": 12, "hidden": 8, "evaluate_every": 1}
    whole = siafu.train(tables / "store", out=tmp_path / "whole", **how)
    epochs = iter(range(100))
    stopping = Callbacks(should_stop=lambda: "test" if next(epochs) == 5 else None)
    stopped = siafu.train(tables / "store", out=tmp_path / "stopped", callbacks=stopping, **how)
    assert stopped.model is None
    siafu.resume(stopped.directory)
    names = ("model.safetensors", "encoder.json")
    assert all(
        (stopped.directory / name).read_bytes() == (whole.directory / name).read_bytes() for name in names
    )


@pytest.mark.parametrize("method", ["full", "sampled"])
def test_ranks_read_the_features_that_one_rank_reads(tables: Path, tmp_path: Path, method: str) -> None:
    how = {"model": "sage", "method": method, "epochs": 3, "hidden": 8, "dropout": 0.0, "engine": "local"}
    one, two = (
        siafu.train(tables / "store", ranks=ranks, out=tmp_path / str(ranks), **how) for ranks in (1, 2)
    )
    torch.testing.assert_close(
        siafu.predict(one)["output"], siafu.predict(two)["output"], atol=1e-4, rtol=1e-3
    )


def test_each_of_several_seeds_and_a_baseline_can_predict(tables: Path, tmp_path: Path) -> None:
    run = siafu.train(tables / "store", epochs=2, seeds=2, baseline=True, out=tmp_path / "run")
    for path in ("seed-0", "seed-1", "seed-0/baseline"):
        assert siafu.predict(run.directory / path)["output"].shape == (300, 2)


def test_members_of_an_ensemble_and_smoothed_runs_predict_from_columns(tables: Path, tmp_path: Path) -> None:
    smooth = {"correct_and_smooth": {"enabled": True}}
    run = siafu.train(tables / "store", epochs=4, ensemble=2, config=smooth, out=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as: not the graph that the run was trained on
        assert siafu.predict(run.directory)["output"].shape == (300, 2)
    smoothed = replace(run, metrics=run.metrics | {"smoothed": True})
    graph = siafu.load(tables / "store")
    assert isinstance(graph, Graph)
    assert smooths(smoothed, graph)  # the graph of the run, as it is before its columns are encoded
    assert not smooths(smoothed, replace(graph.encoded(), y=None))


def test_a_damaged_or_changed_encoder_is_refused(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    text = (run / "encoder.json").read_text()
    (run / "encoder.json").write_text(text.replace('"GB"', '"GX"'))
    with pytest.raises(ValueError, match=r"encoder.json: changed or damaged"):
        siafu.predict(open_run(run))


def test_another_scale_of_encoded_columns_is_refused(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.normalize is rows, but its features are columns"):
        siafu.train(tables / "store", normalize="rows", out=tmp_path / "run")


def test_links_are_learned_from_columns(tables: Path, tmp_path: Path) -> None:
    run = siafu.train(tables / "store", task="link", epochs=2, hidden=8, out=tmp_path / "run")
    assert siafu.predict(run)["output"].shape == (300, 8)


def test_a_partition_made_before_serves_the_run(tables: Path, tmp_path: Path) -> None:
    store = shutil.copytree(tables / "store", tmp_path / "store")
    partition_store(store, parts=2)
    run = siafu.train(store, ranks=2, engine="local", epochs=1, out=tmp_path / "run")
    assert run.metrics["ranks"] == 2


def test_sites_refuse_columns_that_each_would_encode_its_own_way(tables: Path) -> None:
    from siafu.sites.site_data import load_site_data

    with pytest.raises(
        ValueError, match=r"its features are columns of a table, .* encode them alike at all sites"
    ):
        load_site_data(SiteConfig.model_construct(cross_edges=None), tables / "store")


def test_wide_categories_are_sparse_features(tmp_path: Path) -> None:
    rows: list[list[object]] = [[i, f"c{i % 60}"] for i in range(240)]
    nodes = write(tmp_path / "n.csv", ["id", "shop"], rows)
    edges = write(tmp_path / "e.csv", ["src", "dst"], [[i, (i + 1) % 240] for i in range(240)])
    graph = import_graph(tmp_path / "s", nodes=nodes, edges=edges).graph().encoded()
    assert isinstance(graph.x, SparseRows)
    assert graph.x.shape == (240, 61)
    assert torch.equal(graph.x.to_dense().sum(1), torch.ones(240))


def test_options_that_do_not_go_together_are_wrong_use(run_siafu: Siafu, tables: Path) -> None:
    edges, nodes = tables / "calls.csv", tables / "people.csv"
    for arguments, message in (
        (
            ("--edges", edges, "--labels", nodes, "--labels", nodes),
            "--labels was given 2 times; expected once",
        ),
        (("--events", edges, "--nodes", nodes), "--nodes goes with --edges"),
        (("--events", edges, "--events", edges), "--events was given 2 times"),
        (
            ("--edges", edges, "--nodes", nodes, "--split", "80/10/10", "--split-column", "age"),
            "give either --split or --split-column",
        ),
    ):
        code, _, err = run_siafu("import", "s", *arguments)
        assert code == 2
        assert message in err


def test_info_shows_columns_of_nodes_and_edges(run_siafu: Siafu, tmp_path: Path) -> None:
    rows: list[list[object]] = [[i, (i + 1) % 30, i * 1.5, f"2024-01-{i % 28 + 1:02}"] for i in range(30)]
    write(tmp_path / "e.csv", ["from", "to", "amount", "when"], rows)
    code, _, err = run_siafu(
        "import", "s", "--edges", "e.csv", "--source", "from", "--target", "to", "--weight-column", "amount"
    )
    assert code == 0, err
    assert "read edges: src = from, dst = to, weight = amount" in err
    code, out, err = run_siafu("info", "s", "--verify")
    assert code == 0, err
    assert "edge column when  date" in out
    code, out, _ = run_siafu("info", "s", "--json")
    assert json.loads(out)["edge_columns"] == {"when": "date"}


def test_the_company_example_is_learned_from_its_raw_tables(tmp_path: Path, run_siafu: Siafu) -> None:
    tool = Path(__file__).parents[2] / "shared" / "tools" / "company.py"
    if not tool.is_file():
        pytest.skip(f"no {tool}")
    before, sys.argv = sys.argv, ["company.py", str(tmp_path)]
    try:
        runpy.run_path(str(tool), run_name="__main__")
    finally:
        sys.argv = before
    code, _, err = run_siafu(
        *("import", "bank", "--nodes", "accounts.csv", "--edges", "payments.csv", "--source", "payer"),
        *("--target", "payee", "--labels", "fraud_labels.csv", "--label", "is_fraud"),
    )
    assert code == 0, err
    code, out, err = run_siafu(
        *("train", "bank", "--model", "sage", "--set", "train.metric=roc_auc", "--epochs", "50"),
        *("--out", "run", "--json"),
    )
    assert code == 0, err
    assert json.loads(out)["test_score"] > 0.72  # boosted trees on the accounts' own columns reach 0.70
