"""Write the cases of the corpus that an H200 can run into a folder: PTX, launch, inputs, and the emulator's outputs.

    python tests/gpu/prepare.py FOLDER [--only TEXT] [--no-machine]

`differential.py` reads that folder on a host with a GPU. PTX is compiled for version 9.0, which CUDA 13.0 accepts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpus.case import Arrays, Case, Map, Pointers
from corpus.cases import CASES
from corpus.compile import CompilerMissing
from corpus.run import run

PTX_VERSION = 90
HARDWARE = 90


def parameter_types(ptx: str, entry: str) -> list[str]:
    """The declared type of each parameter of a kernel, in order."""
    header = re.search(rf"\.entry\s+{re.escape(entry)}\s*\((.*?)\)\s*(?:\.|\{{)", ptx, re.DOTALL)
    if header is None:
        raise ValueError(f"there is no entry {entry}")
    return re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)", header.group(1))


def describe(argument: Any, declared: str) -> dict[str, Any]:
    """One launch argument as JSON."""
    match argument:
        case Map(buffer, box, swizzle):
            return {"map": buffer, "box": list(box), "swizzle": swizzle}
        case Pointers(buffers):
            return {"pointers": list(buffers)}
        case str():
            return {"pointer": argument}
        case _:
            return {"scalar": argument, "type": declared}


def raw(arrays: Arrays, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays as bytes, so that the reader needs no special types."""
    return {f"{prefix}.{name}": np.ascontiguousarray(a).reshape(-1).view(np.uint8) for name, a in arrays.items()}


def write(case: Case, folder: Path, *, machine: bool) -> dict[str, Any]:
    """Write one case to disk; return its record for the index."""
    prepared = case.prepare(seed=7, ptx_version=PTX_VERSION)
    compiled = prepared.compiled
    types = parameter_types(compiled.ptx, compiled.entry)
    if len(types) != len(prepared.args):
        raise ValueError(f"{case.name}: {len(prepared.args)} arguments for {len(types)} parameters")
    expected = {name: want.astype(prepared.arrays[name].dtype) for name, want in case.expected(prepared.arrays).items()}
    stored = raw(prepared.arrays, "in") | raw(expected, "reference")
    problem = ""
    if machine:
        try:
            after = run(prepared)
            stored |= raw({name: after[name] for name in expected}, "machine")
        except Exception as error:  # noqa: BLE001  (a case that the emulator cannot run is still compared with the reference)
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
    (folder / f"{case.name}.ptx").write_text(compiled.ptx)
    np.savez_compressed(folder / f"{case.name}.npz", allow_pickle=False, **stored)
    return {
        "name": case.name,
        "entry": compiled.entry,
        "grid": prepared.grid,
        "block": compiled.block,
        "cluster": compiled.cluster,
        "shared_bytes": compiled.shared_bytes,
        "exact": case.exact,
        "rtol": case.rtol,
        "atol": case.atol,
        "machine_problem": problem,
        "buffers": {name: {"dtype": a.dtype.name, "shape": a.shape} for name, a in prepared.arrays.items()},
        "outputs": sorted(expected),
        "args": [describe(argument, declared) for argument, declared in zip(prepared.args, types, strict=True)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--no-machine", action="store_true", help="write inputs and references only")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    records = []
    for case in CASES:
        if case.arch != HARDWARE or options.only not in case.name:
            continue
        start = time.perf_counter()
        try:
            records.append(write(case, options.folder, machine=not options.no_machine))
        except CompilerMissing as reason:
            print(f"{case.name:45} left out: {reason}")
            continue
        print(f"{case.name:45} {time.perf_counter() - start:5.1f} s  {records[-1]['machine_problem']}")
    (options.folder / "cases.json").write_text(json.dumps(records, indent=1))
    size = sum(path.stat().st_size for path in options.folder.iterdir()) / 2**20
    print(f"{len(records)} cases, {size:.1f} MiB in {options.folder}")


if __name__ == "__main__":
    main()
