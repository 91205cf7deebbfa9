"""The table of ``suite.py``: scores of each kind of run in points, paired differences, seconds."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from suite_runs import KINDS

Record = dict[str, Any]
_LARGE_NODES = 100_000
_MANY_TRAIN_NODES = 1_000

# Test scores in points on the public split, from the table of DATASETS.md in the data folder; "tuned" is the GCN of Luo
# et al., "Classic GNNs are Strong Baselines", NeurIPS 2024 (arXiv 2406.08993; its settings: LUOyk1999/tunedGNN). Its
# splits of Cora, Citeseer and PubMed are drawn at random, 20 nodes of each class.
PUBLISHED = {
    "actor": "GCN 30.3 (Zhu 2020)",
    "aifb_rdf": "R-GCN 95.8 (Schlichtkrull 2018)",
    "chameleon_filtered": "GCN 40.9 (Platonov 2023), tuned 46.3",
    "citeseer": "GCN 70.3 (Kipf 2017), tuned 73.1 on another split",
    "cora": "GCN 81.5 (Kipf 2017), tuned 85.1 on another split",
    "mutag_rdf": "R-GCN 73.2 (Schlichtkrull 2018)",
    "ogbn_arxiv_nofeat": "node2vec 70.1 (OGB), label propagation 68.3",
    "pubmed": "GCN 79.0 (Kipf 2017), tuned 81.1 on another split",
    "squirrel_filtered": "GCN 39.5 (Platonov 2023), tuned 45.0",
}


@dataclass(frozen=True)
class Estimate:
    """A mean of several values and its standard error; None of one value."""

    mean: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate | None":
        """The estimate of some values; None where there are none."""
        if not values:
            return None
        error = statistics.stdev(values) / sqrt(len(values)) if len(values) > 1 else None
        return cls(statistics.fmean(values), error, len(values))

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ±{self.error:.2f}")


@dataclass(frozen=True)
class Row:
    """All runs of a set and a split: records by kind, then by (fold, seed)."""

    set: str
    split: str
    records: Mapping[str, dict[tuple[int, int], Record]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def any(self) -> Record:
        """One of the records; what they say of the data is the same in all."""
        return next(record for records in self.records.values() for record in records.values())

    @property
    def name(self) -> str:
        """The set and the split."""
        return f"{self.set} {self.split}"

    @property
    def metric(self) -> str:
        """The name of the score."""
        return self.any["metrics"].get("metric", "accuracy")

    def scores(self, kind: str) -> dict[tuple[int, int], float]:
        """The test scores of a kind, in points."""
        scores = {key: record["metrics"]["test_score"] for key, record in self.records[kind].items()}
        return {key: 100 * score for key, score in scores.items() if score is not None}

    def difference(self, kind: str, other: str) -> Estimate | None:
        """The mean of kind - other over the folds and seeds that both have."""
        these, those = self.scores(kind), self.scores(other)
        return Estimate.of([score - those[key] for key, score in these.items() if key in those])

    def seconds(self, kind: str) -> float | None:
        """The median wall time of a kind's commands."""
        seconds = [record["seconds"] for record in self.records[kind].values()]
        return statistics.median(seconds) if seconds else None

    def slowdown(self, kind: str, other: str) -> float | None:
        """The median over folds and seeds of the wall time of kind / other."""
        these, those = self.records[kind], self.records[other]
        ratios = [these[key]["seconds"] / those[key]["seconds"] for key in these if key in those]
        return statistics.median(ratios) if ratios else None

    @property
    def test_error(self) -> float | None:
        """The standard error of one test accuracy, which comes from the number of test nodes, in points."""
        scores = list(self.scores("default").values())
        if not scores or not self.any["test_nodes"] or self.metric != "accuracy":
            return None
        share = min(max(statistics.fmean(scores) / 100, 0.0), 1.0)
        return 100 * sqrt(share * (1 - share) / self.any["test_nodes"])

    @property
    def recipes(self) -> str:
        """The recipes that the default runs chose, each with the number of runs."""
        chosen = [record["metrics"].get("recipe") for record in self.records["default"].values()]
        counts = {str(recipe): chosen.count(recipe) for recipe in chosen if recipe is not None}
        return "; ".join(f"{recipe} x{count}" for recipe, count in counts.items())


def rows_of(records: Sequence[Record]) -> list[Row]:
    """The rows of all runs that did not fail: sets with features first, by name. A later record replaces one before."""
    rows: dict[tuple[str, str], Row] = {}
    for record in records:
        if "error" not in record:
            row = rows.setdefault((record["set"], record["split"]), Row(record["set"], record["split"]))
            row.records[record["kind"]][record["fold"], record["seed"]] = record
    return sorted(rows.values(), key=lambda row: (not row.any["features"], row.set, row.split))


def failures(records: Sequence[Record]) -> list[Record]:
    """The runs that failed and have not succeeded since."""
    last = {_key(record): record for record in records}
    return [record for record in last.values() if "error" in record]


def report(records: Sequence[Record]) -> str:
    """The table, the summary over its rows, and the runs that failed."""
    rows = rows_of(records)
    kinds = [kind for kind in KINDS if any(row.records[kind] for row in rows)]
    lines = [*_table(rows, kinds), "", *_summary(rows)]
    failed = failures(records)
    lines += ["", f"failed runs: {len(failed)}"]
    lines += [f"  {' '.join(map(str, _key(record)))}: {record['error']}" for record in failed]
    return "\n".join(lines)


def _key(record: Record) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("set", "split", "fold", "seed", "kind"))


def _table(rows: Sequence[Row], kinds: Sequence[str]) -> list[str]:
    """A table in Markdown."""
    head = ["set", "split", "train", *kinds, "test ±", "tune - default", "default - kipf"]
    head += ["published", *(f"{kind}, s" for kind in kinds), "recipe of default"]
    bars = ["---", "---", *["---:"] * (len(head) - 2)]
    return [f"| {' | '.join(line)} |" for line in (head, bars, *(_cells(row, kinds) for row in rows))]


def _cells(row: Row, kinds: Sequence[str]) -> list[str]:
    name = row.set if row.metric == "accuracy" else f"{row.set} ({row.metric})"
    differences = [row.difference("tune", "default"), row.difference("default", "kipf")]
    return [
        name,
        row.split,
        f"{row.any['train_nodes']:,}",
        *(_score(list(row.scores(kind).values())) for kind in kinds),
        _number(row.test_error),
        *("" if each is None else str(each) for each in differences),
        PUBLISHED.get(row.set, "") if row.split == "public" else "",
        *(_number(row.seconds(kind)) for kind in kinds),
        row.recipes,
    ]


def _score(scores: Sequence[float]) -> str:
    """The mean, and of several scores the standard deviation."""
    if not scores:
        return ""
    spread = f" ±{statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.2f}{spread}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _summary(rows: Sequence[Row]) -> list[str]:
    """Means and worst rows, in points; ratios of seconds."""
    featured = [row for row in rows if row.any["features"]]
    many = [row for row in rows if row.any["train_nodes"] > _MANY_TRAIN_NODES]
    lines = [
        _over("tune - default, sets with features", featured, ("tune", "default"), max),
        _over(
            f"default - kipf, more than {_MANY_TRAIN_NODES:,} training nodes", many, ("default", "kipf"), min
        ),
        _over("default - kipf, all", rows, ("default", "kipf"), min),
        _over("off - kipf, all", rows, ("off", "kipf"), min),
        _over("default - off, all", rows, ("default", "off"), min),
        _over("ensemble - default, all", rows, ("ensemble", "default"), min),
        _over("smooth - default, all", rows, ("smooth", "default"), min),
    ]
    small = [row for row in rows if row.any["nodes"] < _LARGE_NODES]
    large = [row for row in rows if row.any["nodes"] >= _LARGE_NODES]
    blind = [row.name for row in rows if not row.any["val_nodes"]]
    lines += [f"no validation nodes, so no tune: {', '.join(blind)}" if blind else ""]
    lines += [_ratio(f"below {_LARGE_NODES:,} nodes", small), _ratio(f"from {_LARGE_NODES:,} nodes", large)]
    return [line for line in lines if line]


def _over(
    title: str, rows: Sequence[Row], pair: tuple[str, str], worst: Callable[..., tuple[float, Row]]
) -> str:
    """The mean over rows of a difference, and the worst row, which ``worst`` picks."""
    found = [(each, row) for row in rows if (each := row.difference(*pair)) is not None]
    if not found:
        return ""
    mean = Estimate.of([each.mean for each, _ in found])
    each, row = worst(found, key=lambda pair: pair[0].mean)
    noise = "" if row.test_error is None else f", test ±{row.test_error:.1f}"
    return f"{title}: mean {mean} over {len(found)} rows; worst {each} ({row.name}{noise})"


def _ratio(title: str, rows: Sequence[Row]) -> str:
    """The wall time of a default run beside that with the search off."""
    found = [(ratio, row) for row in rows if (ratio := row.slowdown("default", "off")) is not None]
    if not found:
        return ""
    most, row = max(found, key=lambda pair: pair[0])
    median = statistics.median(ratio for ratio, _ in found)
    return f"seconds of default / off, {title}: median {median:.2f}, most {most:.2f} ({row.name})"
