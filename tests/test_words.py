"""The vocabulary of STYLE.md: banned phrases do not occur in prose, and docstrings start with a verb or a noun phrase.

`python tests/test_words.py` counts the findings per folder, and lists them for the folders or files that are given.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
TREES = ("src", "tests", "examples", "bench")
BANNED = {
    r"\btold\b": "reported",
    r"\btells (?:of|a|an|the|every|all|everybody|how|what|which|who|whether)\b": "reports",
    r"\bcannot be called so\b": "invalid arguments",
    r"\b(?:it|that|this|which|they) (?:is|are) no (?!longer|more|less|other|different|fewer)\w+": "must be a …",
    r"\bcan have no\b": "does not support",
    r"\bquestions? to the\b": "only applies to",
    r"\bprepared call does not fit\b": "arguments do not match",
    r"\bwhoever\b": "the caller that, the thread that",
    r"\bis to (?:hear|say|know)\b": "is informed",
    r"\bturns? of (?:a|the) loop\b": "iteration",
    r"\bsomebody will\b": "the caller will",
    r"\bnot (?:so|as) (?:it|they) (?:lies?|stands?)\b": "with its strides",
    r"\bwhat follows\b": "epilogue",
    r"\bfollows? (?:a|the) product\b": "epilogue",
    r"\bhas to say\b": "reports",
    r"\bsays so\b": "raises an error",
    r"\b(?:some|no|every)body\b": "a thread, a caller, a role",
    r"\bone's own\b": "your own",
    r"\ban own\b": "your own",
    r"\bof (?:yours|ours|his|theirs)\b": "your own, our own",
    r"\bfactors? (?-i:A|B)\b": "operand",
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
    r"\b(?:right |directly |lies |just )behind\b": "after",
    r"\bbehind (?:it|them|the (?:last|first|other|loop|block|roles|call|name|others)|everything|all)\b": "after",
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
LEADING = re.compile(r"\s*(?:What|Which|Whether|Where|Who|Whose|How)\b")
NAMES = re.compile(r"(?<![a-z])(?:told|somebody|nobody|everybody)(?![a-z])")
"""Words that are not used in names either; the others may be part of a public name."""
LEADING_NAME = re.compile(r"test_(?:what|which|whether|where|who|whose|how)_")
CODE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)", re.DOTALL)


def prose_of(page: Path) -> Iterator[tuple[int, str]]:
    """List the lines of a page without code, links and comments; of STYLE.md, without the rows that name banned words."""
    text = CODE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text("utf-8"))
    for number, line in enumerate(text.splitlines(), 1):
        if not (page.name == "STYLE.md" and line.startswith("|")):
            yield number, line


def prose_in(file: Path) -> Iterator[tuple[int, str]]:
    """List the docstrings, comments, other strings and names of functions and classes of a module."""
    source = file.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, CODE.sub("", node.value)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, " ".join(NAMES.findall(node.name))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], CODE.sub("", token.string)


def leading_in(file: Path) -> Iterator[str]:
    """Describe docstrings, also of fields and constants, and tests that start with a question word."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if found := LEADING.match(node.value.value):
                yield f"line {node.lineno}: docstring starts with {found[0].strip()!r}"
        elif isinstance(node, ast.FunctionDef) and (found := LEADING_NAME.match(node.name)):
            yield f"line {node.lineno}: {node.name} starts with a question word"


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


def findings(file: Path) -> list[str]:
    """Everything that a module has to change."""
    return [*banned_in(prose_in(file)), *leading_in(file)]


def folders() -> dict[str, list[Path]]:
    """The modules of every folder; this one names the phrases and is left out."""
    found: dict[str, list[Path]] = {}
    for tree in TREES:
        for file in sorted((ROOT / tree).rglob("*.py")):
            if file != Path(__file__).resolve():
                found.setdefault(file.parent.relative_to(ROOT).as_posix(), []).append(file)
    return found


@pytest.mark.parametrize("folder", sorted(folders()))
def test_modules_use_the_words_of_the_field(folder):
    found = {file.name: lines for file in folders()[folder] if (lines := findings(file))}
    assert found == {}


@pytest.mark.parametrize("line", ["All faults are told at once", "added behind the last tile", "the machine runs it"])
def test_a_banned_phrase_is_found(line):
    assert banned_in(iter([(1, line)]))


def main(*wanted: str) -> None:
    """Print the number of findings per folder, or the findings below the folders or files that are named."""
    for folder, files in folders().items():
        found = {file: lines for file in files if (lines := findings(file))}
        if not wanted and found:
            print(f"{sum(map(len, found.values())):5}  {folder}")
        for file, lines in found.items():
            if any(file.is_relative_to(Path(each).resolve()) for each in wanted):
                print(file.relative_to(ROOT).as_posix(), *lines, sep="\n  ")


if __name__ == "__main__":
    main(*sys.argv[1:])
