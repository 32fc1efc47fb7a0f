"""`bar` and `barrier`: the named barriers of a CTA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.machine.cta import NamedBarrier
from warploom.machine.group import WARP
from warploom.machine.registry import Run, executes
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.group import Group


def _uniform(value: Any, g: Group, what: str) -> int:
    if isinstance(value, int):
        return value
    live = value[g.active]
    if len(live) and (live != live[0]).any():
        raise Diag.BAD_BARRIER.error(what=f"the {what} differs among the lanes of {g.name}")
    return int(live[0]) if len(live) else 0


def _barrier(g: Group, index: Any) -> NamedBarrier:
    number = _uniform(index, g, "barrier's number")
    if number >= len(g.cta.barriers):
        raise Diag.BAD_BARRIER.error(what=f"barrier {number} does not exist; there are {len(g.cta.barriers)}")
    return g.cta.barriers[number]


def _needed(g: Group, count: Any) -> int | None:
    if count is None:
        return None
    needed = _uniform(count, g, "thread count")
    if needed == 0 or needed % WARP:
        raise Diag.BAD_BARRIER.error(what=f"the thread count {needed} is not a positive multiple of {WARP}")
    return needed


def _weight(g: Group, mask: Any, needed: int | None) -> int:
    """Threads a group stands for: a warp whose other lanes have left counts whole where a count is given."""
    live = g.mask if mask is None else mask
    if live is None:
        return g.lanes
    lanes = int(live.sum())
    return WARP if needed is not None and lanes == g.cta.live[g.first_warp] else lanes


@executes("bar.sync")
def sync(op: Op) -> Run:
    """Arrive, and wait until enough threads have."""

    def run(g: Group, mask: Any, index: Any, count: Any = None) -> bool:
        barrier = _barrier(g, index)
        if g.token is not None and g.token[0] is barrier:
            if barrier.generation != g.token[1]:
                g.token = None
                return True
            g.wait(barrier)
            return False
        needed = _needed(g, count)
        g.grid.effects += 1
        g.token = (barrier, barrier.generation)
        weight = _weight(g, mask, needed)
        if g.grid.schedule.convoys and g.warps == 1:
            # Waiting first lets the last warp be put together with those that came before it.
            g.wait(barrier)
            barrier.arrive(weight, needed)
            return False
        barrier.arrive(weight, needed)
        if barrier.generation != g.token[1]:
            g.token = None
            return True
        g.wait(barrier)
        return False

    return run


@executes("bar.arrive")
def arrive(op: Op) -> Run:
    """Arrive without waiting."""

    def run(g: Group, mask: Any, index: Any, count: Any) -> None:
        g.grid.effects += 1
        needed = _needed(g, count)
        _barrier(g, index).arrive(_weight(g, mask, needed), needed)

    return run


@executes("bar.red", "bar.popc")
def reduce(op: Op) -> Run:
    """A barrier that also combines a predicate of all its threads."""
    name = op["op"] or "popc"

    def run(g: Group, mask: Any, index: Any, count: Any, predicate: Any) -> Any:
        barrier = _barrier(g, index)
        votes: dict[int, list[int]] = g.cta.state.setdefault("votes", {})
        if g.token is None or g.token[0] is not barrier:
            live = g.active if mask is None else mask
            values = np.full(g.lanes, predicate) if isinstance(predicate, bool | int) else predicate
            needed = _needed(g, count)
            generation = barrier.generation
            tally = votes.setdefault(id(barrier) * 1_000_003 + generation, [0, 0])
            tally[0] += int((values & live).sum())
            tally[1] += int(live.sum())
            g.token = (barrier, generation)
            g.grid.effects += 1
            barrier.arrive(_weight(g, mask, needed), needed)
        if barrier.generation == g.token[1]:
            g.wait(barrier)
            return None
        yes, voters = votes[id(barrier) * 1_000_003 + g.token[1]]
        g.token = None
        return yes if name == "popc" else yes == voters if name == "and" else yes > 0

    return run
