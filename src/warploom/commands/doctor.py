"""`warploom doctor`: reports the hardware and software found, what will be used, and what to install."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.runtime.doctor import examine

_MARKS = {True: Text("✓", "green"), False: Text("–", "yellow")}
_PLAIN_MARKS = {True: Text("+", "green"), False: Text("-", "yellow")}


def doctor(*, as_json: bool) -> None:
    """Print one line for each thing that decides where a call runs."""
    findings = examine()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))  # noqa: T201
        return
    console, rows = output(), table("This computer", "", "", "found", "do")
    marks = _MARKS if console.encoding.startswith("utf") else _PLAIN_MARKS
    for finding in findings:
        rows.add_row(marks[finding.found], finding.subject, Text(printable(finding.what)), Text(printable(finding.do)))
    console.print(rows)
