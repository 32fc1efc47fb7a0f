"""Triton's own tests on the emulator: a random sample of a checkout's cases, counted by outcome.

    python bench/triton_scoreboard.py --source CHECKOUT [--cases 3] [--seed N] [--target sm_90 sm_100] [--timeout 60]

The checkout should be at the tag of the installed Triton. Of each test function, up to `--cases` cases are drawn for each
target, and run under warploom's pytest plugin. The page goes to docs/triton-scoreboard.md, or to `--out`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[1]
SUITES = ("python/test/unit/language", "python/test/gluon/test_core.py")
PLUGIN = ("-p", "warploom.triton.pytest_plugin", "-p", "no:cacheprovider", "-q", "--no-header")
LONGEST_REASON = 110


@dataclass(frozen=True)
class Case:
    """One case that ran: its outcome, or why it did not pass."""

    name: str
    outcome: str
    reason: str
    launches: int


def environment() -> dict[str, str]:
    path = os.pathsep.join((str(ROOT / "src"), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "TRITON_DEFAULT_FP_FUSION": "1"}


def collect(source: Path, suite: str, target: str) -> list[str]:
    """The names of a suite's cases."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--triton-target", target, "--collect-only", suite]
    done = subprocess.run(command, cwd=source, env=environment(), capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith(suite) and "::" in line]


def sample(names: list[str], cases: int, rng: random.Random) -> list[str]:
    """Up to so many cases of each function."""
    functions: dict[str, list[str]] = {}
    for name in names:
        functions.setdefault(name.partition("[")[0], []).append(name)
    return [each for found in functions.values() for each in rng.sample(found, min(cases, len(found)))]


def run(source: Path, names: list[str], target: str, timeout: float) -> list[Case]:
    """Run cases, in files of their own processes, so that one that crashes takes few others with it."""
    found = []
    for start in range(0, len(names), 50):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            options = ("--triton-target", target, "--triton-timeout", str(timeout), "--junitxml", str(report))
            command = [sys.executable, "-m", "pytest", *PLUGIN, *options, *names[start : start + 50]]
            subprocess.run(command, cwd=source, env=environment(), capture_output=True, check=False)
            if not report.exists():
                found += [Case(name, "failed", "the process crashed", 0) for name in names[start : start + 50]]
                continue
            found += [read(case) for case in ET.parse(report).iter("testcase")]
    return found


def read(case: ET.Element) -> Case:
    properties = {each.get("name"): each.get("value") for each in case.iter("property")}
    launches = int(properties.get("launches") or 0)
    name = f"{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
    for tag, outcome in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        found = case.find(tag)
        if found is not None:
            return Case(name, outcome, (found.get("message") or "").strip().partition("\n")[0], launches)
    return Case(name, "passed", "", launches)


def kind(reason: str) -> str:
    """The class of a failure: an error's code, or the exception."""
    code = re.match(r"(?:[\w.]+\.)?\w*(?:Fault|Stuck|Error|Exception)?:? ?([A-Z_]{4,}):", reason)
    return code[1] if code else reason.partition(":")[0][:60] or "?"


def rows(results: dict[tuple[str, str], list[Case]]) -> list[str]:
    lines = [
        "| suite | target | cases | launched and passed | compiled and passed | skipped | failed |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (suite, target), cases in results.items():
        count = Counter((case.outcome, case.launches > 0) for case in cases)
        numbers = (
            len(cases), count["passed", True], count["passed", False],
            count["skipped", True] + count["skipped", False], count["failed", True] + count["failed", False],
        )  # fmt: skip
        lines.append(f"| `{suite}` | {target} | " + " | ".join(f"{each:,}" for each in numbers) + " |")
    return lines


def page(results: dict[tuple[str, str], list[Case]], commit: str, version: str, options: argparse.Namespace) -> str:
    failed = [(target, case) for (_, target), cases in results.items() for case in cases if case.outcome == "failed"]
    classes = Counter(kind(case.reason) for _, case in failed)
    lines = [
        "# Triton's own tests on the emulator",
        "",
        f"Triton {version}, tests of commit {commit}; up to {options.cases} random cases of each function (seed",
        f"{options.seed}), at most {options.timeout:g} s each, schedule eager. Made by `bench/triton_scoreboard.py`.",
        "",
        *rows(results),
        "",
        "## Failures by class",
        "",
        *(f"- {count} × {name}" for name, count in classes.most_common()),
        "",
        "## Failures",
        "",
        *(f"- `{case.name}`, {target}: {case.reason[:LONGEST_REASON]}" for target, case in failed),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--most", type=int, help="most cases of a suite and target")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--target", nargs="+", default=["sm_90", "sm_100"])
    parser.add_argument("--suite", nargs="+", default=SUITES)
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "triton-scoreboard.md")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    results = {}
    for suite in options.suite:
        for target in options.target:
            names = sample(collect(options.source, suite, target), options.cases, rng)
            if options.most:
                names = rng.sample(names, min(options.most, len(names)))
            results[suite, target] = run(options.source, names, target, options.timeout)
            print("\n".join(rows({(suite, target): results[suite, target]})[-1:]), flush=True)
    git = subprocess.run(
        ["git", "-C", str(options.source), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    version = subprocess.run(
        [sys.executable, "-c", "import triton; print(triton.__version__)"], env=environment(), capture_output=True,
        text=True, check=True,
    ).stdout.strip()  # fmt: skip
    options.out.write_text(page(results, options.commit or git.stdout.strip() or "unknown", version, options), "utf-8")


if __name__ == "__main__":
    main()
