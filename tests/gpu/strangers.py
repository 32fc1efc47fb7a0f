"""Launches of other people's Triton and Gluon programs for the differential, recorded on the emulator.

Of a checkout of Triton, some test functions run under warploom's pytest plugin, one case of each, drawn by a seed. Every
launch of a test that passes becomes a case: its PTX, its memory before, and the emulator's memory after it. Nothing of the
checkout is stored in this repository.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import ml_dtypes
import numpy as np

ROOT = Path(__file__).parents[2]
LANGUAGE, GLUON = "python/test/unit/language", "python/test/gluon/test_core.py"
FUNCTIONS: dict[str, tuple[str, ...]] = {
    f"{LANGUAGE}/test_core.py": (
        "test_bin_op", "test_shift_op", "test_compare_op", "test_where", "test_unary_op", "test_math_op",
        "test_math_divide_op", "test_precise_math", "test_noinline", "test_tensor_atomic_rmw", "test_cast",
        "test_umulhi", "test_interleave", "test_reduce", "test_scan2d", "test_histogram", "test_generic_reduction",
        "test_permute", "test_dot", "test_dot3d", "test_inline_asm_packed", "test_map_elementwise", "test_gather",
        "test_chained_reductions", "test_propagate_nan",
    ),
    f"{LANGUAGE}/test_standard.py": ("test_sort", "test_flip"),
    f"{LANGUAGE}/test_random.py": ("test_randint",),
    f"{LANGUAGE}/test_conversions.py": ("test_typeconvert_downcast",),
    f"{LANGUAGE}/test_tensor_descriptor.py": (
        "test_tensor_descriptor_load", "test_tensor_descriptor_store", "test_tensor_descriptor_reduce",
    ),
    GLUON: (
        "test_tma", "test_warpgroup_mma", "test_async_copy_mbarrier", "test_device_tma_load", "test_device_tma_store",
        "test_mma_shared_inputs", "test_tma_multicast_copy", "test_mma_v2", "test_dot_fma", "test_shared_gather",
        "test_shared_scatter", "test_gather_2d_native",
    ),
}  # fmt: skip
"""Test functions by their file."""
SECONDS = 60
"""The most that one test may take."""
MOST_BYTES = 8 << 20
"""The most memory of a launch."""
MOST_PTX = (9, 0)
"""The newest PTX that the driver of CUDA 13.0 accepts."""
_F16_ACCUMULATOR = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync)\.\S*k\d+\.f16\.")
CLOSE = {"float64": 1e-12, "float32": 2e-4, "float16": 4e-3, "bfloat16": 2e-2}
"""Relative differences that are allowed where tensor cores and `.approx` functions round differently; 0 for others."""


def names(source: Path, file: str, rng: random.Random) -> list[str]:
    """One case of each function of a file, for pytest."""
    command, found = [*_pytest(), "--collect-only", *(f"{file}::{each}" for each in FUNCTIONS[file])], list[str]()
    done = subprocess.run(command, cwd=source, env=_environment(), capture_output=True, text=True, check=False)
    listed = [line for line in done.stdout.splitlines() if line.startswith(file)]
    for function in FUNCTIONS[file]:
        cases = [name for name in listed if name.partition("[")[0] == f"{file}::{function}"]
        found += [rng.choice(cases)] if cases else []
    return found


def _pytest() -> list[str]:
    plugins = ("-p", "warploom.triton.pytest_plugin", "-p", "no:cacheprovider")
    return [sys.executable, "-m", "pytest", "-q", "--no-header", *plugins, "--triton-target", "sm_90"]


def _environment() -> dict[str, str]:
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "TRITON_DEFAULT_FP_FUSION": "1"}


def record(source: Path, folder: Path, seed: int) -> Iterator[tuple[str, Path]]:
    """Run the tests; the name and the launch file of each launch of those that pass."""
    rng, report = random.Random(seed), folder / "report.xml"
    for file in FUNCTIONS:
        options = ("--triton-timeout", str(SECONDS), "--triton-record", str(folder), "--junitxml", str(report))
        command = [*_pytest(), *options, *names(source, file, rng)]
        subprocess.run(command, cwd=source, env=_environment(), capture_output=True, text=True, check=False)
        for case in ET.parse(report).iter("testcase") if report.exists() else ():
            name = case.get("name") or ""
            if not any(case.find(tag) is not None for tag in ("skipped", "failure", "error")):
                recorded = folder / re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:96]
                for number, path in enumerate(sorted(recorded.glob("*.launch.json"))):
                    yield f"stranger_{name.partition('[')[0]}_{number}", path
        report.unlink(missing_ok=True)


def write(name: str, path: Path, folder: Path) -> dict[str, Any] | None:
    """Write one recorded launch as a case; None for one that changes nothing, is too large, or has a map that is not tiled."""
    launch = json.loads(path.read_text("utf-8"))
    buffers = {key: value for key, value in launch["buffers"].items() if not key.endswith("_after")}
    outputs = [key.removesuffix("_after") for key in launch["buffers"] if key.endswith("_after")]
    stored = {f"in.{key}": np.fromfile(path.parent / value["init"]["file"], np.uint8) for key, value in buffers.items()}
    for key in outputs:
        file = launch["buffers"][f"{key}_after"]["init"]["file"]
        stored[f"machine.{key}"] = np.fromfile(path.parent / file, np.uint8)
    im2col = any(each.get("mode", "tiled") != "tiled" for each in launch["args"])
    if not outputs or im2col or sum(each.nbytes for each in stored.values()) > MOST_BYTES:
        return None
    kinds = {buffers[key]["dtype"] for key in outputs}
    text = (path.parent / launch["ptx"]).read_text("utf-8")
    if _F16_ACCUMULATOR.search(text):
        kinds.add("float16")  # whatever the type of the outputs, the sums are rounded to it
    close = max(CLOSE.get(kind, 0.0) for kind in kinds)
    size = 0.0
    for key in outputs:
        values = stored[f"machine.{key}"].view(
            np.dtype(getattr(ml_dtypes, buffers[key]["dtype"], buffers[key]["dtype"]))
        )
        numbers = np.abs(values.astype(np.float64))
        size = max(size, float(np.max(numbers, where=np.isfinite(numbers), initial=0.0)))
    (folder / f"{name}.ptx").write_text(_older(text), "utf-8")
    np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **stored)
    return {
        "name": name,
        "entry": launch["entry"],
        "grid": launch["grid"],
        "block": launch["block"],
        "cluster": launch["cluster"],
        "shared_bytes": launch["shared_bytes"],
        "exact": not close,
        "rtol": close,
        "atol": close * size / 16,
        "machine_problem": "",
        "has_reference": False,
        "buffers": {key: {"dtype": value["dtype"], "shape": value["shape"]} for key, value in buffers.items()},
        "outputs": outputs,
        "args": [_argument(each) for each in launch["args"]],
    }


def _argument(argument: dict[str, Any]) -> dict[str, Any]:
    """An argument of a launch file as `differential.py` reads it."""
    if "tensor_map" in argument:
        return {"map": argument["tensor_map"], **{key: argument[key] for key in argument.keys() - {"tensor_map"}}}
    if "pointer" in argument or "pointers" in argument:
        return argument
    ((kind, value),) = argument.items()
    return {"scalar": value, "type": kind}


def _older(ptx: str) -> str:
    """The text for the newest PTX that the driver knows: Triton asks for the version of its own assembler."""
    found = re.search(r"^\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    if found is None or (int(found[1]), int(found[2])) <= MOST_PTX:
        return ptx
    return ptx.replace(found[0], ".version {}.{}".format(*MOST_PTX), 1)
