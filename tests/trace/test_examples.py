"""The examples that are written directly on the tracing layer run, assemble, and are right."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import accepted, assembled

from warploom import TensorMap

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MATMULS = {"first_kernel": 288, "first_blackwell_kernel": 192}


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
@pytest.mark.parametrize("name", MATMULS)
def test_matmuls_are_exact(name, schedule):
    assert load(name).run(128, 256, 448, schedule) == 0


@pytest.mark.parametrize("name", MATMULS)
def test_matmuls_assemble_without_spills(name):
    a = TensorMap(np.zeros((256, 64), ml_dtypes.bfloat16), box=(128, 64), swizzle="128B")
    out = np.zeros((256, 256), np.float32)
    text = accepted(load(name).matmul.bind(a, a, out, 1, grid=(2, 2, 1), block=(MATMULS[name], 1, 1)))
    assert "//!wl role load " in text
    assert "//!wl barrier full " in text
    assert " 0 bytes spill stores, 0 bytes spill loads" in assembled(text)


def test_first_kernel_is_a_script():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "first_kernel.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("right")
