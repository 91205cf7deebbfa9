"""Import of event tables: the dynamic graph, and errors for invalid events."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siafu.data.importing import external_sort, import_events
from siafu.dynamic import DynamicGraph
from siafu.store import DynamicStore

EVENTS = {
    "src": [0, 1, 2, 0, 3],
    "dst": [1, 2, 0, 3, 0],
    "t": [0, 5, 12, 12, 45],
    "w": [0.5, 1.0, 2.0, 3.0, 4.0],
}


def write(path: Path, columns: dict[str, object]) -> Path:
    """Write columns as what the suffix says."""
    if path.suffix == ".npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
        return path
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        pa_csv.write_csv(table, path, pa_csv.WriteOptions(delimiter=delimiter, quoting_style="none"))
    return path


def events_of(graph: DynamicGraph) -> list[tuple[object, ...]]:
    """(Step, source, target, weight), by the user's own ids, in the order of the log."""
    names = range(graph.num_nodes) if graph.node_names is None else graph.node_names.to_pylist()
    step = torch.arange(graph.num_steps).repeat_interleave(graph.step_ptr.diff())
    weight = torch.ones(graph.num_events) if graph.weight is None else graph.weight
    ends = zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
    return [
        (at, names[src], names[dst], w)
        for at, (src, dst), w in zip(step.tolist(), ends, weight.tolist(), strict=True)
    ]


def imported(
    tmp_path: Path, columns: dict[str, object], *, file: str = "e.csv", **how: object
) -> DynamicGraph:
    store: DynamicStore = import_events(tmp_path / "store", events=write(tmp_path / file, columns), **how)
    return store.graph()


@pytest.mark.parametrize("file", ["e.csv", "e.tsv", "e.parquet", "e.npz"])
def test_events_are_cut_into_steps_and_empty_ones_are_kept(tmp_path: Path, file: str) -> None:
    said: list[str] = []
    graph = imported(tmp_path, EVENTS, file=file, step=10, say=said.append)
    assert graph.num_steps == 5
    assert events_of(graph) == [(0, 0, 1, 0.5), (0, 1, 2, 1), (1, 2, 0, 2), (1, 0, 3, 3), (4, 3, 0, 4)]
    assert graph.step_time.tolist() == [0, 10, 20, 30, 40]
    assert graph.protocol.step == 10
    assert said == [
        "2 of 5 steps have no event; they are kept",
        "steps of 10 do not divide the span of 45; the last one is shorter than the others",
    ]


@pytest.mark.parametrize("how", [{"steps": 3}, {}])
def test_a_number_of_steps_or_each_distinct_time(tmp_path: Path, how: dict[str, int]) -> None:
    graph = imported(tmp_path, EVENTS, **how)
    wanted = [0, 0, 0, 0, 2] if how else [0, 1, 2, 2, 3]
    assert [event[0] for event in events_of(graph)] == wanted
    assert graph.num_steps == (3 if how else 4)


event_lists = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-40, 40)), min_size=1, max_size=40
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=event_lists,
    size=st.integers(1, 7),
    step=st.integers(1, 30),
    file=st.sampled_from(["parquet", "npz"]),
)
def test_events_in_any_order_give_the_graph_of_the_same_events_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    events: list[tuple[int, int, int]],
    size: int,
    step: int,
    file: str,
) -> None:
    src, dst, t = (np.array(column) for column in zip(*events, strict=True))
    weight, label = np.arange(len(t), dtype=np.float32), np.arange(len(t)) % 3 - 1
    columns = {"src": src, "dst": dst, "t": t, "w": weight, "label": label, "num_nodes": 6, "edge_y": label}
    wanted = {
        "parquet": ("src", "dst", "t", "w", "label"),
        "npz": ("src", "dst", "t", "w", "num_nodes", "edge_y"),
    }
    folder, said = tmp_path_factory.mktemp("events"), []
    given = {name: columns[name] for name in wanted[file]}
    labels = folder / "y.npy"
    np.save(labels, np.arange(6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "_RANGE_EDGES", size)  # so that many small ranges are sorted apart
        graph = imported(folder, given, file=f"e.{file}", step=step, labels=labels, say=said.append)
    same = DynamicGraph.from_events(
        src, dst, t, step=step, weight=weight, edge_y=label, num_nodes=6, y=np.arange(6)
    )
    assert graph.fingerprint == same.fingerprint
    late = int((t < np.maximum.accumulate(t)).sum())
    assert (f"{late} of {len(t)} events come after one of a later time; sorted by step" in said) == (late > 0)


def test_string_ids_are_numbered_by_first_appearance_and_kept(tmp_path: Path) -> None:
    columns = {"src": ["b", "a", "c"], "dst": ["a", "żuk", "b"], "t": [1, 0, 1]}
    graph = imported(tmp_path, columns)
    assert graph.node_names.to_pylist() == ["b", "a", "żuk", "c"]
    assert events_of(graph) == [(0, "a", "żuk", 1), (1, "b", "a", 1), (1, "c", "b", 1)]


def test_without_names_the_first_columns_are_source_target_time_and_weight(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("0,1,10,2.5\n1,0,11,3.5\n")
    graph = import_events(tmp_path / "store", events=tmp_path / "e.csv").graph()
    assert events_of(graph) == [(0, 0, 1, 2.5), (1, 1, 0, 3.5)]


def test_time_stamps_become_seconds(tmp_path: Path) -> None:
    stamps = [datetime(1970, 1, 1, 0, 0, 10), datetime(1970, 1, 2)]
    for file in ("e.csv", "e.parquet"):
        path = write(tmp_path / file, {"src": [0, 1], "dst": [1, 0], "t": stamps})
        graph = import_events(tmp_path / file.replace(".", "_"), events=path, step=3600).graph()
        assert graph.num_steps == 24
        assert graph.step_time[0] == 10


def test_features_and_labels_go_along(tmp_path: Path) -> None:
    events = write(tmp_path / "e.csv", {"src": ["a", "b"], "dst": ["b", "c"], "t": [0, 1]})
    features = write(tmp_path / "x.csv", {"id": ["c", "b", "a"], "f": [3.0, 2.0, 1.0]})
    labels = write(tmp_path / "y.csv", {"id": ["a", "c"], "label": ["good", "bad"]})
    graph = import_events(tmp_path / "store", events=events, features=features, labels=labels).graph()
    assert graph.x.tolist() == [[3], [2], [1]]
    assert graph.y.tolist() == [0, -1, 1]
    assert graph.class_names == ("bad", "good")
    assert events_of(graph) == [(0, "a", "b", 1), (1, "b", "c", 1)]


def test_features_and_targets_by_step_go_along(tmp_path: Path) -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(4, 3, 2), np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    columns = {"src": [0, 1], "dst": [1, 0], "t": [0, 3]}
    how = {"step": 1, "features": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}
    graph = imported(tmp_path, columns, **how)
    assert graph.num_nodes == 3
    assert graph.x.tolist() == x.tolist()
    assert graph.y.tolist() == y.tolist()
    with pytest.raises(ValueError, match=r"x.npy is \(4, 3, 2\); expected \(2, 3, F\)"):
        import_events(tmp_path / "other", events=tmp_path / "e.csv", step=2, features=tmp_path / "x.npy")


WRONG = {
    "nan weight": (
        {**EVENTS, "w": [0.5, 1, float("nan"), 3, 4]},
        {},
        "line 4, column 'w' is nan; expected a finite",
    ),
    "no number": ({**EVENTS, "t": ["0", "5", "x", "9", "9"]}, {}, "line 4, column 't': 'x' is not a number"),
    "nan time": (
        {**EVENTS, "t": [0, 5, float("nan"), 9, 9]},
        {},
        "line 4, column 't' is empty or NaN; expected the time",
    ),
    "no time": ({**EVENTS, "t": [0, 5, None, 9, 9]}, {}, "line 4, column 't' is empty or NaN; expected"),
    "negative": ({**EVENTS, "src": [0, 1, -2, 0, 3]}, {}, "line 4, column 'src' is -2; node ids start at 0"),
    "no t": ({"src": [0], "dst": [1], "w": [1.0]}, {}, "has no column 't'"),
    "two": ({"src": [0], "dst": [1]}, {}, "has the columns src, dst; expected src, dst and t"),
    "step": (EVENTS, {"step": 0.0}, "a step of 0.0; expected a positive length"),
    "steps": (EVENTS, {"steps": 0}, "0 steps; expected at least one"),
    "short": (EVENTS, {"step": 1e-6}, "at most 1000000: give a longer step"),
    "many": (
        {"src": [0] * 1001, "dst": [1] * 1001, "t": list(range(1001))},
        {},
        "more than 1000 distinct times, from 0.0 to 1000.0; say how time is cut, by the length of a step",
    ),
    "label": (
        {**EVENTS, "label": [0, 1, -2, 0, 0]},
        {},
        "line 4, column 'label' is -2; expected a class from 0",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_invalid_events_are_reported_and_nothing_is_left_behind(tmp_path: Path, what: str) -> None:
    columns, how, message = WRONG[what]
    with pytest.raises(ValueError, match=message):
        imported(tmp_path, columns, **how)
    assert [path.name for path in tmp_path.iterdir()] == ["e.csv"]


def test_a_known_set_is_imported_with_its_protocol(tmp_path: Path) -> None:
    graph = imported(tmp_path, EVENTS, file="ucsocial.npz")
    assert graph.undirected
    assert graph.protocol.negatives == 50
    assert graph.num_steps == 1


def test_a_time_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    columns = {**EVENTS, "t": [0, 5, float("inf"), 9, 9]}
    for file, place in (("e.parquet", "row 2"), ("e.npz", "event 2")):
        with pytest.raises(ValueError, match=f"{place}, column 't' is inf; expected a time"):
            imported(tmp_path, columns, file=file, step=1)
