"""The pages of docs/ and the README: their Python runs, prints what they say, and is the code that they quote.

A block that follows a Python block without a word between them is what it prints; a block under `<!-- from FILE -->` is
that file from the block's first line on. `pytest --update-golden` writes both anew.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = [ROOT / "docs" / name for name in ("structured.md", "matmul.md", "hopper.md")]
QUOTING = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^(?P<mark><!-- from \S+ -->\n)?```python\n(?P<code>.*?)^```\n(?:```\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
QUOTE = re.compile(r"^<!-- from (?P<file>\S+) -->\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def replaced(text: str, changes: list[tuple[int, int, str]]) -> str:
    for start, end, new in reversed(changes):
        text = text[:start] + new + text[end:]
    return text


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.name)
def test_what_it_quotes_is_the_code(page, request):
    text, changes = page.read_text("utf-8"), []
    for quote in QUOTE.finditer(text):
        code, first = (ROOT / quote["file"]).read_text("utf-8"), quote["code"].partition("\n")[0]
        assert code.count(f"{first}\n") == 1, f"{quote['file']} has no line `{first}`, or several"
        changes.append((*quote.span("code"), code[code.index(f"{first}\n") :]))
    changed = replaced(text, changes)
    if request.config.getoption("--update-golden"):
        page.write_text(changed, "utf-8")
    else:
        assert text == changed, f"{page.name} quotes what has changed: run with --update-golden"


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_its_python_runs_and_prints_what_it_says(page, request, capsys):
    text, changes = page.read_text("utf-8"), []
    names: dict[str, object] = {"__name__": "docs"}
    for block in BLOCK.finditer(text):
        if block["mark"]:
            continue
        above = text.count("\n", 0, block.start("code"))
        exec(compile("\n" * above + block["code"], page.name, "exec"), names)
        printed = capsys.readouterr().out
        if block["output"] is None:
            assert not printed
        else:
            changes.append((*block.span("output"), printed))
    changed = replaced(text, changes)
    if request.config.getoption("--update-golden"):
        page.write_text(changed, "utf-8")
    else:
        assert text == changed, f"{page.name} says what is no longer printed: run with --update-golden"
