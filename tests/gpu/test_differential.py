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


def test_arithmetic_kernels_are_written(tmp_path: Path) -> None:
    command = [*PREPARE, str(tmp_path), "--only", "arithmetic_f32_f32_f32"]
    subprocess.run(command, check=True, capture_output=True)
    (case,) = json.loads((tmp_path / "cases.json").read_text())
    stored = np.load(tmp_path / f"{case['name']}.npz")
    outputs = {"out": stored["reference.out"]}
    assert module("differential").compare(tmp_path, case, outputs, "machine") == "equal"


RECORDED = {
    "ptx": "k.ptx", "entry": "k", "grid": [1, 1, 1], "block": [32, 1, 1], "cluster": [1, 1, 1], "shared_bytes": 0,
    "buffers": {
        "buffer0": {"dtype": "float32", "shape": [4], "init": {"file": "0.bin"}},
        "buffer1": {"dtype": "int32", "shape": [2], "init": {"file": "1.bin"}},
        "buffer0_after": {"dtype": "float32", "shape": [4], "init": {"file": "2.bin"}},
    },
    "args": [{"pointer": "buffer0", "offset": 4}, {"s32": -3}, {"tensor_map": "buffer1", "box": [2], "swizzle": "none"}],
}  # fmt: skip


def test_recorded_launches_become_cases(tmp_path: Path) -> None:
    strangers, differential = module("strangers"), module("differential")
    (tmp_path / "k.ptx").write_text(".version 9.2\n.target sm_90a\n")
    values = np.arange(4, dtype=np.float32)
    for number, array in enumerate((0 * values, np.arange(2, dtype=np.int32), values)):
        array.tofile(tmp_path / f"{number}.bin")
    path = tmp_path / "k.launch.json"
    path.write_text(json.dumps(RECORDED))
    case = strangers.write("stranger", path, tmp_path)
    assert (tmp_path / "stranger.ptx").read_text().startswith(".version 9.0")
    assert case["args"][1:] == [
        {"scalar": -3, "type": "s32"},
        {"map": "buffer1", "box": [2], "swizzle": "none"},
    ]
    assert differential.place(case["args"][0], {"buffer0": 256}) == 260
    assert case["outputs"] == ["buffer0"]
    found = {"buffer0": values.view(np.uint8).copy()}
    assert differential.compare(tmp_path, case, found, "machine") == "equal"
    found["buffer0"].view(np.float32)[3] *= np.float32(1 + 1e-6)
    assert differential.compare(tmp_path, case, found, "machine") == "close"
    found["buffer0"].view(np.float32)[3] = 5
    assert "1 of 4 differ" in differential.compare(tmp_path, case, found, "machine")
