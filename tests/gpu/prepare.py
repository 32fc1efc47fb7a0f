"""Write the cases that an H200 can run into a folder: PTX, launch, inputs, and the emulator's outputs.

    python tests/gpu/prepare.py FOLDER [--only TEXT] [--no-machine] [--source TRITON]

The cases are the sm_90a kernels of the corpus, the recorded arithmetic forms (`arithmetic.py`), and with a checkout of
Triton launches of its tests (`strangers.py`).

`differential.py` reads that folder on a host with a GPU. PTX is compiled for version 9.0, which CUDA 13.0 accepts.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

import strangers
from arithmetic import LANES, Kernel, kernels
from corpus.case import Arrays, Case, Map, Pointers
from corpus.cases import CASES
from corpus.compile import CompilerMissing
from corpus.run import run

from warploom import launch

PTX_VERSION = 90
HARDWARE = 90
SEED = 7


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
    prepared = case.prepare(seed=SEED, ptx_version=PTX_VERSION)
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


def write_arithmetic(kernel: Kernel, folder: Path, *, machine: bool) -> dict[str, Any]:
    """Write the kernel of some arithmetic forms; return its record for the index."""
    arrays, expected = kernel.arrays, {"out": kernel.expected}
    stored, block = raw(arrays, "in") | raw(expected, "reference"), (LANES, 1, 1)
    if machine:
        after = {name: array.copy() for name, array in arrays.items()}
        launch(kernel.ptx, grid=(1, 1, 1), block=block, args=[after["x"], after["out"]])
        stored |= raw({"out": after["out"]}, "machine")
    (folder / f"{kernel.name}.ptx").write_text(kernel.ptx)
    np.savez_compressed(folder / f"{kernel.name}.npz", allow_pickle=False, **stored)
    return {
        "name": kernel.name,
        "entry": "arithmetic",
        "grid": (1, 1, 1),
        "block": block,
        "cluster": (1, 1, 1),
        "shared_bytes": 0,
        "exact": not kernel.element,
        "rtol": kernel.rtol,
        "atol": kernel.atol,
        "machine_problem": "",
        "buffers": {name: {"dtype": a.dtype.name, "shape": a.shape} for name, a in arrays.items()},
        "outputs": ["out"],
        "args": [{"pointer": "x"}, {"pointer": "out"}],
    }


def records(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, Any] | None]]]:
    """The name of every case, and a function that writes it."""
    folder, machine = options.folder, not options.no_machine
    for case in CASES:
        if case.arch == HARDWARE:
            yield case.name, lambda case=case: write(case, folder, machine=machine)
    for kernel in kernels(SEED):
        yield kernel.name, lambda kernel=kernel: write_arithmetic(kernel, folder, machine=machine)
    if options.source is not None and machine:
        with tempfile.TemporaryDirectory() as scratch:
            for name, path in strangers.record(options.source.resolve(), Path(scratch), SEED):
                yield name, lambda name=name, path=path: strangers.write(name, path, folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--no-machine", action="store_true", help="write inputs and references only")
    parser.add_argument("--source", type=Path, help="a checkout of Triton, whose tests are recorded")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    written = list[dict[str, Any]]()
    for name, make in records(options):
        if options.only not in name:
            continue
        start = time.perf_counter()
        try:
            record = make()
        except CompilerMissing as reason:
            print(f"{name:45} left out: {reason}")
            continue
        if record is None:
            print(f"{name:45} left out")
            continue
        written.append(record)
        print(f"{name:45} {time.perf_counter() - start:5.1f} s  {record['machine_problem']}", flush=True)
    (options.folder / "cases.json").write_text(json.dumps(written, indent=1))
    size = sum(path.stat().st_size for path in options.folder.iterdir()) / 2**20
    print(f"{len(written)} cases, {size:.1f} MiB in {options.folder}")


if __name__ == "__main__":
    main()
