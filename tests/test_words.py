"""The vocabulary of STYLE.md: banned phrases do not occur in prose, and docstrings start with a verb or a noun phrase."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
FOLDERS = ("examples", "bench", "src/warploom/demo", "src/warploom/structured/config", "tests/structured/config")
"""Folders and packages whose docstrings and comments have been rewritten; add to it, never take away."""
SOURCES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
BANNED = {
    r"\b(?:is|are|was|were|be|been|being) told\b": "is reported",
    r"\btells (?:of|a|an|the|every|all|everybody|how|what|which|who|whether)\b": "reports",
    r"\btold (?:at once|apart|while|in|by|rule)\b": "reported",
    r"\bunless told\b": "by default",
    r"\bcannot be called so\b": "invalid arguments",
    r"\bit is no (?:number|array|name|text)\b": "must be a …",
    r"\bwhat follows\b": "epilogue",
    r"\bfollows? (?:a|the) product\b": "epilogue",
    r"\bhas to say\b": "reports",
    r"\bsays so\b": "raises an error",
    r"\b(?:some|no|every)body\b": "a thread, a caller, a role",
    r"\bone's own\b": "your own",
    r"\ban own\b": "your own",
    r"\bof (?:yours|ours|his|theirs)\b": "your own, our own",
    r"\bfactors? (?:a|b|A|B)\b": "operand",
    r"\bboth factors\b": "both operands",
    r"\baddends?\b": "epilogue input",
    r"\bfurther outputs?\b": "auxiliary output",
    r"\bstrips?\b": "epilogue subtile",
    r"\btensor memory\b": "TMEM",
    r"\bbands? of\b": "supergroup, tile swizzle",
    r"\bsums? (?:in|of) a thread\b": "accumulator registers per thread",
    r"\b(?:its|their|own|partial|parked) sums\b": "accumulators",
    r"\bparks?\b|\bparked\b": "stores partial accumulators",
    r"\bthe depth of\b": "K extent",
    r"\bjoins of\b": "reconvergence points",
    r"\bmeanings? of (?:an|the|each) (?:instruction|form)": "semantics",
    r"\bderivatives?\b": "gradient",
    r"\bthe machine\b": "the emulator",
    r"\bCPU machine\b": "emulator",
    r"\bcopy engine\b": "TMA",
    r"\bbehind (?:it|them|the last|everything|all)\b": "after",
    r"\bin front of (?:the|it|them|a)\b": "before",
    r"\bbeside\b": "next to, in addition to",
    r"\bside by side\b": "in parallel, next to each other",
    r"\b(?:it|that|this|which|code|text) stands\b": "is",
    r"\bas (?:it|they) lies?\b": "with its strides",
    r"\bon (?:its|their) way\b": "in flight",
    r"\btakes? turns\b": "alternates",
    r"\bmended\b": "fixed",
    r"\ba stranger's\b": "an untrusted",
    r"\bas late as (?:it|they) may\b": "as late as allowed",
    r"\bmultiprocessors?\b": "SM",
}
LEADING = re.compile(r"\s*(?:What|Which|Whether|Where|Who|How)\b")
CODE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """List the lines of a page without code, links and comments; of STYLE.md, without the rows that name banned words."""
    text = CODE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text("utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        if not (page.name == "STYLE.md" and line.startswith("|")):
            yield number, line


def prose_in(file: Path) -> Iterator[tuple[int, str]]:
    """List docstrings and comments of a module."""
    source = file.read_text("utf-8")
    for number, text in docstrings(source):
        yield number, CODE.sub("", text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], CODE.sub("", token.string)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """List strings that stand alone: docstrings, also of fields and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def banned_in(lines: Iterator[tuple[int, str]]) -> list[str]:
    """Describe every banned phrase, with what to write instead."""
    return [
        f"line {number}: {found[0]!r}, write {instead!r}"
        for number, line in lines
        for pattern, instead in BANNED.items()
        for found in re.finditer(pattern, " ".join(line.split()), re.IGNORECASE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_words_of_the_field(page):
    assert banned_in(prose_of(page)) == []


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_sources_use_the_words_of_the_field(file):
    assert banned_in(prose_in(file)) == []


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_docstrings_start_with_a_verb_or_a_noun(file):
    found = [(number, text) for number, text in docstrings(file.read_text("utf-8")) if LEADING.match(text)]
    assert found == []


@pytest.mark.parametrize("line", ["All faults are told at once", "added behind the last tile", "the machine runs it"])
def test_a_banned_phrase_is_found(line):
    assert banned_in(iter([(1, line)]))
