"""A pipeline's tasks become a trace that Perfetto opens, and a picture; money stands beside accuracy."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from traced_run import add_tasks, tasks
from written_run import epoch_fields

from siafu.event_log import EventLog
from siafu.results.format import fmt_dollars
from siafu.results.progress import TrainingProgress
from siafu.results.read import read_run, summaries
from siafu.results.report import write_report
from siafu.results.report.comparison import comparison
from siafu.results.report.pipeline import busy_seconds, lanes_of, merge, pick, pipeline, pipeline_figure
from siafu.results.report.run import run_page
from siafu.results.trace import Span, first_spans, write_trace

Make = Callable[..., Path]


def span(start: float, seconds: float, **changes: Any) -> Span:
    whole = Span(0, "worker 0", "stage 1", graph=False, epoch=1, interval=0, start=start, seconds=seconds)
    return whole._replace(**changes)


def traced(run: Path) -> dict[str, Any]:
    write_trace(run / "events.jsonl", run / "trace.json")
    return json.loads((run / "trace.json").read_text())


def write_events(run: Path, *events: tuple[str, dict[str, Any]]) -> None:
    out = EventLog(run / "events.jsonl")
    for phase, fields in events:
        out.write(phase, **fields)
    out.close()


def a_task(start: float, seconds: float = 1.0, **changes: Any) -> tuple[str, dict[str, Any]]:
    fields = {
        "lane": "worker 0",
        "name": "stage 1",
        "epoch": 1,
        "interval": 0,
        "start": start,
        "seconds": seconds,
    }
    return "task", fields | changes


def test_every_task_is_a_complete_event_in_microseconds(make_run: Make) -> None:
    run = make_run()
    count = add_tasks(run)
    assert count == 2 * 2 * 2 * 4 * 2
    trace = traced(run)
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == count
    expected = [
        (fields["name"], phase, pytest.approx(1e6 * fields["start"]), pytest.approx(1e6 * fields["seconds"]))
        for phase, fields in tasks()
    ]
    assert [(event["name"], event["cat"], event["ts"], event["dur"]) for event in complete] == expected
    assert complete[0]["args"] == {"epoch": 1, "interval": 0}


def test_a_process_is_a_rank_and_a_thread_is_a_lane_and_both_are_named(make_run: Make) -> None:
    run = make_run()
    add_tasks(run, ranks=2, workers=3)
    events = traced(run)["traceEvents"]
    named = [event for event in events if event["ph"] == "M"]
    ranks = {event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"}
    assert ranks == {1: "rank 0", 2: "rank 1"}
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in named
        if event["name"] == "thread_name"
    }
    assert sorted(lanes.values()) == sorted(2 * ["graph", "worker 0", "worker 1", "worker 2"])
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} == set(lanes)
    assert all(event["pid"] > 0 for event in events)


def test_events_of_one_thread_never_overlap(make_run: Make) -> None:
    run = make_run()
    write_events(run, a_task(0.0, 2.0), a_task(1.0, 2.0), a_task(2.0, 1.5), a_task(3.5, 1.0))
    events = traced(run)["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert names == ["worker 0", "worker 0 (2)"]
    assert [event["tid"] for event in events if event["ph"] == "X"] == [1, 2, 1, 1]


def test_what_was_done_after_a_resume_comes_after_what_was_done_before(make_run: Make) -> None:
    run = make_run()
    began = read_run(run).last("start")["time"]
    write_events(run, a_task(5.0), ("resume", {"epoch": 0, "time": began + 100.0}), a_task(1.0))
    complete = [event for event in traced(run)["traceEvents"] if event["ph"] == "X"]
    assert [event["ts"] for event in complete] == pytest.approx([5e6, 101e6])
    assert [span.start for span in first_spans(run / "events.jsonl").spans] == pytest.approx([101.0])


def test_a_run_without_tasks_has_no_trace_and_no_picture(make_run: Make) -> None:
    run = make_run()
    assert write_trace(run / "events.jsonl", run / "trace.json") == 0
    assert not (run / "trace.json").exists()
    assert pipeline(read_run(run), "run") == ""


def test_a_trace_is_written_whole_or_not_at_all(make_run: Make) -> None:
    run = make_run()
    write_events(run, a_task(1.0), a_task(2.0, seconds="long"))  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"events\.jsonl: a task event has seconds = 'long'; expected seconds, 0 or more"
    ):
        write_trace(run / "events.jsonl", run / "trace.json")
    assert not [path for path in run.iterdir() if "trace" in path.name]


@pytest.mark.parametrize(
    ("field", "found"),
    [("epoch", 1.5), ("epoch", None), ("interval", "x"), ("start", -1), ("start", float("nan"))],
)
def test_a_task_that_makes_no_sense_is_told(make_run: Make, field: str, found: Any) -> None:
    run = make_run()
    write_events(run, a_task(1.0, **{field: found}) if field != "start" else a_task(found))
    with pytest.raises(ValueError, match=rf"events\.jsonl: a task event has {field} = .*; expected"):
        first_spans(run / "events.jsonl")


def test_a_graph_task_may_be_of_no_interval(make_run: Make) -> None:
    run = make_run()
    _, fields = a_task(1.0, name="update weights")
    del fields["interval"]
    write_events(run, ("graph", fields))
    assert traced(run)["traceEvents"][-1]["args"] == {"epoch": 1}
    assert "update weights, epoch 1: 1.00 s" in pipeline(read_run(run), "run")


def test_tasks_are_not_kept_among_a_runs_events(make_run: Make) -> None:
    run = make_run()
    before = len(read_run(run).events)
    count = add_tasks(run)
    assert (len(read_run(run).events), read_run(run).traced) == (before, count)


def test_the_picture_is_of_whole_epochs_as_many_as_fit(make_run: Make) -> None:
    run = make_run()
    add_tasks(run, ranks=1, epochs=5, intervals=4)  # 16 tasks an epoch
    for most, epochs in ((1000, {1, 2, 3}), (48, {1, 2, 3}), (47, {1, 2}), (16, {1})):
        first = first_spans(run / "events.jsonl", most=most)
        assert ({span.epoch for span in first.spans}, first.cut) == (epochs, False)
        assert len(first.spans) == 16 * len(epochs)
    cut = first_spans(run / "events.jsonl", most=10)
    assert (len(cut.spans), cut.cut) == (10, True)
    assert (
        max(span.start for span in cut.spans)
        < min(span.start for span in first_spans(run / "events.jsonl").spans) + 0.1
    )


def test_how_busy_a_lane_is_counts_overlapping_tasks_once() -> None:
    assert busy_seconds([span(0, 2), span(1, 2), span(5, 1), span(5.25, 0.5)]) == 4.0
    lanes = lanes_of(
        [
            span(0, 2),
            span(8, 2, lane="worker 10"),
            span(4, 1, lane="worker 9"),
            span(0, 10, lane="z", graph=True),
        ]
    )
    assert [(lane.name, lane.share) for lane in lanes] == [
        ("z", 1.0),
        ("worker 0", 0.2),
        ("worker 9", 0.1),
        ("worker 10", 0.2),
    ]


def test_of_many_lanes_those_of_graph_work_are_drawn_and_workers_of_each_rank() -> None:
    spans = [span(0, 1, rank=rank, lane=f"worker {i}") for rank in range(3) for i in range(50)]
    spans += [span(0, 1, rank=rank, lane="graph", graph=True) for rank in range(3)]
    drawn = pick(lanes_of(spans), 9)
    assert [(lane.rank, lane.name) for lane in drawn] == [
        (rank, name) for rank in range(3) for name in ("graph", "worker 0", "worker 1")
    ]


def test_bars_are_coloured_by_the_kind_of_task() -> None:
    spans = [span(1, 1, name=f"stage {i} backward") for i in range(3)]
    spans += [span(1, 1, name="gather 1", graph=True, lane="graph"), span(1, 1, name="stage 1")]
    figure = pipeline_figure(spans, lanes_of(spans))
    assert [(trace["name"], len(trace["x"])) for trace in figure["data"]] == [
        ("gather", 1),
        ("stage backward", 3),
        ("stage", 1),
    ]
    assert len({trace["marker"]["color"] for trace in figure["data"]}) == 3
    assert figure["data"][0]["base"] == [0]
    assert figure["layout"]["yaxis"]["ticktext"] == ["graph  100%", "worker 0  100%"]


def test_rare_kinds_beyond_the_colours_are_one() -> None:
    names = "abcdefghijkl"
    spans = [span(i, 1, name=name) for i, name in enumerate(names)]
    data = pipeline_figure(spans, lanes_of(spans))["data"]
    assert [trace["name"] for trace in data] == [*"abcdefg", "other"]
    assert sum(len(trace["x"]) for trace in data) == len(names)


def test_tasks_too_thin_to_be_seen_apart_are_drawn_as_one() -> None:
    spans = [
        span(0, 0.5),
        span(0.5, 0.5),
        span(0.9, 0.2, lane="worker 1"),
        span(1.5, 0.5),
        span(4, 0.5),
        span(4.5, 3),
    ]
    assert [(one.start, one.seconds, tasks) for one, tasks in merge(spans, 1.0)] == [
        (0, 2.0, 3),
        (0.9, 0.2, 1),
        (4, 0.5, 1),
        (4.5, 3, 1),
    ]
    assert [one for one, _ in merge(spans, 0.0)] == spans


def test_a_large_trace_gives_a_small_picture(make_run: Make) -> None:
    run = make_run()
    count = add_tasks(run, ranks=2, epochs=3, intervals=500, workers=40)
    assert count == 12_000
    shown = pipeline(read_run(run), "run")
    assert "18 more lanes are not drawn" in shown
    assert len(shown) < 1_500_000
    assert sum(event["ph"] == "X" for event in traced(run)["traceEvents"]) == count


def test_the_report_draws_the_pipeline_and_says_how_busy_lanes_are(make_run: Make) -> None:
    run = make_run()
    add_tasks(run, epochs=5)
    page = run_page(read_run(run))
    for part in (
        "<h2>Pipeline</h2>",
        "run-pipeline",
        "epochs 1 to 3",
        "rank 0, graph  ",
        "Every lane in numbers",
    ):
        assert part in page
    write_report([read_run(run)], run / "report.html")
    assert "run-pipeline" in (run / "report.html").read_text()


def test_names_of_lanes_and_tasks_cannot_become_markup(make_run: Make) -> None:
    run = make_run()
    evil = "</script><img src=x onerror=alert(1)><b>%{x}"
    write_events(run, a_task(0.0, lane=evil, name=evil))
    shown = pipeline(read_run(run), "run")
    assert "<img" not in shown
    assert "%{x}" not in shown.partition("<details>")[0]  # what Plotly reads


def with_money(run: Path) -> Path:
    fields = [epoch_fields(epoch) | {"dollars": 0.0002, "value": 1 / (0.0002 * 0.01)} for epoch in (1, 2, 3)]
    write_events(run, *[("epoch", each) for each in fields])
    return run


def test_dollars_and_value_stand_beside_accuracy(make_run: Make) -> None:
    record = read_run(with_money(make_run(metrics={"dollars": 0.0123})))
    page = run_page(record)
    for part in ("run-dollars", "run-value", "<dt>cost</dt><dd>$0.012</dd>", "value V", "millionths of a $"):
        assert part in page
    assert record.epochs.dollars[:3].tolist() == [0.0002] * 3
    assert summaries([record])[0].value == pytest.approx(500_000)


def test_a_run_that_was_not_metered_shows_no_money(make_run: Make) -> None:
    page = run_page(read_run(make_run()))
    for part in ("run-dollars", "run-value", "value V", "<dt>cost"):
        assert part not in page


def test_runs_side_by_side_show_what_they_cost(make_run: Make) -> None:
    runs = [with_money(make_run("a", metrics={"dollars": 0.0123})), make_run("b", hidden=32)]
    page = comparison([read_run(run) for run in runs])
    for part in ("cost", "$0.012", "value V", "5e+05"):
        assert part in page


def test_progress_shows_money_where_there_is_some() -> None:
    stream = io.StringIO()
    with TrainingProgress(stream=stream) as show:
        show.epoch(3, 200, loss=0.5, val_score=0.8, seconds=1.31, dollars=0.00016, value=4770.99)
    assert stream.getvalue() == (
        "training 3/200 (1 %)  loss 0.5000  validation 0.8000  1.31 s/epoch  $0.00016/epoch  V 4771\n"
    )


@pytest.mark.parametrize(
    ("dollars", "shown"),
    [
        (0.00016, "$0.00016"),
        (0.0312, "$0.031"),
        (0.5, "$0.50"),
        (12.341, "$12.34"),
        (12345.6, "$12\u202f345.60"),
        (0, "$0.00"),
        (2e-7, "$0.00000020"),
        (None, "–"),
    ],
)
def test_dollars_are_shown_with_the_digits_that_count(dollars: float | None, shown: str) -> None:
    assert fmt_dollars(dollars) == shown
