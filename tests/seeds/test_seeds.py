"""docs/seeds.md: every member is reachable, its test exists and mentions it, and the page is up to date."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path

import pytest
from tests.seeds.pages import PAGES, REFERRED, USAGE
from tests.seeds.table import PAGE, text

from warploom import structured

ROOT = Path(__file__).parents[2]
EVERY_CLASS = pytest.mark.parametrize("each", [*PAGES, *REFERRED], ids=lambda each: each.name)
COUNTS = {
    "EpilogueWarpContext": (3, 4, 5),
    "MmaWarpContext": (3, 4, 5),
    "EpiLoadPipeline": (1, 0, 13),
    "OutputTilePipeline": (3, 7, 13),
    "TileWriter": (1, 26, 10),
}
"""Fields, compile-time members and methods that each page lists."""


def owner_of(path):
    """The object before the last dot of a path from `warploom.structured`, and the last name."""
    *front, name = path.split(".")
    found = structured
    for each in front:
        found = getattr(found, each)
    return found, name


def assigned(cls):
    """Names that the methods of a class, or of one it is made of, give to `self`, and those it is annotated with."""
    for base in cls.__mro__[:-1]:
        yield from inspect.get_annotations(base)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                yield node.attr


def has(owner, name):
    """Return whether an object, or an instance of a class, has a member, without calling anything."""
    try:
        inspect.getattr_static(owner, name)
    except AttributeError:
        return inspect.isclass(owner) and name in assigned(owner)
    return True


def is_there(row):
    owner, name = owner_of(row.path)
    if owner is structured:
        return getattr(importlib.import_module(f"warploom.structured.{row.module}"), name) is getattr(owner, name)
    return has(owner, name) or (row.kind == "parameter" and name in inspect.signature(owner).parameters)


@EVERY_CLASS
def test_every_member_is_there(each):
    assert [row.path for row in each.rows if not is_there(row)] == []


@functools.cache
def module_of(file):
    """A module of the tests: its functions and classes by name, the names it imports from others, and its values."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    source = (ROOT / file).read_text("utf-8")
    defined, imported = {}, {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            defined[node.name] = "\n".join([*decorators, ast.get_source_segment(source, node) or ""])
        elif isinstance(node, ast.Assign):
            for target in (name for each in node.targets for name in ast.walk(each) if isinstance(name, ast.Name)):
                defined[target.id] = ast.unparse(node.value)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            for alias in node.names:
                imported[alias.asname or alias.name] = (f"{node.module.replace('.', '/')}.py", alias.name)
    return defined, imported


@functools.cache
def spoken(file, name):
    """The text of a test, and of everything in the tests that it uses."""
    words, seen, waiting = "", set(), [(file, name)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        defined, imported = module_of(at[0])
        if at[1] in imported:
            waiting.append(imported[at[1]])
            continue
        body = defined.get(at[1], "")
        words += body + "\n"
        used = set(re.findall(r"\w+", body))
        waiting += [(at[0], each) for each in used & (defined.keys() | imported.keys())]
    return words


def body_of(test):
    file, _, name = test.partition("::")
    path = f"tests/structured/{file}.py"
    defined, _ = module_of(path)
    assert name in defined, f"{path} has no {name}"
    assert name.startswith("test_")
    return spoken(path, name)


def is_spoken_of(row):
    return re.search(rf"\b{re.escape(row.says)}\b", body_of(row.test))


@EVERY_CLASS
def test_the_test_of_every_member_exists_and_names_it(each):
    assert [f"{row.test} on {row.says}" for row in each.rows if not is_spoken_of(row)] == []


@pytest.mark.parametrize(("example", "test"), USAGE.items(), ids=str)
def test_an_example_of_the_pages_is_a_test(example, test):
    member = example.partition(":")[0].rpartition(".")[2]
    assert re.search(rf"\b{member}\b", body_of(test))


@pytest.mark.parametrize("each", PAGES, ids=lambda each: each.name)
def test_no_member_of_a_page_is_missing(each):
    assert (len(each.fields), len(each.members), len(each.methods)) == COUNTS[each.name]


def test_the_page_is_generated_from_the_list():
    assert PAGE.read_text("utf-8") == text(), "run python tests/seeds/table.py and read the difference"
