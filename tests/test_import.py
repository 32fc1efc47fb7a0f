"""`import warploom` and `warploom --help` load few modules, and every public name is found all the same."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import warploom

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "warploom" / "__init__.py"
HEAVY = ("numpy", "ml_dtypes", "rich", "torch")


def loaded_by(program: str) -> set[str]:
    """The modules that a program loads in a process of its own."""
    ends = (
        f"import sys, json\ntry:\n    {program}\nfinally:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", ends], capture_output=True, text=True, check=False)
    return set(json.loads(run.stderr.splitlines()[-1]))


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "warploom"}


def test_importing_the_package_loads_almost_nothing():
    modules = loaded_by("import warploom")
    assert own(modules) == {"warploom", "warploom.version"}
    assert not modules & {*HEAVY, "re", "dataclasses", "inspect", "argparse"} - loaded_by("pass")


@pytest.mark.parametrize("option", ["--help", "--version", "run --help"])
def test_help_loads_the_parser_and_the_catalogue_only(option):
    modules = loaded_by(f"from warploom.cli import main; main({option.split()!r})")
    expected = {"warploom", "warploom.version", "warploom.cli", "warploom.commands", "warploom.diagnostics"}
    assert own(modules) == expected | {"warploom.commands.errors"}
    assert not modules & set(HEAVY)


def test_an_emulation_loads_no_console():
    modules = loaded_by("import warploom; warploom.linear; warploom.launch")
    assert "warploom.launcher" in modules
    assert not modules & {"rich", "torch"}


def declared() -> dict[str, str]:
    """The names that type checkers see, with their modules."""
    (block,) = [node for node in ast.parse(SOURCE.read_text("utf-8")).body if isinstance(node, ast.If)][:1]
    return {
        alias.name: node.module or ""
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != "warploom"
        for alias in node.names
    }


def test_type_checkers_and_python_see_the_same_names():
    assert declared() == warploom._HOMES
    assert set(warploom.__all__) <= {*warploom._HOMES, "__version__"}
    late = {"plan_matmul", "tune"}  # not for `from warploom import *`: they load the way to a GPU
    assert set(warploom._HOMES) - set(warploom.__all__) == late


def test_every_name_is_found():
    for name in (*warploom.__all__, *warploom._HOMES):
        assert getattr(warploom, name) is not None
        assert name in dir(warploom)
    for name in warploom._PACKAGES - {"nn", "torch"}:
        assert getattr(warploom, name).__name__ == f"warploom.{name}"
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        warploom.matmull  # noqa: B018


def undocumented(module: str) -> list[str]:
    """The public functions, classes and methods of a module's `__all__` without a docstring, their own or inherited."""
    found = []
    for name in (names := importlib.import_module(module)).__all__:
        value = getattr(names, name)
        if (inspect.isfunction(value) or inspect.isclass(value)) and not value.__doc__:
            found.append(name)
        if inspect.isclass(value):
            public = {each: getattr(value, each) for each in vars(value) if not each.startswith("_")}
            methods = {each: of for each, of in public.items() if inspect.isfunction(of) or inspect.ismethod(of)}
            found += [f"{name}.{each}" for each, method in methods.items() if not inspect.getdoc(method)]
    return found


@pytest.mark.parametrize("module", ["warploom", "warploom.structured", "warploom.trace"])
def test_every_public_function_and_method_has_a_docstring(module):
    assert undocumented(module) == []


def test_packages_are_those_of_the_source():
    folders = {file.parent.name for file in SOURCE.parent.glob("*/__init__.py")}
    assert folders - {"commands", "demo"} | {"nn", "diagnostics"} == set(warploom._PACKAGES)


def test_the_version():
    assert warploom.__version__ == "0.2.0"
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {warploom.__version__}" in changelog


def test_star_import():
    modules = loaded_by("from warploom import *; assert linear and launch and __version__ and not hasattr(linear, 'x')")
    assert "warploom.ops" in modules
    assert "torch" not in modules
