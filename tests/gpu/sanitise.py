"""compute-sanitizer over a small case of each family: memcheck, racecheck and synccheck must find nothing.

    PYTHONPATH=src:. python3 tests/gpu/sanitise.py                          every case with every tool
    PYTHONPATH=src:. python3 tests/gpu/sanitise.py --quick                  four cases
    PYTHONPATH=src:. python3 tests/gpu/sanitise.py --tools racecheck --cases "ping-pong;fp8" --add
    PYTHONPATH=src:. python3 tests/gpu/sanitise.py --machine                no GPU: the cases on the emulator

Each case is a process, several run at a time, and they need NumPy and the driver only. Planted faults must
be found, otherwise the tool is not working. The exit status is 0 if all is well; JSON goes to sanitizer.json in bench/results.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tests.gpu import kernels
from tests.gpu.cases import CASES, Array, Case, Made
from tests.ops.references import plan_on

from warploom import launch
from warploom.ops.planning.prepare import Bound, bound
from warploom.runtime.gpu.driver import Gpu, device
from warploom.runtime.gpu.prepared import Prepared

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
TOOLS = ("memcheck", "racecheck", "synccheck")
PLANTED = {"planted: a store far outside": "memcheck", "planted: a missing barrier": "racecheck"}
"""Faults that a tool must find."""
SUMMARIES = (
    re.compile(r"ERROR SUMMARY: (\d+) error"),
    re.compile(r"RACECHECK SUMMARY: (\d+) hazard"),
)
QUICK = ("ping-pong in clusters", "splits in memory", "grouped", "blockwise")
RIGHT, WRONG = "result: right", "result: wrong"


class Memory:
    """Memory of the first GPU, through the driver alone."""

    def __init__(self) -> None:
        self.device = device(0)
        self.device.make_current()

    def put(self, array: Array) -> int:
        """Copy to the GPU; the memory is never freed."""
        held, address = np.ascontiguousarray(array), ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(held.nbytes))
        self._call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(held.nbytes))
        return address.value

    def get(self, address: int, like: Array) -> Array:
        found = np.empty(like.shape, like.dtype)  # in C order, whatever the order of `like`
        to, size = ctypes.c_void_p(found.ctypes.data), ctypes.c_size_t(found.nbytes)
        self._call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(address), size)
        return found

    def wait(self) -> None:
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        self.device.driver.call(name, *arguments)


def placed(array: Array) -> Array:
    """An array with its axes in memory order."""
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def call_of(case: Case, made: Made, gpu: Gpu, target: str) -> Bound:
    """A case bound for a GPU with few SMs; no array may be copied, since the addresses are those of the arrays."""
    small = SimpleNamespace(gpu=replace(gpu, sms=case.sms), target=target)
    call = bound(made.operation, made.arguments, small)
    assert not call.copied, call.copied
    return call


def run_on_gpu(case: Case) -> bool:
    """Run twice, since a launch may leave state that disturbs the next; return whether the result was right."""
    gpu, made = Memory(), case.made()
    call = call_of(case, made, gpu.device.gpu, gpu.device.target)
    prepared = Prepared(call.launch, tuple(call.arrays.values()), device=gpu.device)
    names = [name.rpartition(".")[2] for name in call.arrays]  # arrays of a mapping come after its name
    addresses = tuple(gpu.put(placed(made.arrays[name])) for name in names)
    for _ in range(2):
        prepared.launch_at(addresses, 0)
        gpu.wait()
    found = dict(zip(names, addresses, strict=True))
    wanted = {"out": made.want, **made.further}
    return all(same(gpu.get(found[name], want), want) for name, want in wanted.items())


def run_on_the_emulator(case: Case) -> bool:
    made, hopper = case.made(), Gpu("", (9, 0), case.sms, 0)
    call_of(case, made, hopper, "sm_90a")
    planned = plan_on(hopper, made.operation, **made.arguments, target="sm_90a")
    launch(planned.launch, sms=case.sms)
    wanted = {"out": made.want, **made.further}
    return all(same(made.arrays[name], want) for name, want in wanted.items())


def same(found: Array, want: Array) -> bool:
    return bool(np.array_equal(found.astype(np.float64), want.astype(np.float64)))


def plant(name: str) -> None:
    """A fault that the tool must find."""
    gpu, out = Memory(), np.zeros(kernels.THREADS, np.uint32)
    shape = {"grid": (1, 1, 1), "block": (kernels.THREADS, 1, 1)}
    far = kernels.stray.bind(out, 1 << 16, **shape)
    chosen = far if PLANTED[name] == "memcheck" else kernels.missing_barrier.bind(out, **shape)
    Prepared(chosen, (out,), device=gpu.device).launch_at((gpu.put(out),), 0)
    gpu.wait()


def one(name: str) -> int:
    """Run a case in this process."""
    if name in PLANTED:
        plant(name)
        return 0
    print(RIGHT if run_on_gpu(CASES[name]) else WRONG, flush=True)
    return 0


def sanitizer() -> str | None:
    folders = [os.environ.get("PATH", ""), "/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def sanitised(program: str, tool: str, name: str, limit: float) -> dict[str, Any]:
    """Run a case under a tool, in its own process."""
    command = [program, "--tool", tool, "--target-processes", "application-only", "--report-api-errors", "no"]
    command += ["--print-limit", "3", sys.executable, __file__, "--one", name]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OPENBLAS_NUM_THREADS": "1"}
    started = time.monotonic()
    try:
        run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
        text = run.stdout + run.stderr
    except subprocess.TimeoutExpired as error:
        text = f"no end after {limit:.0f} s\n{(error.stdout or b'').decode('utf-8', 'replace')}"
    return {"case": name, "tool": tool, **verdict(text, name), "seconds": round(time.monotonic() - started, 1)}


def verdict(text: str, name: str) -> dict[str, Any]:
    """Parse a tool's output: the errors found, whether that is the expected number, and some lines if it is not."""
    found = [int(match[1]) for pattern in SUMMARIES if (match := pattern.search(text))]
    errors = max(found) if found else None
    well = bool(errors) if name in PLANTED else errors == 0 and RIGHT in text
    row: dict[str, Any] = {"errors": errors, "well": well}
    if not well:
        lines = [line.removeprefix("=========").strip() for line in text.splitlines()]
        row["says"] = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")][:12]
    return row


def line_of(row: dict[str, Any]) -> str:
    errors = "no summary" if row["errors"] is None else f"{row['errors']} found"
    text = f"{row['tool']:10} {row['case']:32} {errors:12} {'well' if row['well'] else 'NOT WELL':9} {row['seconds']:5.1f} s"
    return "\n    ".join([text, *row.get("says", [])])


def machine() -> dict[str, Any]:
    asked = ["name", "driver_version"]
    command = ["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader", "-i", "0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(("gpu", "driver"), (each.strip() for each in answer.split(",")), strict=False))


def on_the_emulator(names: list[str]) -> int:
    failed = 0
    for name in names:
        right = run_on_the_emulator(CASES[name])
        failed += not right
        print(f"{name:32} {'right' if right else 'WRONG'}", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--cases", help="names, with `;` between them; all of them if none is named")
    parser.add_argument("--jobs", type=int, default=6, help="processes at a time")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a case has hung")
    parser.add_argument("--quick", action="store_true", help="four cases")
    parser.add_argument("--out", type=Path, help="the folder for JSON: bench/results, of --quick build/bench")
    parser.add_argument("--add", action="store_true", help="keep rows of earlier runs that are not run again")
    parser.add_argument("--machine", action="store_true", help="the cases on the emulator, without the tools")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        return one(asked.one)
    names = asked.cases.split(";") if asked.cases else list(QUICK if asked.quick else CASES)
    if asked.machine:
        return 1 if on_the_emulator(names) else 0
    program = sanitizer()
    if program is None:
        print("compute-sanitizer is not there")
        return 2
    tools = asked.tools.split(",")
    jobs = [(tool, name) for name, tool in PLANTED.items() if tool in tools]
    jobs += [(tool, name) for name in names for tool in tools]
    folder = asked.out or (ROOT / "build" / "bench" if asked.quick else RESULTS)
    file, rows = folder / "sanitizer.json", []
    if asked.add and file.exists():
        kept = json.loads(file.read_text("utf-8"))["rows"]
        rows = [row for row in kept if (row["tool"], row["case"]) not in jobs]
    about = {"what": "sanitizer", "machine": machine()}
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        for row in pool.map(lambda job: sanitised(program, *job, asked.limit), jobs):
            rows.append(row)
            print(line_of(row), flush=True)
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            text = json.dumps({**about, "when": when, "rows": rows}, indent=1, ensure_ascii=False)
            file.write_text(text + "\n", "utf-8")
    bad = [row for row in rows if not row["well"]]
    print(f"{len(rows)} runs, {len(bad)} not well")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
