"""`check`: runs a kernel once on copies of its arrays, and judges every interleaving of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from warploom.checker.codes import CODES
from warploom.checker.observer import Checker
from warploom.checker.report import Cost, Covers, Finding, Relaxed, Report, Verdict
from warploom.checker.rules import ASSUMPTIONS, PROFILES, RELAXATIONS
from warploom.diagnostics import Diag, Fault, Stuck, WarploomError, user_traceback
from warploom.host.launch import Launch
from warploom.host.program import Ptx
from warploom.launcher import launch_of, prepare, with_triples
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import Eager
from warploom.machine.core.setup import Setup

DEFAULT_LIMIT = 50_000_000
"""Warp instructions of a checked run."""


@user_traceback
def check(
    program: Ptx | Launch,
    *,
    launch: Launch | Mapping[str, Any] | None = None,
    profile: str = "strict",
    budget: int = 8,
    limit: int | None = DEFAULT_LIMIT,
    sms: int | None = None,
) -> Report:
    """Judge a kernel: PROVED, REFUTED with findings, or INCOMPLETE with the reasons.

    `program` is a launch, or PTX with `launch`, the keywords of `warploom.launch` that it is launched with. The arrays
    are copied: the caller's are never written. `profile` is `strict`, the PTX ISA to the letter, or `lenient`. `budget`
    is the number of further runs that confirm findings and enumerate choices; `limit` bounds the instructions of each.
    """
    if profile not in PROFILES:
        raise Diag.BAD_LAUNCH.error(what=f"`profile` is {profile!r:.60}; it must be one of {', '.join(PROFILES)}")
    launch_ = with_triples(_launch(program, launch))
    start = time.perf_counter()
    observer, error, used = observe(launch_, profile, limit=limit, sms=sms)
    report = _report(launch_, observer, error, profile)
    return replace(report, cost=Cost(time.perf_counter() - start, observer.events, used))


def _launch(program: Any, launch: Any) -> Launch:
    """The launch that the arguments describe."""
    if isinstance(program, Launch):
        if launch is not None:
            raise Diag.BAD_LAUNCH.error(what="`launch` is for a program; the first argument is a launch already")
        return program
    if isinstance(launch, Launch):
        return replace(launch, program=program)
    return launch_of(program, **(launch or {}))


def observe(
    launch_: Launch, profile: str, *, limit: int | None, sms: int | None = None
) -> tuple[Checker, WarploomError | None, int]:
    """Run a launch on copies of its arrays under the eye of a checker: the error that ended it, if one did."""
    checker = Checker(profile)
    setup = copied(prepare(launch_, Eager(), sms, limit, (checker,), None))
    grid = Grid(setup)
    error: WarploomError | None = None
    try:
        with np.errstate(all="ignore"):
            grid.run()
    except (Fault, Stuck) as found:
        error = found
    finally:
        used = grid.used
        grid.discard()
    return checker, error, used


def copied(setup: Setup) -> Setup:
    """Let a prepared launch work on copies of the caller's arrays."""
    for region, _ in setup.memory.arrays:
        region.data = region.data.copy()
    return setup


def _report(launch_: Launch, checker: Checker, error: WarploomError | None, profile: str) -> Report:
    findings = checker.findings.all()
    reasons = list[str]()
    if error is not None:
        if error.diag in (Diag.LIMIT, Diag.TIMEOUT):
            reasons.append(f"the run was given up: {error.what}")
        else:
            findings = (_of_error(error), *findings)
    if checker.findings.left_out:
        reasons.append(f"{checker.findings.left_out} further findings are not listed")
    verdict = Verdict.REFUTED if findings else Verdict.INCOMPLETE if reasons else Verdict.PROVED
    used = {"fairness", *checker.rules.assumed} | ({"convergence"} if checker.agents.converged else set())
    assumptions = tuple(f"{name}: {ASSUMPTIONS[name]}" for name in ASSUMPTIONS if name in used)
    relaxed = tuple(
        Relaxed(name, RELAXATIONS[name].citation, count) for name, count in sorted(checker.rules.relaxed.items())
    )
    return Report(
        verdict, findings, Covers(as_run=("sizes", "input data")), assumptions, profile=profile, reasons=tuple(reasons),
        relaxed=relaxed, lints=tuple(checker.lints.values()), name=launch_.entry or "", error=error,
    )  # fmt: skip


def _of_error(error: WarploomError) -> Finding:
    """A fault or deadlock of the run as a finding."""
    code = "DEADLOCK" if isinstance(error, Stuck) else "FAULT"
    where = f" at {error.loc}" if error.loc is not None else ""
    text = f"{error.code}{where}: {error.what}"
    return Finding(code, text, advice=error.advice or CODES[code].advice, notes=tuple(error.notes))
