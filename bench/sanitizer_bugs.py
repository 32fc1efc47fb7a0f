"""compute-sanitizer on the bugs of `tests/checker/real_bugs`, before and after their fix, on an H200.

    PYTHONPATH=src python bench/sanitizer_bugs.py            # writes bench/results/sanitizer_bugs.json

Every kernel runs in a process of its own under each tool, since a bug may be a hang: a process that does not end in time is
killed. The same launch without a tool shows whether the GPU's result is the one of the fixed kernel.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from revision import revision

HERE = Path(__file__).parent
FOLDER = HERE.parent / "tests" / "checker" / "real_bugs"
RESULTS = Path(os.environ.get("SANITIZER_BUGS", HERE / "results" / "sanitizer_bugs.json"))
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
_SUMMARIES = (re.compile(r"ERROR SUMMARY: (\d+) error"), re.compile(r"RACECHECK SUMMARY: (\d+) hazard"))
_DONE = "result: "


def one(name: str, version: str) -> None:
    """Launch a kernel on the GPU in this process, and print its result."""
    from warploom.launcher import launch_of
    from warploom.runtime.gpu.driver import device
    from warploom.runtime.gpu.prepared import Prepared

    bug = json.loads((FOLDER / "bugs.json").read_text("utf-8"))[name]
    arrays = (np.arange(bug["inputs"], dtype=np.int32), np.zeros(bug["outputs"], np.int32))
    text = (FOLDER / f"{name}.{version}.ptx").read_text("utf-8")
    gpu = device(0)
    gpu.make_current()
    ctas = bug.get("ctas", 1)
    launch = launch_of(text, grid=ctas, cluster=ctas, block=bug["threads"], args=arrays)
    prepared = Prepared(launch, arrays, device=gpu)
    addresses = []
    for array in arrays:
        address = ctypes.c_uint64()
        gpu.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(array.nbytes))
        gpu.driver.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))
        addresses.append(address.value)
    prepared.launch_at(tuple(addresses), 0)
    gpu.driver.call("cuCtxSynchronize")
    out = arrays[1]
    to, size = ctypes.c_void_p(out.ctypes.data), ctypes.c_size_t(out.nbytes)
    gpu.driver.call("cuMemcpyDtoH_v2", to, ctypes.c_uint64(addresses[1]), size)
    print(_DONE + json.dumps(out.tolist()), flush=True)


def ran(program: str, tool: str, name: str, version: str, limit: float) -> dict[str, Any]:
    """The outcome of a kernel under a tool, or without one."""
    command = [sys.executable, __file__, "--one", name, version]
    if tool:
        options = ["--target-processes", "application-only", "--report-api-errors", "no", "--print-limit", "3"]
        command = [program, "--tool", tool, *options, *command]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        text, has_ended = run.stdout + run.stderr, True
    except subprocess.TimeoutExpired as error:
        text, has_ended = (error.stdout or b"").decode("utf-8", "replace"), False
    result = next((line.partition(_DONE)[2] for line in text.splitlines() if _DONE in line), "")
    found = [int(match[1]) for pattern in _SUMMARIES if (match := pattern.search(text))]
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if _DONE not in line]
    said = [line for line in lines if line and not line.startswith(("COMPUTE-SANITIZER", "Target", "Copyright"))]
    return {"ended": has_ended, "errors": max(found) if found else None, "result": result, "says": said[:3]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time (4)")
    parser.add_argument("--limit", type=float, default=20, help="seconds after which a kernel hangs (20)")
    parser.add_argument("--bugs", nargs="*", metavar="NAME", help="only these; the results of the others are kept")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return 0
    program = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if program is None:
        print("compute-sanitizer is not there")
        return 2
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.split()
    bugs = json.loads((FOLDER / "bugs.json").read_text("utf-8"))
    kept = json.loads(RESULTS.read_text("utf-8"))["bugs"] if options.bugs else {}
    bugs = {name: bug for name, bug in bugs.items() if not options.bugs or name in options.bugs}
    jobs = [(tool, name, when) for tool in ("", *TOOLS) for name in bugs for when in ("before", "after")]
    rows: dict[str, Any] = {name: {"issue": bug["issue"], "before": {}, "after": {}} for name, bug in bugs.items()}
    with ThreadPoolExecutor(options.jobs) as pool:
        for (tool, name, when), row in zip(
            jobs, pool.map(lambda job: ran(program, *job, options.limit), jobs), strict=True
        ):
            rows[name][when][tool or "alone"] = row
            print(name, when, tool or "alone", row["ended"], row["errors"], row["says"][:2], flush=True)
    for row in rows.values():
        wanted = row["after"]["alone"]["result"]
        for each in (*row["before"].values(), *row["after"].values()):
            result = each.pop("result")
            each["right"] = result == wanted if result else None
    number = next((word for word in version if word[:1].isdigit() and "." in word), " ".join(version[-2:]))
    found = {"version": number, "revision": revision(), "bugs": {**kept, **rows}}
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
