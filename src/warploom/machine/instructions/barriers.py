"""`bar` and `barrier`: the named barriers of a CTA.

A warp arrives as a whole: if its lanes come on different paths, the first wait for the other live ones. With
`.aligned` they must come to the same instruction, and it is a fault if some never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.core.convergence import EVERY, Meeting, Purpose, absent, meet
from warploom.machine.core.cta import Generation, NamedBarrier
from warploom.machine.core.group import WARP
from warploom.machine.core.lane_masks import lane_bits
from warploom.machine.core.registry import Run, executes
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]


def _uniform(value: Any, g: Group, mask: Array | None, what: str) -> int:
    if isinstance(value, int):
        return value
    live = np.unique(value[g.active if mask is None else mask])
    if len(live) > 1:
        raise Diag.BAD_BARRIER.error(what=f"The {what} differs among the lanes of {g.name}.")
    return int(live[0])


def _barrier(g: Group, mask: Array | None, index: Any) -> NamedBarrier:
    number = _uniform(index, g, mask, "barrier's number")
    if number >= g.grid.machine.named_barriers:
        raise Diag.BAD_BARRIER.error(
            what=f"Barrier {number} does not exist; there are {g.grid.machine.named_barriers}."
        )
    return g.cta.barriers[number]


def _needed(g: Group, mask: Array | None, count: Any) -> int | None:
    if count is None:
        return None
    needed, warps = _uniform(count, g, mask, "thread count"), len(g.cta.live)
    if needed == 0 or needed % WARP:
        raise Diag.BAD_BARRIER.error(what=f"The thread count {needed} is not a positive multiple of {WARP}.")
    if needed > warps * WARP:
        raise Diag.BAD_BARRIER.error(what=f"The thread count is {needed}; the CTA has {warps} warps.")
    return needed


def is_aligned(op: Op) -> bool:
    """Return whether all lanes of a warp must execute this together: `bar` always requires it."""
    return bool(op["aligned"]) or op.instruction.opcode.startswith("bar.")


def _arrive(
    op: Op, g: Group, mask: Array | None, barrier: NamedBarrier, needed: int | None, votes: Any
) -> Generation | None:
    """Bring a group to a barrier: the generation it is part of, or None while other lanes of its warp are missing."""
    if isinstance(g.token, Meeting):
        if g.token.over:
            met: Generation = g.token.result
            return met
        g.wait(g.token)
        return None
    live = g.mask if mask is None else mask
    if g.warps > 1 and needed is not None and barrier.generation.arrived + g.lanes > needed:
        g.scatter(g.pc)
        return None
    if live is None:
        return _count(barrier, g.lanes, g.lanes, needed, votes)
    bits, present = lane_bits(live), g.cta.present[g.first_warp]
    if bits == present:
        return _count(barrier, WARP if needed else int(np.count_nonzero(live)), live, needed, votes)
    if (present if g.mask is None else lane_bits(g.mask)) & ~bits:
        raise absent(op, present, bits)
    aligned = is_aligned(op) and g.first_warp not in g.cta.broken

    def all_here(lanes: int, came: Array, *brought: Array) -> Generation:
        if g.grid.reporter is not None:
            g.grid.reporter.narrow(lane_bits(came))
        return _count(
            barrier, WARP if needed else int(np.count_nonzero(came)), came, needed, brought[0] if brought else None
        )

    key = ("bar", barrier.index, needed, votes is None, id(op) if aligned else None)
    purpose = Purpose(
        key, f"barrier {barrier.index}", all_here, () if votes is None else (np.bool_,), op if aligned else None
    )
    meeting = meet(g, purpose, EVERY, bits, () if votes is None else (votes,))
    return meeting.result if meeting.over else None


def _count(barrier: NamedBarrier, threads: int, live: Any, needed: int | None, votes: Any) -> Generation:
    generation = barrier.generation
    if votes is None:
        barrier.arrive(threads, needed)
        return generation
    voters = live if isinstance(live, int) else int(np.count_nonzero(live))
    if not isinstance(votes, np.ndarray):
        yes = voters if votes else 0
    else:
        yes = int(np.count_nonzero(votes if isinstance(live, int) else votes & live))
    barrier.arrive(threads, needed, yes, voters)
    return generation


def _pass(op: Op, g: Group, mask: Array | None, index: Any, count: Any, votes: Any = None) -> Generation | None:
    """Arrive and wait: the generation once it is over, else None."""
    if isinstance(g.token, Generation):
        if g.token.over:
            over, g.token = g.token, None
            _barrier(g, mask, index).tell_passed(over)
            return over
        g.wait(_barrier(g, mask, index))
        return None
    barrier, needed = _barrier(g, mask, index), _needed(g, mask, count)
    g.grid.count_local_effect()
    alone = not barrier.generation.arrived and not barrier.waiters
    whole = mask is g.mask is g.token is votes is None and g.lanes == (needed or g.cta.live_threads)
    if g.warps > 1 and g.cta.goes_apart(g):
        # Each of its warps passes the barrier, and none runs before all have arrived.
        passed = barrier.begin() if alone and whole else None
        if passed is not None:
            barrier.arrive(g.lanes, needed)
        g.scatter(g.pc, passed)
        return None
    if alone and whole and g.cta.mode.passes_alone:  # all that it waits for come together
        return barrier.pass_alone(g.lanes)
    if g.cta.convoys and g.warps == 1 and mask is None:
        # Waiting first lets the last warp be put together with those that came before it.
        g.token = barrier.generation
        g.wait(barrier)
        _count(barrier, WARP, WARP, needed, votes)
        return None
    generation = _arrive(op, g, mask, barrier, needed, votes)
    if generation is None:
        return None
    if generation.over:
        g.token = None
        barrier.passed(g, generation)
        return generation
    g.token = generation
    g.wait(barrier)
    return None


@executes("bar.sync")
def sync(op: Op) -> Run:
    """Arrive, and wait until enough threads have."""

    def run(g: Group, mask: Array | None, index: Any, count: Any = None) -> bool:
        if g.token is None and g.warps == 1 and mask is g.mask is None and index.__class__ is int:
            # The usual case of warps that run one by one: others have not come yet, or all have.
            barrier, needed = g.cta.barriers.get(index), _needed(g, mask, count)
            if barrier is not None and barrier.awaits_others(g, needed):
                g.grid.count_local_effect()
                return False
            if barrier is not None and not g.cta.convoys and barrier.completes(g, needed) is not None:
                g.grid.count_local_effect()
                return True
        return _pass(op, g, mask, index, count) is not None

    return run


@executes("bar.arrive")
def arrive(op: Op) -> Run:
    """Arrive without waiting for other warps."""

    def run(g: Group, mask: Array | None, index: Any, count: Any) -> bool:
        barrier = _barrier(g, mask, index)
        g.grid.count_local_effect()
        if _arrive(op, g, mask, barrier, _needed(g, mask, count), None) is None:
            return False
        g.token = None
        return True

    return run


@executes("bar.red")
def reduce(op: Op) -> Run:
    """A barrier that also combines a predicate of all its threads."""
    name = op["op"]

    def run(g: Group, mask: Array | None, index: Any, count: Any, predicate: Any) -> Any:
        generation = _pass(op, g, mask, index, count, predicate)
        if generation is None:
            return None
        if name == "popc":
            return generation.yes
        return generation.yes == generation.voters if name == "and" else generation.yes > 0

    return run
