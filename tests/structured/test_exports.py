"""`warploom.structured` exports what kernel authors need, without loading it before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from warploom import structured
from warploom.structured import exports

ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_the_five_pages_are_imported_from_one_place():
    names = "EpilogueWarpContext, MmaWarpContext, EpiLoadPipeline, OutputTilePipeline, TileWriter"
    assert run(f"from warploom.structured import {names}; print(TileWriter.__name__)") == "TileWriter\n"


def test_every_export_is_reachable_and_listed_once():
    assert len(exports.__all__) == len(set(exports.__all__))
    assert all(getattr(structured, name) is getattr(exports, name) for name in exports.__all__)
    assert set(exports.__all__) <= set(dir(structured))
    assert structured.__all__ == exports.__all__


def test_every_name_that_is_imported_for_export_is_exported():
    tree = ast.parse(Path(exports.__file__).read_text("utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"]
    assert {alias.name for node in imports for alias in node.names} == set(exports.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'TileReader'"):
        _ = structured.TileReader


def test_the_one_page_example_imports_its_parts_from_two_modules():
    tree = ast.parse((ROOT / "examples" / "matmul_from_scratch.py").read_text("utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name.startswith("warploom.")} == {"warploom.structured", "warploom.trace"}
