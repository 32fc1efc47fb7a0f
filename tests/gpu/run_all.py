"""Run everything that needs a GPU: the tests, then the benchmark of host time.

    PYTHONPATH=src python3 tests/gpu/run_all.py [FOLDER]

FOLDER gets the results as JSON. The exit status is that of the tests. Needs pytest, PyTorch and cuda-bindings, and no
plugin. Each test file runs in its own process: a kernel that faults makes the GPU unusable for its process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE = 300
COMMON = ("-q", "-m", "gpu", "-p", "no:cacheprovider", "-rs", "--tb=short", "-W", "ignore")
NONE_FOUND = 5
"""pytest's status for a file that has no test for a GPU."""


def run(*command: str) -> int:
    print("$", *command, flush=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1"}
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX would allocate most of the GPU's memory
    try:
        return subprocess.run(
            (sys.executable, *command), cwd=ROOT, env=environment, check=False, timeout=PATIENCE
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"no end after {PATIENCE} s", flush=True)
        return 1


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    run("-m", "warploom.cli", "doctor")
    files = sorted(file.relative_to(ROOT).as_posix() for file in Path(__file__).parent.glob("test_*.py"))
    failed = [file for file in files if run("-m", "pytest", *COMMON, file) not in (0, NONE_FOUND)]
    out = ("--out", str(folder / "host_cost.json")) if folder else ()
    run("bench/host_cost.py", *out)
    print(f"tests failed in {', '.join(failed)}" if failed else "all tests passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
