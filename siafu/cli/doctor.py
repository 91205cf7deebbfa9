"""The command ``doctor``."""

import os

from siafu.cli.output import Json, print_result


def doctor(as_json: Json = False) -> None:
    """Check this machine: what it has for training, and what is missing."""
    from dataclasses import asdict

    from siafu.doctor import examine

    findings = examine(os.environ)
    marks = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}
    lines = []
    for finding in findings:
        lines.append(f"{marks[finding.level]}  {finding.name:22} {finding.value}")
        if finding.advice:
            lines.append(f"{'':33}{finding.advice}")
    print_result({"findings": [asdict(finding) for finding in findings]}, as_json, "\n".join(lines))
