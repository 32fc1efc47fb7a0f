"""Type checkers over a user's programs: an error on every line that ends with `# error`, and on no other."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
CHECKERS = ["mypy", *(["pyright"] if importlib.util.find_spec("pyright") and shutil.which("node") else [])]


def mypy() -> Iterable[tuple[str, int, str]]:
    """The errors that mypy's strict mode finds in the programs: file, line, message."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(PROGRAMS)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    for path, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", run.stdout, re.MULTILINE):
        yield Path(path).name, int(line), text


def pyright() -> Iterable[tuple[str, int, str]]:
    """The errors that pyright's strict mode finds in the programs."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(PROGRAMS)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for found in json.loads(run.stdout)["generalDiagnostics"]:
        if found["severity"] == "error":
            yield Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"]


def expected() -> set[tuple[str, int]]:
    return {
        (file.name, number)
        for file in PROGRAMS.glob("*.py")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if line.endswith("# error")
    }


@pytest.mark.parametrize("checker", CHECKERS)
def test_errors_are_where_they_are_expected(checker):
    found = {(file, line): text for file, line, text in globals()[checker]()}
    false = {place: text for place, text in found.items() if place not in expected()}
    assert false == {}, "errors in correct lines"
    assert expected() - found.keys() == set(), "wrong lines without an error"
