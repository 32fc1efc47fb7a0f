"""Everything that needs a GPU, in one go: the tests, then what calls cost the host.

    PYTHONPATH=src python3 tests/gpu/run_all.py [FOLDER]

FOLDER gets the results as JSON. The exit status is that of the tests. Needs pytest, PyTorch and cuda-bindings, and no
plugin: the suite's own conftest is left out, since it wants more than a GPU machine may have.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("test_runtime.py", "test_torch_ops.py", "test_hangs.py")
PATIENCE = 180
COMMON = ("-q", "-m", "gpu", "--noconftest", "-p", "no:cacheprovider", "-rs", "--tb=short", "-W", "ignore")


def run(*command: str) -> int:
    print("$", *command, flush=True)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONUNBUFFERED": "1"}
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # JAX would take the GPU's memory for itself
    try:
        return subprocess.run(
            (sys.executable, *command), cwd=ROOT, env=environment, check=False, timeout=PATIENCE
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"no end after {PATIENCE} s", flush=True)
        return 1


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    status = 0
    run("-m", "warploom.cli", "doctor")
    for name in TESTS:
        file = Path("tests/gpu") / name
        if (ROOT / file).exists():
            status |= run("-m", "pytest", *COMMON, str(file))
    out = ("--out", str(folder / "host_cost.json")) if folder else ()
    run("bench/host_cost.py", *out)
    print("all tests passed" if status == 0 else "some tests failed")
    return status


if __name__ == "__main__":
    sys.exit(main())
