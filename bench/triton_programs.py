"""Triton's tutorials and examples on the emulator, unmodified, under several schedules: a table of their outcomes.

    python bench/triton_programs.py --source CHECKOUT --state FILE [--budget S] [--jobs N] [--only REGEX]

The checkout should be at the tag of the installed Triton. Each file runs as a script, by `warploom triton`, and its tests,
if it has any, with the pytest plugin: up to `--cases` random cases of each function. A file that takes more than
`--timeout` seconds of CPU time under `eager` is listed, and not run under the other schedules. Each outcome is appended to
the state file as it is known; a later call goes on where the last one stopped. `--budget` is the most seconds of one call.
The page goes to docs/triton-programs.md, or to `--out`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from triton_scoreboard import collect, commit_of, environment, outcomes, sample  # noqa: E402

FOLDERS = ("python/tutorials", "python/tutorials/gluon", "python/examples/gluon")
TARGETS = ("sm_90", "sm_100")
SCHEDULES = ("eager", "lazy", "hold", "random")
LONGEST_REASON = 160
UPSTREAM: dict[tuple[str, str], str] = {
    ("12-cluster-launch-control.py", "Tensor-likes are not close"): (
        "compares float16 products of 1,000 terms with PyTorch's default tolerance, 1e-5 near zero. PyTorch's own float16 and float32 "
        "products on the CPU differ by more in 36 of 1,000,000 elements; here 25 to 37 did"
    ),
    ("13-conv-im2col.py", "Tensor-likes are not close"): (
        "`conv2d_im2col_kernel` issues the tensor loads of a K tile before it waits for the MMA that still reads the same shared "
        "memory (`mma.wait_num_outstanding(0)` comes after them, 13-conv-im2col.py:1007 and 1024): schedules in which a load is "
        "faster than the MMA give wrong values"
    ),
    ("07-persistence.py", "CTA_EXITED"): (
        "`persistent_matmul_pipelined_kernel` exits with two tensor loads in flight: the last `issue_loads_stealb` of the peeled "
        "prologue lacks the `pred` that the others have, so that it loads for a tile after the last one, and no wait follows "
        "(07-persistence.py:609, `@%p49 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r157], …`, "
        "schedule hold:tma-load; the same for sm_90). The loads write shared memory that may be another CTA's by then"
    ),
}
"""Defects of the programs, by file and a part of the reason for which it fails."""

PASSED, FAILED, SKIPPED, LONG = "passed", "failed", "skipped", "over the limit"


@dataclass(frozen=True)
class Outcome:
    """One program, or the tests in it, under one schedule."""

    file: str
    how: str
    """`script` or `tests`."""
    target: str
    schedule: str
    result: str
    seconds: float
    """Of CPU time."""
    launches: int
    reason: str
    warploom: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.file, self.how, self.target, self.schedule

    @property
    def defect(self) -> str:
        """The defect of the program by which it fails; empty if none is known."""
        known = (text for (file, part), text in UPSTREAM.items() if self.file.endswith(file) and part in self.reason)
        return next(known, "") if self.result == FAILED else ""


def programs(source: Path) -> list[str]:
    """The files, in order."""
    found = [path for folder in FOLDERS for path in sorted((source / folder).glob("[0-9]*.py"))]
    return [str(path.relative_to(source)) for path in found]


def jobs(source: Path) -> Iterator[tuple[str, str, str, str]]:
    """(file, how, target, schedule), the schedule that runs first for all of them first."""
    for schedule in SCHEDULES:
        for file in programs(source):
            text = (source / file).read_text("utf-8")
            for target in TARGETS:
                yield file, "script", target, schedule
                if "import pytest" in text:
                    yield file, "tests", target, schedule


def held(text: str) -> str:
    """The schedule that holds the kind of operation that a program depends on most."""
    return "hold:tma-load" if re.search(r"descriptor|\btma\b", text, re.IGNORECASE) else "hold:cp-async"


def run_script(source: Path, file: str, target: str, schedule: str, limit: float) -> tuple[str, float, int, str]:
    """Result, CPU seconds, launches and reason of one script."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note.json"
        arguments = ["triton", "--target", target, "--schedule", schedule, str(source / file)]
        command = [sys.executable, str(ROOT / "bench" / "triton_programs.py"), "--child", str(note), *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, errors="replace", check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 30)),
        )  # fmt: skip
        noted = json.loads(note.read_text()) if note.exists() else {"seconds": limit, "launches": 0}
    seconds, launches = noted["seconds"], noted["launches"]
    if done.returncode < 0:
        return LONG, seconds, launches, f"more than {limit:g} s of CPU time"
    if not done.returncode:
        return PASSED, seconds, launches, ""
    lines = [line.strip() for line in done.stderr.splitlines() if re.match(r"\s*[\w.]*(?:Error|[A-Z_]{4,})\b", line)]
    return FAILED, seconds, launches, (lines or done.stderr.strip().splitlines() or ["?"])[-1]


def run_tests(source: Path, names: list[str], target: str, schedule: str, limit: float) -> tuple[str, float, int, str]:
    """The worst result of the tests of a file, their CPU seconds and launches, and the first reason."""
    ran = list(outcomes(source, names, target, limit, schedule=schedule))
    count = Counter(outcome for _, outcome, *_ in ran)
    seconds, launches = sum(each[4] for each in ran), sum(each[3] for each in ran)
    failed = [(name.rpartition("::")[2], reason) for name, outcome, reason, *_ in ran if outcome == FAILED]
    late = [each for each in failed if "TIMEOUT" in each[1]]
    summary = f"{count[PASSED]} of {len(ran) - count[SKIPPED]}"
    if not ran or count[SKIPPED] == len(ran):
        return SKIPPED, seconds, launches, ran[0][2] if ran else "no tests for this target"
    if not failed:
        return PASSED, seconds, launches, summary
    if len(late) == len(failed):
        return LONG, seconds, launches, f"{summary}; `{late[0][0]}`: more than {limit:g} s of CPU time"
    name, reason = next(each for each in failed if each not in late)
    return FAILED, seconds, launches, f"{summary}; `{name}`: {reason}"


def run(options: argparse.Namespace, done: list[Outcome]) -> None:
    """Run what is left, until the budget is spent."""
    known, mine, lock = {each.key: each for each in done}, commit_of(ROOT), threading.Lock()
    end = time.monotonic() + options.budget

    def run_job(job: tuple[str, str, str, str]) -> None:
        file, how, target, schedule = job
        first = known.get((file, how, target, "eager"))
        if schedule != "eager" and (first is None or first.result in (SKIPPED, LONG) or not first.launches):
            return
        if time.monotonic() > end:
            return
        text = (options.source / file).read_text("utf-8")
        spelled = held(text) if schedule == "hold" else schedule
        if how == "script":
            ended = run_script(options.source, file, target, spelled, options.timeout)
        else:
            rng = random.Random(f"{options.seed} {file} {target}")
            names = sample(collect(options.source, file, target), options.cases, rng)
            ended = run_tests(options.source, names, target, spelled, options.timeout)
        outcome = Outcome(*job, *ended, mine)
        with lock, options.state.open("a", encoding="utf-8") as state:
            known[job] = outcome
            done.append(outcome)
            state.write(json.dumps(asdict(outcome)) + "\n")
        print(*job, *ended, flush=True)

    left = [job for job in jobs(options.source) if job not in known and re.search(options.only, " ".join(job))]
    for chosen in ([job for job in left if (job[3] == "eager") == eager] for eager in (True, False)):
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run_job, chosen))


def cell(outcome: Outcome | None, unless: str) -> str:
    if outcome is None:
        return unless
    launched = "" if outcome.launches or outcome.result != PASSED else ", no launch"
    return f"{outcome.result}{launched}, {outcome.seconds:.0f} s"


def page(done: list[Outcome], version: str, commit: str, options: argparse.Namespace) -> str:
    """The table, and the reasons."""
    known = {each.key: each for each in done}
    commits = ", ".join(dict.fromkeys(each.warploom for each in done))
    lines = [
        "# Triton's tutorials and examples on the emulator",
        "",
        f"Triton {version}, files of commit {commit}, run by warploom {commits} with `bench/triton_programs.py`. A *script* is",
        f"`warploom triton FILE`, *tests* are up to {options.cases} random cases of each test function in the file. `hold` is",
        "`hold:tma-load` for programs with descriptors, else `hold:cp-async`. Times are CPU seconds, with compilation. At most",
        f"{options.timeout:g} s of CPU time for a script and for each test: what takes longer under `eager` is not run under the",
        "others. A dash is a combination that was not run.",
        "",
        "| file | target | | " + " | ".join(SCHEDULES) + " |",
        "|---|---|---|" + "---|" * len(SCHEDULES),
    ]
    groups = dict.fromkeys((each.file, each.target, each.how) for each in sorted(done, key=lambda each: each.key))
    for file, target, how in groups:
        cells = [cell(known.get((file, how, target, schedule)), "–") for schedule in SCHEDULES]
        lines.append(f"| `{file.removeprefix('python/')}` | {target} | {how} | {' | '.join(cells)} |")
    results = Counter((each.how, each.result) for each in done if not each.defect)
    lines += ["", "; ".join(f"{how} {result}: {count}" for (how, result), count in sorted(results.items())) + "."]
    failed = [each for each in done if each.result in (FAILED, LONG)]
    for title, chosen in (
        ("Failures", [each for each in failed if each.result == FAILED and not each.defect]),
        ("Defects of the programs", [each for each in failed if each.defect]),
        ("Over the limit", [each for each in failed if each.result == LONG]),
    ):
        lines += ["", f"## {title}", ""]
        lines += [
            f"- `{each.file.removeprefix('python/')}` ({each.how}), {each.target}, {each.schedule}: "
            f"{each.defect or each.reason[:LONGEST_REASON]}"
            for each in chosen
        ] or ["None."]
    return "\n".join(lines) + "\n"


def child(note: Path, arguments: list[str]) -> int:
    """Run `warploom ARGUMENTS`, and note the launches and the CPU time."""
    import signal
    from types import FrameType

    from warploom.cli import main as command
    from warploom.triton.session import Session

    count, run_call = [0], Session.run

    def counted(session: Session, call: object) -> None:
        run_call(session, call)  # type: ignore[arg-type]
        count[0] += not session.is_dry  # an autotuner looks for a configuration that fits

    def write(number: int = 0, frame: FrameType | None = None) -> None:
        note.write_text(json.dumps({"seconds": round(time.process_time(), 1), "launches": count[0]}))
        if number:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    Session.run = counted  # type: ignore[method-assign, assignment]
    signal.signal(signal.SIGXCPU, write)
    try:
        return command(arguments)
    finally:
        write()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        sys.exit(child(Path(sys.argv[2]), sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="outcomes so far; made by the first call")
    parser.add_argument("--budget", type=float, default=float("inf"), help="most seconds of this call")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--only", metavar="REGEX", default="", help="of `FILE HOW TARGET SCHEDULE`")
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "triton-programs.md")
    parser.add_argument("--commit", default="", help="of a source without Git")
    options = parser.parse_args()
    options.source = options.source.resolve()
    lines = options.state.read_text("utf-8").splitlines() if options.state.exists() else []
    latest = {each.key: each for each in (Outcome(**json.loads(line)) for line in lines)}
    done = list(latest.values())
    run(options, done)
    version = subprocess.run(
        [sys.executable, "-c", "import triton; print(triton.__version__)"], env=environment(), capture_output=True,
        text=True, check=True,
    ).stdout.strip()  # fmt: skip
    options.out.write_text(page(done, version, options.commit or commit_of(options.source), options), "utf-8")


if __name__ == "__main__":
    main()
