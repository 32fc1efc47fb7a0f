"""Descriptors, scale layouts and im2col maps that nvcc makes of CUTLASS's layouts; `python -m tests.foreign.nvcc CHECKOUT`.

The checkout is of github.com/NVIDIA/cutlass; nvcc must be on the PATH. `descriptors.cu` is compiled for Hopper and
Blackwell and run on the emulator, and the values that it prints and the tensor maps that it encodes are written to
`nvcc.json`, which the tests read. Nothing of the checkout is stored.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from tests.foreign.descriptors import matrix

from warploom.cuda.build import build
from warploom.cuda.options import Options
from warploom.cuda.session import Session
from warploom.hardware.bitfields import unpack
from warploom.hardware.instruction_descriptors import LAYOUT as INSTRUCTION

FILE = Path(__file__).with_name("nvcc.json")
SOURCE = Path(__file__).with_name("descriptors.cu")
KINDS = {"sm_90a": ("wgmma", "wgmma e4m3"),
    "sm_100a": ("f16", "bf16 M=64", "f8f6f4", "f16 pair", "tf32", "mxfp8", "mxfp4", "nvfp4", "w4a8"),
}  # fmt: skip
"""The layouts of `descriptors.cu`, in its order."""
_TABLES = {
    "f16": "f16", "bf16 M=64": "f16", "f8f6f4": "f8f6f4", "f16 pair": "f16", "tf32": "tf32", "mxfp8": "mxf8f6f4",
    "mxfp4": "mxf4", "nvfp4": "mxf4nvf4", "w4a8": "mxf8f6f4",
}  # fmt: skip
"""The MMA kind of each."""


def digest(offsets: Any) -> str:
    return hashlib.sha256(np.asarray(offsets, np.int32).tobytes()).hexdigest()


def described(name: str, row: list[int]) -> dict[str, Any]:
    """Return the fields of a row of descriptors, as `recorded` has them."""
    a, b, scale, instruction = row
    if name not in _TABLES:
        return {side: matrix(value, "sm_90", mn_major=False) for side, value in (("a", a), ("b", b))}
    fields = unpack(INSTRUCTION[_TABLES[name]], instruction)
    found: dict[str, Any] = {
        "instruction": {field: value for field, value in fields.items() if field != "reserved"},
        "a": matrix(a, "sm_100", mn_major=False),
        "b": matrix(b, "sm_100", mn_major=False),
    }
    return found | ({"copy": matrix(scale, "sm_100", mn_major=False)} if scale else {})


def run(checkout: Path, target: str, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Compile and run the program; return its output, and the tensor maps that it encoded."""
    flags = ["--expt-relaxed-constexpr", "-DNDEBUG", f"-I{checkout}/include", f"-I{checkout}/tools/util/include"]
    flags += ["-DHOPPER"] if target == "sm_90a" else []
    session = Session(Options(target=target), build(SOURCE, folder, target=target, flags=flags))
    with (folder / "output").open("w+b") as file:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            status = session.run(["descriptors"], lambda status: status)
        finally:
            os.dup2(kept, 1)
        file.seek(0)
        text = file.read().decode()
    if status or session.error:
        raise RuntimeError(f"the program ended with {status}: {session.error}")
    return text, list(session._maps.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout.resolve()
    release = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    found: dict[str, Any] = {"nvcc": re.findall(r"V([\d.]+)", release)[0], "layouts": {}}
    for target, names in KINDS.items():
        with tempfile.TemporaryDirectory() as folder, get_context("spawn").Pool(1) as pool:  # a process has one runtime
            text, maps = pool.apply(run, (checkout, target, Path(folder)))
        rows = [[int(each) for each in line.split()[1:]] for line in text.splitlines() if line.startswith("row")]
        found["layouts"] |= {name: described(name, row) for name, row in zip(names, rows, strict=False)}
        scales = [[int(each) for each in line.split()[1:]] for line in text.splitlines() if line.startswith("scales")]
    found["scales"] = [
        {"run": run, "rows": rows, "k": k, "offsets": digest(offsets)} for run, rows, k, *offsets in scales
    ]
    found["im2col"] = maps
    FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
