"""The differential scripts: what they write can be read back, and a wrong bit is seen."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

HERE = Path(__file__).parent
PREPARE = (sys.executable, str(HERE / "prepare.py"))


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_a_flipped_bit_is_a_difference(tmp_path: Path) -> None:
    pytest.importorskip("nvidia")
    subprocess.run([*PREPARE, str(tmp_path), "--only", "cuda_tma", "--no-machine"], check=True, capture_output=True)
    differential = module("differential")
    cases = json.loads((tmp_path / "cases.json").read_text())
    assert [case["name"] for case in cases] == ["cuda_tma_rank3_sm90", "cuda_tma_multicast_sm90"]
    for case in cases:
        stored = np.load(tmp_path / f"{case['name']}.npz")
        outputs = {name: stored[f"reference.{name}"].copy() for name in case["outputs"]}
        assert differential.compare(tmp_path, case, outputs, "reference") == "equal"
        assert differential.compare(tmp_path, case, outputs, "machine") == "absent"
        outputs[case["outputs"][0]][0] ^= 1
        assert "1 of" in differential.compare(tmp_path, case, outputs, "reference")


def test_parameters_are_written_as_the_kernel_declares_them() -> None:
    differential = module("differential")
    assert differential.scalar(-3, "u32").tobytes() == (2**32 - 3).to_bytes(4, "little")
    assert differential.scalar(1.5, "f32").tobytes() == np.float32(1.5).tobytes()
