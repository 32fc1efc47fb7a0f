"""`sweep`: checks many launches in parallel, on our own processes or on any executor.

A worker process that dies, for instance because the system ran out of memory, does not end a sweep: the pool is rebuilt
and the jobs that were lost run again. A job whose worker dies repeatedly is INCOMPLETE with that reason.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from warploom.checker.check import DEFAULT_BUDGET, DEFAULT_LIMIT, SIZES, check
from warploom.checker.report import Covers, Report, Verdict
from warploom.checker.rules import PROFILES
from warploom.diagnostics import Diag, WarploomError, user_traceback
from warploom.host.launch import Launch
from warploom.machine.translate.prepared import store_waiting

Job = Launch | Callable[[], Launch]
"""A launch, or a function that makes one where it runs: of a module, or a `functools.partial` of such a function."""
_LOST = 2
"""Times that a job may be lost with a pool, whichever job broke it, before it runs in a process of its own."""
_ATTEMPTS = 3
"""Processes of its own that a job may kill."""
_AHEAD = 3
"""Jobs that wait for each worker, so that none is idle and few launches are held at a time."""


@user_traceback
def sweep(
    jobs: Iterable[Job],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    profile: str = "strict",
    budget: int = DEFAULT_BUDGET,
    limit: int | None = DEFAULT_LIMIT,
    sizes: str = "launch",
    redundant: bool = False,
) -> Iterator[Report]:
    """Check every job and yield the reports in the order of the jobs.

    Without `executor`, as many processes as `workers` (default: the number of CPUs) do the work. With one, such as
    Dask's `client.get_executor()`, its own way of retrying applies, and a job that is lost is INCOMPLETE with the
    reason. Jobs travel to other processes: prefer functions to launches with large arrays. A job that raises is
    INCOMPLETE, and `Report.error` has the error if it is one of the catalogue.
    """
    if profile not in PROFILES:
        raise Diag.BAD_LAUNCH.error(what=f"`profile` is {profile!r:.60}; it must be one of {', '.join(PROFILES)}")
    if workers is not None and (type(workers) is not int or workers < 1):
        raise Diag.BAD_LAUNCH.error(what=f"`workers` is {workers!r:.60}; it must be a positive integer")
    if workers is not None and executor is not None:
        raise Diag.BAD_LAUNCH.error(what="`workers` is for the processes of `sweep`; an executor has its own")
    if sizes not in SIZES:
        raise Diag.BAD_LAUNCH.error(what=f"`sizes` is {sizes!r:.60}; it must be one of {', '.join(SIZES)}")
    options = {"profile": profile, "budget": budget, "limit": limit, "sizes": sizes, "redundant": redundant}
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise Diag.BAD_LAUNCH.error(what=f"`executor` is {executor!r:.60}; it must be a concurrent.futures.Executor")
    if executor is not None:
        return _on(executor, iter(jobs), options)
    return _Pool(workers or os.cpu_count() or 1, options).run(iter(jobs))


def _judge(job: Job, options: Mapping[str, Any]) -> Report:
    """Check one job, in a worker; an error becomes a report, so that it reaches the caller from any executor."""
    try:
        launch: Any = job if isinstance(job, Launch) else job()
        if not isinstance(launch, Launch):
            return _incomplete(f"the job returned {type(launch).__name__}; it must return a Launch")
        report = check(launch, **options)
    except WarploomError as error:
        return replace(_incomplete(f"the check was not possible: {error}"), error=error)
    except (Exception, SystemExit) as error:  # noqa: BLE001  the job's own
        return _incomplete(f"the job raised {type(error).__name__}: {error}")
    finally:
        store_waiting()  # workers end without what Python does at the end of a process
    return report


def _incomplete(reason: str) -> Report:
    return Report(Verdict.INCOMPLETE, covers=Covers("this run", runs=0), reasons=(reason,))


def _on(executor: Executor, jobs: Iterator[Job], options: Mapping[str, Any]) -> Iterator[Report]:
    """Check jobs on another executor, a bounded number of them at a time."""
    pending: deque[Future[Report]] = deque()
    most = _AHEAD * max(getattr(executor, "_max_workers", None) or os.cpu_count() or 1, 1)
    for job in jobs:
        pending.append(executor.submit(_judge, job, options))
        if len(pending) >= most:
            yield _result_of(pending.popleft())
    while pending:
        yield _result_of(pending.popleft())


def _result_of(future: Future[Report]) -> Report:
    try:
        return future.result()
    except (Exception, CancelledError) as error:  # noqa: BLE001  whatever the executor reports
        return _incomplete(f"the executor lost the job: {type(error).__name__}: {error}")


@dataclass
class _Sent:
    job: Job
    future: Future[Report]
    pool: ProcessPoolExecutor
    lost: int = 0


class _Pool:
    """Our own processes, started anew when one of them dies."""

    def __init__(self, workers: int, options: Mapping[str, Any]) -> None:
        self._workers, self._options = workers, options
        self._pool = _processes(workers)

    def run(self, jobs: Iterator[Job]) -> Iterator[Report]:
        waiting: deque[_Sent] = deque()
        try:
            for job in jobs:
                waiting.append(self._send(job))
                if len(waiting) >= _AHEAD * self._workers:
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, job: Job) -> _Sent:
        try:
            return _Sent(job, self._pool.submit(_judge, job, self._options), self._pool)
        except BrokenProcessPool:  # it broke since the last result
            self._rebuild(self._pool)
            return _Sent(job, self._pool.submit(_judge, job, self._options), self._pool)

    def _next(self, waiting: deque[_Sent]) -> Report:
        """Return the report of the first job; if the pool broke, rebuild it and send what it lost again."""
        while True:
            sent = waiting[0]
            try:
                report = sent.future.result()
            except BrokenProcessPool:
                self._resend(waiting)
                continue
            except Exception as error:  # noqa: BLE001  a job or a report that cannot be pickled
                report = _incomplete(f"the job could not be sent to a process: {type(error).__name__}: {error}")
            waiting.popleft()
            return report

    def _resend(self, waiting: deque[_Sent]) -> None:
        """Send the lost jobs again. All jobs in flight are lost with a pool, so those lost twice run one by one."""
        self._rebuild(waiting[0].pool)
        for sent in waiting:
            if not _is_lost(sent.future):
                continue
            sent.lost += 1
            if sent.lost < _LOST:
                sent.future, sent.pool = self._pool.submit(_judge, sent.job, self._options), self._pool
            else:
                sent.future = _alone(functools.partial(_judge, sent.job, self._options))

    def _rebuild(self, broken: ProcessPoolExecutor) -> None:
        """Start new processes, unless that has already happened since the pool broke."""
        if broken is self._pool:
            broken.shutdown(wait=True, cancel_futures=True)
            self._pool = _processes(self._workers)


def _processes(workers: int) -> ProcessPoolExecutor:
    # Not `fork`: a fork of a process with threads may deadlock.
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _is_lost(future: Future[Report]) -> bool:
    return future.cancelled() or (future.done() and isinstance(future.exception(), BrokenProcessPool))


def _alone(work: Callable[[], Report]) -> Future[Report]:
    """Run a suspected job in a process of its own, so that its death concerns no other job."""
    done: Future[Report] = Future()
    for _ in range(_ATTEMPTS):
        with _processes(1) as own:
            try:
                done.set_result(own.submit(work).result())
            except BrokenProcessPool:
                continue
            return done
    done.set_result(_incomplete(f"its worker process died {_ATTEMPTS} times"))
    return done
