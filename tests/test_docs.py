"""The pages of docs/ and the README: their Python runs, prints what they say, and is the code that they quote.

A block that follows a Python block without a word between them is what it prints; a block under `<!-- from FILE -->` is
that file from the block's first line on. `pytest --update-golden` writes both anew. What cannot run here stands under
`<!-- not run: WHY -->`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from warploom.demo import demo

ROOT = Path(__file__).parents[1]
RUN = sorted((ROOT / "docs").glob("*.md"))
QUOTING = [ROOT / "README.md", *RUN]
LINK = re.compile(r"\]\((?!https?:)(?P<file>[^)#\s]*)(?:#(?P<heading>[^)\s]+))?\)")
VARIABLE = re.compile(r"WARPLOOM(?:_[A-Z]+)+")
BLOCK = re.compile(
    r"^(?P<mark><!-- (?:from|not run:) [^\n]+ -->\n)?```python\n(?P<code>.*?)^```\n(?:```\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
QUOTE = re.compile(r"^<!-- from (?P<file>\S+) -->\n```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def replaced(text: str, changes: list[tuple[int, int, str]]) -> str:
    for start, end, new in reversed(changes):
        text = text[:start] + new + text[end:]
    return text


@pytest.mark.parametrize("page", QUOTING, ids=lambda page: page.name)
def test_quoted_code_is_the_source(page, request):
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


def without_times(text):
    """The output of a demo that is the same on any computer: neither seconds, nor its rounding, nor how wide a column is or where a line breaks."""
    text = re.sub(r"[\d.]+ s:|\d+%|[\d,]+ characters|\b\d+ +(?=right$)", "", text, flags=re.MULTILINE)
    return re.sub(r"─+", "─", text).split()


TRANSCRIPT = re.compile(r"^<!-- demo transcript.*?-->\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_transcript_is_what_the_demo_prints(request, capsys):
    """The README shows the planted bugs first and the rest of the demo later."""
    readme = QUOTING[0]
    text = readme.read_text("utf-8")
    assert demo()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    cut = next(number for number, line in enumerate(lines) if line.startswith("Planted bug"))
    printed = ["\n".join(part).strip() + "\n" for part in (lines[cut:], lines[:cut])]
    shown = list(TRANSCRIPT.finditer(text))
    if request.config.getoption("--update-golden"):
        changes = [(*found.span(1), part) for found, part in zip(shown, printed, strict=True)]
        readme.write_text(replaced(text, changes), "utf-8")
    else:
        assert [without_times(found[1]) for found in shown] == [without_times(part) for part in printed], (
            "the demo prints something else: run with --update-golden"
        )


def headings(page):
    """The headings that a link may name: a heading in small letters, its words joined, without marks."""
    lines = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *RUN], ids=lambda page: page.name)
def test_its_links_lead_somewhere(page):
    for link in LINK.finditer(page.read_text("utf-8")):
        target = page.parent / link["file"] if link["file"] else page
        assert target.exists(), link[0]
        assert link["heading"] is None or link["heading"] in headings(target), link[0]


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    pages = {link["file"] for link in LINK.finditer(index)}
    assert {page.name for page in RUN} - {"README.md"} <= pages
    assert {f"../examples/{path.name}" for path in (ROOT / "examples").glob("*.py")} <= pages


def test_the_index_lists_every_environment_variable():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    sources = (path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = {name for source in sources for name in VARIABLE.findall(source)}
    assert named <= set(VARIABLE.findall(index))
