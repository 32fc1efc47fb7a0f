"""Run mutants in workers with a memory limit of 2 GB and a time limit, and report the outcome of each.

A mutant ends well with a run or with an error of the catalogue other than INTERNAL. Anything else is a failure: another
exception, a worker that dies, or one that is silent for too long.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.fuzz.bases import Base, Plan, trial

from warploom import launch
from warploom.diagnostics import WarploomError

MEMORY = 2 << 30
PATIENCE = 200.0
_START = 600.0
_BATCH = 25
RUN = "a run"
_DEFAULT = Plan()


@dataclass(frozen=True)
class Outcome:
    """The outcome of one mutant: an error code or `a run`; `failure` describes an outcome that is not allowed.

    `memory` is the peak of its worker so far, in bytes.
    """

    number: int
    code: str
    failure: str = ""
    seconds: float = 0.0
    memory: int = 0


@dataclass
class Summary:
    """All outcomes so far."""

    codes: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    slowest: Outcome = Outcome(0, "", seconds=0.0)
    memory: int = 0

    def add(self, outcome: Outcome) -> None:
        self.codes[outcome.code] += 1
        self.memory = max(self.memory, outcome.memory)
        if outcome.failure:
            self.failures.append(outcome)
        if outcome.seconds > self.slowest.seconds:
            self.slowest = outcome

    @property
    def total(self) -> int:
        return self.codes.total()


def attempt(kernels: tuple[Base, ...], number: int, depth: int = 1) -> Outcome:
    """Make and run one mutant."""
    made = trial(kernels, number, depth)
    start = time.perf_counter()
    try:
        launch(made.base.launch(made.mutant.text), schedule=made.schedule, seed=made.seed, limit=made.base.limit)
    except WarploomError as error:
        json.dumps(str(error))
        failure = "" if error.code != "INTERNAL" else str(error)
        return Outcome(number, error.code, failure, time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001  (a crash of any kind is what is looked for)
        text = f"{made}\n{''.join(traceback.format_exception(error)[-8:])}"
        return Outcome(number, type(error).__name__, text, time.perf_counter() - start)
    return Outcome(number, RUN, "", time.perf_counter() - start)


def _work(pipe: Connection, plan: Plan) -> None:
    _confine()
    kernels = plan.bases()
    pipe.send(None)
    for numbers in iter(pipe.recv, None):
        for number in numbers:
            pipe.send(replace(attempt(kernels, number, plan.depth), memory=_taken()))


def _confine() -> None:
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _taken() -> int:
    """The peak memory of this process; 0 if the system does not report it.

    Linux counts the parent's memory in `ru_maxrss`, even after a spawn.
    """
    status = Path("/proc/self/status")
    most = re.search(r"VmHWM:\s*(\d+) kB", status.read_text("utf-8")) if status.exists() else None
    if most:
        return int(most[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass
class _Worker:
    """A process with its pipe, the numbers it has yet to answer, and since when it has been silent."""

    process: BaseProcess
    pipe: Connection
    queue: list[int] = field(default_factory=list)
    ready: bool = False
    since: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, plan: Plan) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, plan), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    @property
    def late(self) -> bool:
        return time.monotonic() - self.since > (PATIENCE if self.ready else _START)

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def run(
    numbers: Iterable[int],
    *,
    workers: int = 2,
    plan: Plan = _DEFAULT,
    on_outcome: Callable[[Outcome], None] | None = None,
) -> Summary:
    """Run the mutants of these numbers."""
    summary, todo = Summary(), _batches(numbers)
    crew = [_Worker.start(plan) for _ in range(workers)]
    try:
        while crew:
            for at, worker in enumerate(crew):
                fault = _receive(worker, summary, on_outcome)
                if not fault and worker.ready and not worker.queue:
                    worker.queue = next(todo, [])
                    worker.since = time.monotonic()
                    worker.pipe.send(worker.queue or None)
                    if not worker.queue:
                        worker.process.join()
                        crew.pop(at)
                        break
                elif fault:
                    left = _blame(worker, fault, summary, on_outcome)
                    worker.stop()
                    crew[at] = _Worker.start(plan)
                    todo = _first(left, todo)
                    break
            wait([worker.pipe for worker in crew], timeout=0.5)
    finally:
        for worker in crew:
            worker.stop()
    return summary


def _batches(numbers: Iterable[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    for number in numbers:
        batch.append(number)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _first(numbers: list[int], rest: Iterator[list[int]]) -> Iterator[list[int]]:
    if numbers:
        yield numbers
    yield from rest


def _receive(worker: _Worker, summary: Summary, on_outcome: Callable[[Outcome], None] | None) -> str:
    """Receive a worker's outcomes; return a text if it died or has been silent for too long."""
    try:
        while worker.pipe.poll():
            outcome = worker.pipe.recv()
            worker.since, worker.ready = time.monotonic(), True
            if outcome is not None:
                worker.queue.pop(0)
                _report(outcome, summary, on_outcome)
    except (EOFError, OSError):
        worker.process.join(5)
        return f"the worker died (exit {worker.process.exitcode})"
    return f"no answer after {PATIENCE:.0f} s" if worker.late else ""


def _blame(worker: _Worker, fault: str, summary: Summary, on_outcome: Callable[[Outcome], None] | None) -> list[int]:
    """Blame the mutant that was running; requeue the numbers after it."""
    if not worker.ready:
        raise RuntimeError(f"a worker did not start: {fault}")
    if not worker.queue:
        return []
    number, *left = worker.queue
    _report(Outcome(number, "no answer" if "answer" in fault else "crash", fault, PATIENCE), summary, on_outcome)
    return left


def _report(outcome: Outcome, summary: Summary, on_outcome: Callable[[Outcome], None] | None) -> None:
    summary.add(outcome)
    if on_outcome is not None:
        on_outcome(outcome)
