"""The table of the reference's files against the modules that it names, and the lines of each kernel."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference.md").read_text("utf-8")
SCRIPT = runpy.run_path(str(ROOT / "bench" / "line_counts.py"))


def test_every_module_of_the_table_exists():
    rows = [line.split("|") for line in PAGE.splitlines() if ".mojo`" in line]
    assert len(rows) > 25
    for _, files, modules, *_ in rows:
        named = re.findall(r"`([^`]+\.py)`", modules)
        assert named, files
        assert [each for each in named if not (ROOT / "src" / "warploom" / each).exists()] == []


def test_the_lines_of_each_kernel_are_those_of_the_script():
    counted = {count.name: count.lines for count in SCRIPT["counts"]() if count.is_family}
    shown = {name: int(lines) for name, lines in re.findall(r"\| `(sm\d+/\w+)` \| (\d+) \|", PAGE)}
    assert shown == counted
