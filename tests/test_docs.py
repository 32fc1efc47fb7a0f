"""The pages of docs/ and the README: their Python runs, prints what they say, and is the code that they quote."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("structured.md", "matmul.md", "hopper.md")]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:^```\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
QUOTE = re.compile(r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_python_runs_and_prints_what_it_says(page, capsys):
    text = page.read_text("utf-8")
    quoted = {found.start(2) for found in QUOTE.finditer(text)}
    names: dict[str, object] = {"__name__": "docs"}
    for block in BLOCK.finditer(text):
        if block.start(1) in quoted:
            continue
        above = text.count("\n", 0, block.start(1))
        exec(compile("\n" * above + block[1], page.name, "exec"), names)
        printed = capsys.readouterr().out
        assert (printed == block[2]) if block[2] is not None else not printed, printed


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_what_it_quotes_is_the_code(page):
    for source, quoted in QUOTE.findall(page.read_text("utf-8")):
        assert quoted.strip() in (ROOT / source).read_text("utf-8"), source
