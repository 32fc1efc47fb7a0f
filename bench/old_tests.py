"""Time of the tests that another checkout of this repository has and this one still has.

Modules have been renamed, so tests are found by the names of their functions. Of a function with parameters, as many
cases are run as the other checkout has, those with the same parameters first. pytest runs them with two workers.

    python bench/old_tests.py DIR [--list] [--workers 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error|errors|xfailed)\b")


def collected(root: Path) -> list[str]:
    """The tests of a checkout, as pytest names them."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins of the installed package are not the checkout's
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line]


def function_of(test: str) -> tuple[str, str]:
    """The name of a test's function, and its parameters."""
    name, _, parameters = test.partition("::")[2].partition("[")
    return name.rpartition("::")[2], parameters


def selected(old: list[str], present: list[str]) -> list[str]:
    """The tests of this checkout that the other has too."""
    wanted = Counter(name for name, _ in map(function_of, old))
    same = set(map(function_of, old))
    by_function: dict[str, list[str]] = defaultdict(list)
    for test in present:
        by_function[function_of(test)[0]].append(test)
    found: list[str] = []
    for name, count in wanted.items():
        ranked = sorted(by_function[name], key=lambda test: function_of(test) not in same)
        found += ranked[:count]
    return found


def run(tests: list[str], workers: int) -> dict[str, Any]:
    """Run tests; the outcome, the seconds and those of CPU time of all processes."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8", delete=False) as file:
        file.write("\n".join(tests) + "\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(workers), "--durations=15", f"@{file.name}"]
    start, before = time.perf_counter(), sum(os.times()[2:4])
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    seconds, cpu = time.perf_counter() - start, sum(os.times()[2:4]) - before
    Path(file.name).unlink()
    lines = done.stdout.splitlines()
    print("\n".join(lines[-60:]))
    counts = {word: int(count) for count, word in _COUNTS.findall(lines[-1])}
    return {**counts, "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="DIR", help="another checkout of this repository")
    parser.add_argument("--list", action="store_true", help="print the selected tests, and run nothing")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    from revision import revision

    old, present = collected(options.other.resolve()), collected(ROOT)
    tests = selected(old, present)
    functions = {name for name, _ in map(function_of, old)}
    still = functions & {name for name, _ in map(function_of, tests)}
    if options.list:
        print("\n".join(tests))
        return
    print(f"{len(tests)} of {len(old)} tests, {len(still)} of {len(functions)} functions", flush=True)
    load = os.getloadavg()[0]
    found = run(tests, options.workers)
    print(
        f"{found['seconds']} s, {found['cpu_seconds']} s of CPU time, a load of {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    )
    if options.json:
        data = {
            "machine": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "engine": os.environ.get("WARPLOOM_ENGINE", "auto"),
            "revision": revision(),
            "workers": options.workers,
            "load_before": round(load, 1),
            "load_after": round(os.getloadavg()[0], 1),
            "old_tests": len(old),
            "old_functions": len(functions),
            "functions": len(still),
            "tests": len(tests),
            **found,
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
