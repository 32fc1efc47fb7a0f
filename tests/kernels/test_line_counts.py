"""A family's module is short: main loop and roles on one screen."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "line_counts.py"))
COUNTS = {count.name: count for count in SCRIPT["counts"]()}
FAMILIES = [name for name, count in COUNTS.items() if count.is_family]

TEXT = '''"""A module.

Two paragraphs.
"""

from a import (
    b,
    c,
)
import d

X = """one
two"""  # a string that is used


def f(x):
    """Says what."""
    # and why

    if x:  # both
        return (
            b,
        )
    return c
'''


def test_comments_docstrings_imports_and_blank_lines_are_not_counted():
    assert SCRIPT["authors_lines"](TEXT) == 2 + 1 + 1 + 3 + 1


def test_the_default_family_and_its_relatives_are_counted():
    assert FAMILIES[0] == SCRIPT["DEFAULT"]
    both = {"matmul", "split_k", "grouped", "blockwise_fp8"}
    names = {f"{target}/{name}" for target in ("sm100", "sm90") for name in both}
    assert names | {"sm90/stream_k", "sm100/residual", "sm100/block_scaled"} <= set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_fits_on_a_screen(name):
    assert COUNTS[name].lines <= SCRIPT["LIMIT"]


def test_the_page_has_the_counts():
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| `(sm\d+/\w+)` \| (\d+) \|$", page, re.MULTILINE))
    assert listed == {name: str(COUNTS[name].lines) for name in FAMILIES}


def test_the_script_prints_every_module(capsys):
    assert SCRIPT["main"]() == 0
    printed = capsys.readouterr().out
    assert all(f"{name} " in printed for name in COUNTS)
