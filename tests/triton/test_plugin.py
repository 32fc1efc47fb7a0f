"""The pytest plugin: a test suite of Triton kernels on the emulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

SUITE = """
import pytest, torch, triton
from tests.triton import kernels

DEVICE = triton.runtime.driver.active.get_active_torch_device()

@pytest.mark.skip(reason="before any other test has started")
def test_skipped():
    pass

@pytest.mark.parametrize("n", [100, 128])
def test_add(n):
    x, out = torch.randn(n, device=DEVICE), torch.full((n,), float("nan"), device=DEVICE)
    kernels.add[(1,)](x, x, out, n, BLOCK=128)
    assert torch.equal(out, 2 * x)
    assert torch.cuda.get_device_capability() == (10, 0)

def test_wrong():
    x = torch.ones(8, device=DEVICE)
    kernels.add[(1,)](x, x, x, 8, BLOCK=16)
    assert torch.equal(x, torch.ones(8))

def test_slow():
    while True:
        pass

def test_stubborn():
    try:
        test_slow()
    except Exception:
        test_slow()

def test_nothing():
    pass
"""


CONFTEST = """
import torch

assert torch.cuda.is_available(), "conftest.py is imported before the GPU is emulated"
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "warploom.triton.pytest_plugin", *arguments]
    path = os.pathsep.join((str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_an_error_in_a_conftest_is_the_only_one(tmp_path):
    (tmp_path / "conftest.py").write_text("import torch\nraise ValueError('of the suite')\n")
    done = run(tmp_path)
    assert done.returncode == 4
    assert "of the suite" in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_suite_runs(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    suite, report = tmp_path / "test_suite.py", tmp_path / "report.xml"
    suite.write_text(SUITE)
    options = ("--triton-target", "sm_100", "--triton-timeout", "12", "--junitxml", str(report))
    options += ("--triton-record", str(tmp_path / "recorded"))
    done = run(tmp_path, *options, str(suite))
    cases = {case.get("name"): case for case in ET.parse(report).iter("testcase")}
    properties = {
        name: {each.get("name"): each.get("value") for each in case.iter("property")} for name, case in cases.items()
    }
    launches = {name: each["launches"] for name, each in properties.items()}
    assert launches == {
        "test_skipped": "0",
        "test_add[100]": "1",
        "test_add[128]": "1",
        "test_wrong": "1",
        "test_slow": "0",
        "test_stubborn": "0",
        "test_nothing": "0",
    }
    assert float(properties["test_slow"]["cpu_seconds"]) > 11
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == {"test_wrong", "test_slow", "test_stubborn"}
    recorded = {path.parent.name for path in (tmp_path / "recorded").glob("*/*.launch.json")}
    assert recorded == {"test_add_100_", "test_add_128_", "test_wrong"}
    assert "did not finish within 12.0 s" in done.stdout
