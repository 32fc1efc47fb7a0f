"""`warploom doctor`: reports the hardware and software found, what will be used, and what to install."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.text import Text

from warploom.commands.console import output, printable, table
from warploom.heuristics import EMULATED, Device, source_of
from warploom.machine.engine import selection
from warploom.runtime.doctor import examine
from warploom.runtime.gpu.driver import Gpu

_MARKS = {True: Text("✓", "green"), False: Text("–", "yellow")}
_PLAIN_MARKS = {True: Text("+", "green"), False: Text("-", "yellow")}


def doctor(*, as_json: bool) -> None:
    """Print a line for each thing that decides where and how a call runs."""
    findings = examine(_describe, selection.describe)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))  # noqa: T201
        return
    console, rows = output(), table("This computer", "", "", "found", "do")
    marks = _MARKS if console.encoding.startswith("utf") else _PLAIN_MARKS
    for finding in findings:
        rows.add_row(marks[finding.found], finding.subject, Text(printable(finding.what)), Text(printable(finding.do)))
    console.print(rows)


def _describe(gpu: Gpu | None) -> str:
    """Name the data by which configurations are chosen on a GPU, or on the emulator."""
    if gpu is not None:
        return source_of(Device.of(gpu))
    return "; ".join(f"{target}: {source_of(device)}" for target, device in EMULATED.items())
