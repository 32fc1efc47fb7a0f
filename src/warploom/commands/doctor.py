"""`warploom doctor`: what this computer has, what will be used, and what to do about the rest."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.runtime.doctor import Finding, examine


def doctor(*, as_json: bool) -> None:
    """Prints a line for each thing that decides where a call runs."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))  # noqa: T201
        return
    rows = table("What is here", "", "", "found", "do")
    for finding in findings:
        rows.add_row(_mark(finding), finding.subject, Text(printable(finding.what)), Text(printable(finding.do)))
    output().print(rows)


def _mark(finding: Finding) -> Text:
    return Text("✓", "green") if finding.found else Text("–", "yellow")
