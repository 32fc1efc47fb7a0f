"""Every example runs from top to bottom, and its own assertions hold."""

from __future__ import annotations

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.assembly import assemble_ok

from warploom import TensorMap

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_matmul_from_scratch_assembles_without_a_spill() -> None:
    example = runpy.run_path(str(EXAMPLES[0].parent / "matmul_from_scratch.py"))
    a, b = (TensorMap(np.zeros((rows, 64), ml_dtypes.bfloat16), box=(rows, 64), swizzle="128B") for rows in (128, 64))
    arrays = (a, b, np.zeros((128, 64), np.float32), 1, 1)
    assemble_ok(example["matmul"].bind(*arrays, grid=(1, 1, 1), block=(192, 1, 1)))
