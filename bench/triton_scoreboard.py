"""Triton's own tests on the emulator: a random sample of a checkout's cases, counted by outcome.

    python bench/triton_scoreboard.py --source CHECKOUT --state FILE [--cases 3] [--target sm_90 sm_100] [--budget S] [--jobs N]

The checkout should be at the tag of the installed Triton. Of each test function, up to `--cases` cases are drawn for each
target, and run in random order under warploom's pytest plugin. Each outcome is appended to the state file as it is known;
a later call with the same file goes on where the last one stopped. `--budget` is the most seconds of one call, and
`--timeout` the most CPU seconds of one case. Calls for different targets may share a state file and run at the same
time. The page goes to docs/triton-scoreboard.md, or to `--out`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SUITES = ("python/test/unit/language", "python/test/gluon/test_core.py")
PLUGIN = ("-p", "warploom.triton.pytest_plugin", "-p", "no:cacheprovider", "-q", "--no-header", "-s")
MARK = "scoreboard: "
_PHASES: dict[str, tuple[str, str]] = {}
LONGEST_REASON, LONGEST_MESSAGE = 110, 600
BATCH = 24
"""Most cases of one process, all of one file: few, so that a part of the sample is a fair one."""
_INITIALISED_AGAIN = "Triton 3.7.1 for sm_90 initialises mbarriers four times without `mbarrier.inval`, which the PTX ISA leaves undefined"
UPSTREAM = {
    ("test_int_annotation", "OUT_OF_BOUNDS"): "stores to element 3 of a tensor of one element",
    ("test_warp_specialize_tma_matmul_persistent", "BARRIER_REINITIALISED"): _INITIALISED_AGAIN,
    ("test_warp_specialize_tma_matmul", "BARRIER_REINITIALISED"): _INITIALISED_AGAIN,
    ("test_line_info", "AssertionError"): (
        "fails after `test_line_info_env[1]`, which leaves a kernel without line information in Triton's cache; passes by itself"
    ),
    ("test_blocked_scale_mxfp", "OUT_OF_BOUNDS"): (
        "loads the scales of blocks of 128 columns without a mask: a tile of 256 columns needs two blocks, and N has one"
    ),
    ("test_scatter_pipeline", "AssertionError"): (
        "compares two float32 sums of 1,024 products, without a seed, with an absolute tolerance of 1e-5; rounding alone moves "
        "either by more (ours by up to 2.9e-5, PyTorch's by up to 1.8e-5). One of 1,048,576 elements missed it, by 5e-7"
    ),
}
"""Defects of the tests by function and class of the failure; such a case is listed, and not counted."""


@dataclass(frozen=True)
class Case:
    """One case that ran: its outcome, and why it did not pass."""

    suite: str
    target: str
    name: str
    outcome: str
    reason: str
    launches: int
    again: bool = False
    seconds: float = 0.0
    """Of CPU time."""
    warploom: str = ""
    """The commit of warploom that ran it."""

    @property
    def function(self) -> str:
        return self.name.partition("[")[0].rpartition("::")[2]

    @property
    def defect(self) -> str:
        """The defect of the test by which it fails; empty if none is known."""
        return UPSTREAM.get((self.function, kind(self.reason)), "") if self.outcome == "failed" else ""

    @property
    def launched(self) -> bool:
        """True if a kernel ran, or was stopped by the emulator before its end."""
        return self.launches > 0 or "warploom." in self.reason

    @property
    def headline(self) -> str:
        return self.reason.partition("\n")[0][:LONGEST_REASON]

    @property
    def place(self) -> str:
        """The source line and the PTX instruction of a fault; empty for other failures."""
        found = re.search(r"--> (.+)\n\s*(.+)", self.reason)
        return f" (`{found[2].strip()}`, {found[1].strip()}, schedule eager)" if found else ""

    @property
    def label(self) -> str:
        return self.name.rpartition("/")[2]


def environment() -> dict[str, str]:
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")))
    return {**os.environ, "PYTHONPATH": path, "TRITON_DEFAULT_FP_FUSION": "1", "PYTHONFAULTHANDLER": "1"}


def collect(source: Path, suite: str, target: str) -> list[str]:
    """The names of a suite's cases."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--triton-target", target, "--collect-only", suite]
    done = subprocess.run(command, cwd=source, env=environment(), capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith(suite) and "::" in line]


def sample(names: Iterable[str], cases: int, rng: random.Random) -> list[str]:
    """Up to so many cases of each function."""
    functions: dict[str, list[str]] = {}
    for name in names:
        functions.setdefault(name.partition("[")[0], []).append(name)
    return [each for found in functions.values() for each in rng.sample(found, min(cases, len(found)))]


def draw(options: argparse.Namespace) -> dict[str, object]:
    """The first line of a state file: the sample, in the order in which it runs."""
    rng = random.Random(options.seed)
    places = [(suite, target) for suite in options.suite for target in options.target]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda place: collect(options.source, *place), places))
    chosen = [
        (*place, name) for place, names in zip(places, found, strict=True) for name in sample(names, options.cases, rng)
    ]
    rng.shuffle(chosen)
    return {"seed": options.seed, "cases": options.cases, "timeout": options.timeout, "sample": chosen}


def outcomes(
    source: Path, names: list[str], target: str, timeout: float, end: float = math.inf, schedule: str = "eager"
) -> Iterator[tuple[str, str, str, int, float]]:
    """Name, outcome, reason, launches and seconds of each case; the cases after one that crashes run in a new process.

    At `end`, a time of the monotonic clock, the process is stopped; the cases that are left have no outcome.
    """
    left = list(names)
    while left and time.monotonic() < end:
        machine = ("--triton-target", target, "--triton-schedule", schedule, "--triton-timeout", str(timeout))
        command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", Path(__file__).stem, *machine, *left]
        reported, frames = set(), []
        with subprocess.Popen(
            command, cwd=source, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout
            stop = threading.Timer(min(end - time.monotonic(), threading.TIMEOUT_MAX), process.kill)
            stop.daemon = True
            stop.start()
            for line in process.stdout:
                if line.startswith(MARK):
                    name, outcome, reason, launches, seconds = json.loads(line.removeprefix(MARK))
                    reported.add(name)
                    yield name, outcome, reason, launches, seconds
                elif line.lstrip().startswith(("File ", "Fatal ")):
                    frames.append(line.strip())
            stop.cancel()
        missing = [name for name in left if name not in reported]
        if missing and time.monotonic() < end:
            reason = f"the process ended with status {process.returncode}: {' | '.join(frames[-4:])[:400]}"
            yield missing[0], "failed", reason, 0, 0.0
        left = missing[1:]


def pytest_runtest_logreport(report: Any) -> None:
    """Print the outcome of a case as soon as it is known: this module is a plugin of pytest in the processes of `outcomes`."""
    outcome, reason = _PHASES.get(report.nodeid, ("passed", ""))
    if report.outcome != "passed" and outcome == "passed":
        crash = getattr(report.longrepr, "reprcrash", None)
        text = report.longrepr[-1] if isinstance(report.longrepr, tuple) else getattr(crash, "message", report.longrepr)
        outcome, reason = report.outcome, str(text).strip()[:LONGEST_MESSAGE]
    _PHASES[report.nodeid] = outcome, reason
    if report.when == "teardown":
        known = dict(report.user_properties)
        row = (report.nodeid, outcome, reason, known.get("launches", 0), known.get("cpu_seconds", 0.0))
        sys.__stdout__.write(f"\n{MARK}{json.dumps(row)}\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]


def run(options: argparse.Namespace, header: dict[str, object], done: list[Case]) -> None:
    """Run what is left of the sample, until the budget is spent."""
    failed_before = {
        (case.target, case.name)
        for case in done
        if case.outcome == "failed" and options.again is not None and re.search(options.again, case.reason)
    }
    done[:] = [case for case in done if (case.target, case.name) not in failed_before]
    known = {(case.suite, case.target, case.name) for case in done}
    chosen: list[list[str]] = header["sample"]  # type: ignore[assignment]
    left = [(suite, target, name) for suite, target, name in chosen if (suite, target, name) not in known]
    left = [
        each
        for each in left
        if each[0] in options.suite and each[1] in options.target and re.search(options.only, each[2])
    ]
    left.sort(key=lambda each: each[1:] not in failed_before)
    end = time.monotonic() + options.budget
    mine = commit_of(ROOT)
    batches = list[tuple[str, str, list[str]]]()
    while left:
        suite, target, first = left[0]
        file = first.partition("::")[0] + "::"
        names = [name for at, to, name in left if (at, to) == (suite, target) and name.startswith(file)][:BATCH]
        left = [each for each in left if each[:2] != (suite, target) or each[2] not in names]
        batches.append((suite, target, names))
    lock = threading.Lock()

    def run_batch(batch: tuple[str, str, list[str]]) -> None:
        suite, target, names = batch
        for name, outcome, reason, launches, seconds in outcomes(options.source, names, target, options.timeout, end):
            again = (target, name) in failed_before
            case = Case(suite, target, name, outcome, reason, launches, again, seconds, mine)
            with lock, options.state.open("a", encoding="utf-8") as state:
                done.append(case)
                state.write(json.dumps(asdict(case)) + "\n")
        print(f"{len(done)} of {len(chosen)}, {len(failures(done))} failed", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run_batch, batches))


def commit_of(folder: Path) -> str:
    """The commit of a checkout, short."""
    command = ["git", "-C", str(folder), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def failures(cases: Iterable[Case]) -> list[Case]:
    return [case for case in cases if case.outcome == "failed" and not case.defect]


def kind(reason: str) -> str:
    """The class of a failure: an error's code, or the exception."""
    code = re.match(r"(?:[\w.]+\.)?\w*(?:Fault|Stuck|Error|Exception)?:? ?([A-Z_]{4,}):", reason)
    return code[1] if code else re.split(r"[:\n]", reason)[0][:60] or "?"


def rows(cases: list[Case]) -> Iterator[str]:
    yield "| suite | target | cases | skipped | without a launch: passed | failed | launched | passed of these | failed |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for suite, target in sorted({(case.suite, case.target) for case in cases}):
        mine = [case for case in cases if (case.suite, case.target) == (suite, target) and not case.defect]
        count = Counter((case.outcome, case.launched) for case in mine)
        skipped = count["skipped", True] + count["skipped", False]
        passed, failed = count["passed", True], count["failed", True]
        share = f"{passed:,} ({100 * passed / max(passed + failed, 1):.1f} %)"
        numbers = (len(mine), skipped, count["passed", False], count["failed", False], passed + failed, share, failed)
        yield f"| `{suite}` | {target} | {' | '.join(str(each) for each in numbers)} |"


def summary(cases: list[Case]) -> str:
    """The sentence below the table."""
    launched = [case for case in cases if case.launched and case.outcome != "skipped" and not case.defect]
    passed = sum(case.outcome == "passed" for case in launched)
    wrong = sum(case.outcome == "failed" and kind(case.reason) == "AssertionError" for case in launched)
    share = 100 * passed / max(len(launched), 1)
    return f"Of {len(launched):,} cases that launched, {passed:,} pass ({share:.1f} %); {wrong} compared wrong numbers."


def page(cases: list[Case], header: dict[str, object], commit: str, version: str, note: str) -> str:
    failed = failures(cases)
    upstream = [case for case in cases if case.defect]
    again = sum(case.again for case in cases)
    functions = len({(case.suite, case.function) for case in cases})
    mine = ", ".join(dict.fromkeys(case.warploom for case in cases))
    classes = Counter(kind(case.reason) for case in failed)
    total = len(header["sample"])  # type: ignore[arg-type]
    ran = "all of them ran" if len(cases) == total else f"{len(cases):,} of the {total:,} ran, in random order"
    lines = [
        "# Triton's own tests on the emulator",
        "",
        f"Triton {version}, tests of commit {commit}, run by warploom {mine}: up to {header['cases']} random cases of each",
        f"function for each target (seed {header['seed']}); {ran}: {functions} functions. At most {header['timeout']:g} s of CPU time each,",
        f"schedule eager; {sum(case.seconds for case in cases):,.0f} s together. Made by `bench/triton_scoreboard.py`.",
        *([f"{again} of the cases failed at first and were run again, after fixes."] if again else []),
        "A case has launched if a kernel ran, or was stopped by the emulator; the others compile, or start other processes.",
        "",
        *rows(cases),
        "",
        summary(cases),
        *(["", note] if note else []),
        "",
        "## Failures by class",
        "",
        *([f"- {count} × {name}" for name, count in classes.most_common()] or ["None."]),
        "",
        "## Failures",
        "",
        *([f"- `{case.label}`, {case.target}: {case.headline}" for case in failed] or ["None."]),
        "",
        "## Not counted: defects of the tests",
        "",
        *([f"- `{case.label}`, {case.target}: {case.defect}{case.place}" for case in upstream] or ["None."]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="outcomes so far; made by the first call")
    parser.add_argument("--again", metavar="REGEX", help="first run the cases again that failed for such a reason")
    parser.add_argument("--only", metavar="REGEX", default="", help="run only cases with such names")
    parser.add_argument("--budget", type=float, default=math.inf, help="most seconds of this call")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--commit", default="", help="of a source without Git")
    parser.add_argument("--note", default="", help="a paragraph for the page")
    parser.add_argument("--cases", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--target", nargs="+", default=["sm_90", "sm_100"])
    parser.add_argument("--suite", nargs="+", default=SUITES)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "triton-scoreboard.md")
    options = parser.parse_args()
    options.source = options.source.resolve()
    if not options.state.exists():
        options.state.write_text(json.dumps(draw(options)) + "\n", "utf-8")
    header, *lines = options.state.read_text("utf-8").splitlines()
    latest = {(row["target"], row["name"]): Case(**row) for row in map(json.loads, lines)}
    drawn, done = json.loads(header), list(latest.values())
    run(options, drawn, done)
    version = subprocess.run(
        [sys.executable, "-c", "import triton; print(triton.__version__)"], env=environment(), capture_output=True,
        text=True, check=True,
    ).stdout.strip()  # fmt: skip
    options.out.write_text(
        page(done, drawn, options.commit or commit_of(options.source), version, options.note), "utf-8"
    )


if __name__ == "__main__":
    main()
