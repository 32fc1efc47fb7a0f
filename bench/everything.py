"""Run every measurement that needs a GPU, one after another, and write the pages from them.

    PYTHONPATH=src python3 bench/everything.py                       everything, about an hour on an H200
    PYTHONPATH=src python3 bench/everything.py --quick               everything, quickly
    PYTHONPATH=src python3 bench/everything.py --only ladder,plain --out FOLDER
    python3 bench/everything.py --list                               the commands

Untimed work runs first and in parallel: the sanitizer, and PyTorch's compiler, which fills its cache. Each step writes its
own JSON as it goes; a step that fails or takes too long is reported, and the others continue. The data for the cost model
is not included: bench/configurations.py measures it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tables import RESULTS, ROOT, folder_of


@dataclass(frozen=True)
class Step:
    """A command and its time limit in seconds."""

    name: str
    command: tuple[str, ...]
    limit: float
    is_timed: bool = True
    has_quick: bool = True

    def arguments(self, out: Path, *, quick: bool) -> list[str]:
        command = [each.replace("OUT", str(out)) for each in self.command]
        return [sys.executable, *command, *(["--quick"] if quick and self.has_quick else [])]


def matmul(kind: str, limit: float, *more: str) -> Step:
    return Step(kind, ("bench/matmul.py", "--what", kind, "--out", "OUT", *more), limit)


STEPS = (
    Step("sanitizer", ("tests/gpu/sanitise.py", "--out", "OUT"), 300, is_timed=False),
    Step("ahead", ("bench/compiled.py",), 260, is_timed=False, has_quick=False),
    Step("alone", ("bench/alone.py", "--again", "--out", "OUT"), 300, has_quick=False),
    Step(
        "models",
        (
            "bench/alone.py",
            "--held-out",
            "--name",
            "alone_models",
            "--again",
            "--settle",
            "0.3",
            "--time",
            "0.25",
            "--repeats",
            "2",
            "--bursts",
            "2",
            "--out",
            "OUT",
        ),
        900,
        has_quick=False,
    ),
    Step("operations", ("bench/alone_families.py", "--again", "--out", "OUT"), 600, has_quick=False),
    Step("stack", ("bench/end_to_end.py", "--again", "--out", "OUT"), 400, has_quick=False),
    Step("sizes", ("bench/new_sizes.py", "--out", "OUT/new_sizes.json"), 120, has_quick=False),
    matmul("plain", 120),
    matmul("fused", 300, "--warm", "0"),
    matmul("random", 240),
    matmul("odd", 120),
    Step("dependent", ("bench/dependent.py", "--again", "--out", "OUT"), 400, has_quick=False),
    Step("families", ("bench/matmul.py", "--what", "families", "--out", "OUT"), 180),
    Step("ladder", ("bench/ladder.py", "--out", "OUT"), 150),
    Step("roofline", ("bench/roofline.py", "--out", "OUT"), 150, has_quick=False),
    Step("candidates", ("bench/families.py", "--json", "OUT/families.json"), 300, has_quick=False),
    Step("host", ("bench/host_cost.py", "--out", "OUT/host_cost.json"), 240, has_quick=False),
    Step("first", ("bench/first_result.py", "--out", "OUT/first_result.json"), 300, has_quick=False),
)


def run(step: Step, out: Path, *, quick: bool) -> str:
    """Run a step and describe how it ended."""
    command = step.arguments(out, quick=quick)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYTHONUNBUFFERED": "1",
    }
    print("$", *command[1:], flush=True)
    started = time.monotonic()
    try:
        status = subprocess.run(command, cwd=ROOT, env=environment, timeout=step.limit, check=False).returncode
        how = "done" if status == 0 else f"status {status}"
    except subprocess.TimeoutExpired:
        how = f"no end after {step.limit:.0f} s"
    return f"{step.name:12} {time.monotonic() - started:6.0f} s  {how}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {', '.join(step.name for step in STEPS)}")
    parser.add_argument("--quick", action="store_true", help="a few shapes and rounds of each")
    parser.add_argument("--out", type=Path, help="output directory; default bench/results, with --quick build/bench")
    parser.add_argument("--list", action="store_true", help="the commands alone")
    asked = parser.parse_args()
    names = asked.only.split(",") if asked.only else [step.name for step in STEPS]
    steps, out = [step for step in STEPS if step.name in names], folder_of(asked)
    if asked.list:
        for step in steps:
            print("python3", *step.arguments(out, quick=asked.quick)[1:])
        return 0
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        untimed = [step for step in steps if not step.is_timed]
        outcomes = list(pool.map(lambda step: run(step, out, quick=asked.quick), untimed))
    outcomes += [run(step, out, quick=asked.quick) for step in steps if step.is_timed]
    print(*outcomes, sep="\n")
    if out == RESULTS:
        subprocess.run([sys.executable, "bench/pages.py"], cwd=ROOT, check=True)
    return 0 if all(line.endswith("done") for line in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
