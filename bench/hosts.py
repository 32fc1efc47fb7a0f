"""The README's two commands as on other computers: BLAS kernels of other CPUs, and NumPy without its vector code.

    python bench/hosts.py [--host WORD …] [--demo] [-- PYTEST OPTIONS …]

For each setting that this CPU can execute, `warploom demo` runs, and unless `--demo` is given the tests (in full without
options of pytest; `-- -n 2 tests/machine/numerics` runs some of them). One line for each; the exit status is 1 if a
command fails, or if the demo prints other results than without a setting.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.machine.numerics.test_host_independence import hosts  # noqa: E402

_TIMES = re.compile(r" *\b[\d,]+(?:\.\d+)?(?: ?(?:s|ms|µs|seconds)\b|(?= +right))")
"""Times, and the column of milliseconds in the demo's table."""


def run(setting: dict[str, str], *command: str) -> tuple[int, str, float]:
    """Exit status, output and CPU seconds of a command in a setting."""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    before = sum(os.times()[2:4])
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": path} | setting,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, sum(os.times()[2:4]) - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", nargs="+", default=[""], metavar="WORD", help="settings that contain one of these")
    parser.add_argument("--demo", action="store_true", help="run the demo only")
    parser.add_argument("options", nargs="*", help="options of pytest")
    options = parser.parse_args()
    chosen = {name: each for name, each in hosts().items() if any(word in name for word in options.host)}
    expected, failed = _TIMES.sub("", run({}, "warploom", "demo")[1]), 0
    for name, setting in chosen.items():
        start = time.perf_counter()
        status, text, seconds = run(setting, "warploom", "demo")
        same = _TIMES.sub("", text) == expected
        failed += status != 0 or not same
        line = f"{name:18} demo: status {status}, {'the same text' if same else 'other text'}, {seconds:.1f} CPU s"
        if not options.demo:
            status, text, seconds = run(setting, "pytest", "-q", *options.options)
            failed += status != 0
            last = next((each for each in reversed(text.splitlines()) if each.strip()), "no output")
            line += f"; tests: status {status}, {last.strip('= ')}, {seconds:.1f} CPU s"
        print(f"{line} ({time.perf_counter() - start:.0f} s)", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
