"""Kernels under type checkers: a documented kernel has no false error, and a wrong literal is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = [Path(__file__).with_name("typed_kernel.py"), ROOT / "examples" / "first_kernel.py"]
WRONG = {
    'cta_index("w")': "cta_index",
    'shuffle(thread(), "left", 1)': "shuffle",
    'x.atomic("ad", 1.0, 0)': "atomic",
    "kernel(target=90)": "kernel",
}


def wrong_kernel(folder):
    """A file with one mistake on each line after the head."""
    file = folder / "wrong_kernel.py"
    head = [
        "from __future__ import annotations",
        "from warploom.trace import Array, cta_index, f32, kernel, shuffle, thread",
        "@kernel",
        "def wrong(x: Array[f32]) -> None:",
    ]
    file.write_text("\n".join([*head, *(f"    {line}" for line in WRONG)]) + "\n", "utf-8")
    return file, [len(head) + 1 + at for at in range(len(WRONG))]


def mypy(folder, *files):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), "--no-error-summary"]
    command += ["--follow-imports=silent"]  # as for an installed package
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    run = subprocess.run(
        [*command, "--config-file=", *map(str, files)],
        capture_output=True, text=True, check=False, cwd=folder, env=environment,
    )  # fmt: skip
    assert not run.stderr, run.stderr
    return run.stdout


def pyright(folder, *files):
    pytest.importorskip("pyright")
    settings = {
        "include": [str(file) for file in files],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "src")],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if not run.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run: {run.stderr[:200]}")
    return json.loads(run.stdout)["generalDiagnostics"]


@pytest.mark.slow
def test_mypy_has_no_false_error_and_finds_wrong_literals(tmp_path):
    file, lines = wrong_kernel(tmp_path)
    errors = [line for line in mypy(tmp_path, *KERNELS, file).splitlines() if ": error: " in line]
    assert [line for line in errors if not line.startswith(file.name)] == []
    assert sorted({int(line.split(":")[1]) for line in errors}) == lines


@pytest.mark.slow
def test_pyright_has_no_false_error_and_finds_wrong_literals(tmp_path):
    file, lines = wrong_kernel(tmp_path)
    found = [each for each in pyright(tmp_path, *KERNELS, file) if each["severity"] == "error"]
    assert [each for each in found if each["file"] != str(file)] == []
    assert sorted({each["range"]["start"]["line"] + 1 for each in found}) == lines
