"""One checked run of a launch, on copies of its arrays."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from warploom.checker.collecting import Findings
from warploom.checker.determinism import awaited, readers, relinquishes, steering
from warploom.checker.equal_clusters import Clusters
from warploom.checker.event_streams import Shapes
from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import Unjudged
from warploom.checker.observer import Checker
from warploom.checker.recurrence.cuts import Cuts, Stop, WatchedGrid
from warploom.checker.recurrence.state import reach_of
from warploom.checker.rules import Rules
from warploom.checker.unused_reads import uses
from warploom.diagnostics import Fault, Stuck, WarploomError
from warploom.host.launch import Launch
from warploom.launcher import prepare
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import Eager
from warploom.machine.core.setup import Setup
from warploom.machine.translate.translator import Program

_OBJECTS = 100_000
"""Objects that are made before Python looks for garbage among them."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A run that was checked: the checker, the program, and the fault or deadlock that ended it."""

    checker: Checker
    program: Program
    error: WarploomError | None
    used: int
    """Warp instructions."""
    cuts: Cuts | None = None
    most_resident: int = 0
    """The largest number of clusters that were resident at once."""
    taken_over: int = 0
    """Clusters whose work a running one has taken over."""


class Refusing(Eager):
    """The eager schedule, with every request of cluster launch control refused."""

    def choose(self, kind: str, options: Sequence[str], groups: int) -> int:
        return 0 if kind == "cancel" else super().choose(kind, options, groups)


def checked_run(
    launch: Launch,
    rules: Rules,
    findings: Findings,
    *,
    sms: int | None,
    limit: int | None,
    watch: Callable[[Checker], Cuts] | None = None,
    refuses: bool = False,
    shapes: dict[Triple, Shapes] | None = None,
) -> Checked:
    """Run a launch eagerly with a checker as its observer; `watch` makes the cuts at which its state is taken.

    With `refuses`, no request for work is granted, so that every cluster does its own. `shapes` has what is known of
    events from other runs of the launch.
    """
    counted, found = (Counter(rules.assumed), Counter(rules.relaxed)), findings.saved()
    run = partial(_run, launch, rules, findings, sms=sms, limit=limit, watch=watch, refuses=refuses, shapes=shapes)
    try:
        return run(leaves_out=watch is None)
    except Unjudged:
        rules.assumed, rules.relaxed = counted
        findings.restore(found)
        return run(leaves_out=False)


def _run(
    launch: Launch,
    rules: Rules,
    findings: Findings,
    *,
    sms: int | None,
    limit: int | None,
    watch: Callable[[Checker], Cuts] | None,
    refuses: bool,
    shapes: dict[Triple, Shapes] | None,
    leaves_out: bool,
) -> Checked:
    """A checked run; `leaves_out` judges equal passes of loops once, and raises `Unjudged` where all must be judged."""
    checker = Checker(rules, findings)
    schedule = Refusing() if refuses else Eager()
    setup = copied(prepare(launch, schedule, sms, limit, (), None))
    reach = reach_of(setup.program.flow) if leaves_out else None
    clusters = Clusters(checker, reach, shapes) if watch is None else None
    setup = replace(setup, observers=(clusters or checker,))
    checker.memories.steering = steering(setup.program.flow)
    checker.lifetimes.relinquishes = relinquishes(setup.program.flow)
    checker.memories.awaited, checker.memories.readers = awaited(setup.program.flow), readers(setup.program.flow)
    cuts = None if watch is None else watch(checker)
    grid = Grid(setup) if cuts is None else WatchedGrid(setup, cuts)
    error, stopped = None, False
    try:
        with np.errstate(all="ignore"):
            grid.run()
    except Stop:
        stopped = True
    except (Fault, Stuck) as found:
        error = found
    finally:
        used, most_resident, taken_over = grid.used, grid.most_resident, grid.taken_over
        grid.discard()
    if clusters is not None:
        clusters.finish()
    checker.memories.settle(None if stopped or error is not None else uses(setup.program.flow))
    return Checked(checker, setup.program, error, used, cuts, most_resident, taken_over)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for garbage less often: events are many small objects that do not refer to each other.

    To be left when the events are gone: it is then that Python looks through those that are left.
    """
    before = gc.get_threshold()
    if gc.isenabled() and 0 < before[0] < _OBJECTS:
        gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def copied(setup: Setup) -> Setup:
    """Let a prepared launch work on copies of the caller's arrays."""
    for region, _ in setup.memory.arrays:
        region.data = region.data.copy()
    return setup
