"""The table of a chaos run."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from chaos_draw import FAULTS

DEADLINE_S = 5.0
Record = dict[str, Any]
_COLUMNS = ("fault", "trials", "struck", "resumed", "ended", "bit-identical", "noticed", "at most")
_COLUMNS += ("orphans", "leftovers")


def defects(record: Record) -> list[str]:
    """Everything about a trial that must not be."""
    found = ["hung"] if record["hung"] else []
    found += record["problems"]
    found += [] if record["finished"] or record["hung"] else ["never finished"]
    found += ["other weights"] if record["finished"] and record["identical"] is False else []
    found += [f"orphan {each}" for each in orphans(record)]
    found += [f"leftover {each}" for each in record["leftovers"]]
    if (record["noticed_s"] or 0.0) > DEADLINE_S:
        found.append(f"noticed after {record['noticed_s']} s")
    return found


def orphans(record: Record) -> list[str]:
    """Processes that outlived a command of the trial."""
    return [*record.get("orphans", []), *record["late_orphans"]]


def report(records: Sequence[Record]) -> str:
    """The tables by fault, method and kind of worker, then every trial with a defect."""
    lines = _table(_COLUMNS, [*_rows(records), _row("all", records)])
    lines += ["", *_counts(records)]
    bad = [record for record in records if defects(record)]
    lines += ["", f"trials with a defect: {len(bad)}", *map(_tell, bad)]
    return "\n".join(lines)


def _rows(records: Sequence[Record]) -> Iterable[list[str]]:
    for kind in FAULTS:
        of = [record for record in records if record["fault"]["kind"] == kind]
        if of:
            yield _row(kind, of)


def _row(name: str, records: Sequence[Record]) -> list[str]:
    exact = [record for record in records if record["identical"] is not None]
    noticed = [record["noticed_s"] for record in records if record["noticed_s"] is not None]
    return [
        name,
        str(len(records)),
        str(sum(record["struck"] for record in records)),
        str(sum(record["resumed"] for record in records)),
        str(sum(not record["hung"] for record in records)),
        f"{sum(record['identical'] for record in exact)} of {len(exact)}",
        f"{statistics.median(noticed):.1f} s" if noticed else "",
        f"{max(noticed):.1f} s" if noticed else "",
        str(sum(len(orphans(record)) for record in records)),
        str(sum(len(record["leftovers"]) for record in records)),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    bars = ["---", *["---:"] * (len(head) - 1)]
    return [f"| {' | '.join(row)} |" for row in (head, bars, *rows)]


def _counts(records: Sequence[Record]) -> list[str]:
    lines = []
    for name in ("method", "ranks", "engine", "workers"):
        values = [str(record["setup"][name]) for record in records if record["setup"][name] != ""]
        counts = {value: values.count(value) for value in sorted(set(values))}
        lines.append(f"{name}: " + ", ".join(f"{value} {count}" for value, count in counts.items()))
    return lines


def _tell(record: Record) -> str:
    place = f"seed {record['seed']} trial {record['trial']}"
    return f"  {place}: {_title(record)}: {'; '.join(defects(record))}"


def _title(record: Record) -> str:
    setup, fault = record["setup"], record["fault"]
    names = [
        setup["method"],
        f"{setup['ranks']} {setup['engine']}",
        setup["workers"],
        fault["kind"],
        fault["target"],
    ]
    return " ".join(name for name in names if name)
