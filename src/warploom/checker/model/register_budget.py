"""Register budgets: in no order of the warps does a `setmaxnreg.inc` wait for ever for registers of its CTA's pool.

The obligation on the registers (docs/proofs.md has the proof):

    W6   whenever all that does not come after some waiting `inc` has happened, one of those that wait finds enough

Warps come to their counts one by one: those of a warpgroup may be granted in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.checker.collecting import Findings
from warploom.checker.model.agents import Agents, Warp
from warploom.checker.model.clocks import Triple, X
from warploom.checker.model.operations import WARPGROUP, Form
from warploom.checker.report import Party
from warploom.checker.rules import Rules
from warploom.hardware.threads import WARP_LANES
from warploom.machine.observers.events import Event

MOST_STATES = 1 << 14
"""States of one CTA that are searched; a GEMM has one or two."""
_SOME, _MOST_CHANGES = 64, 1024
"""After each so many changes, those that all warps know of are judged by themselves; more are not kept."""


class Step(NamedTuple):
    """A change of a warp's registers: what it takes from the pool, and how many steps of each warp come before it."""

    gain: int
    before: tuple[int, ...]


class TooManyOrders(Exception):
    """More states than are searched."""


def first_hang(warps: Sequence[Sequence[Step]], free: int) -> tuple[int, ...] | None:
    """The steps that each warp has made where no other step can be made, in some order; None if there is no such order.

    Steps that give back are made as soon as they can be: that takes no possibility from the others.
    """
    if _suffices(warps, free):
        return None
    alike = _alike(warps)
    start = (0,) * len(warps)
    seen, ahead = {start}, [(start, free)]
    while ahead:
        state, left = ahead.pop()
        state, left = _released(warps, state, left)
        waiting = [at for at in range(len(warps)) if _may_come(warps, state, at)]
        granted = [at for at in waiting if warps[at][state[at]].gain <= left]
        if waiting and not granted:
            return state
        for at in granted:
            after = _canonical((*state[:at], state[at] + 1, *state[at + 1 :]), alike)
            if after not in seen:
                if len(seen) >= MOST_STATES:
                    raise TooManyOrders
                seen.add(after)
                ahead.append((after, left - warps[at][state[at]].gain))
    return None


def _suffices(warps: Sequence[Sequence[Step]], free: int) -> bool:
    """True if the pool has enough for all, once everything has been given back that waits for no `inc`."""
    firsts = [next((at for at, step in enumerate(each) if step.gain > 0), len(each)) for each in warps]
    total = free
    for each in warps:
        for step in each:
            waits = any(count > first for count, first in zip(step.before, firsts, strict=True))
            if step.gain > 0 or not waits:
                total -= step.gain
    return total >= 0


def _may_come(warps: Sequence[Sequence[Step]], state: tuple[int, ...], at: int) -> bool:
    """True if all that comes before a warp's next step has happened."""
    if state[at] >= len(warps[at]):
        return False
    return all(done >= needed for done, needed in zip(state, warps[at][state[at]].before, strict=True))


def _released(warps: Sequence[Sequence[Step]], state: tuple[int, ...], left: int) -> tuple[tuple[int, ...], int]:
    """The state after all steps that give back and may come."""
    moves = True
    while moves:
        moves = False
        for at in range(len(warps)):
            while _may_come(warps, state, at) and warps[at][state[at]].gain <= 0:
                left -= warps[at][state[at]].gain
                state = (*state[:at], state[at] + 1, *state[at + 1 :])
                moves = True
    return state, left


def _alike(warps: Sequence[Sequence[Step]]) -> list[list[int]]:
    """Warps that can stand for each other, as those of a warpgroup often can."""
    found: list[list[int]] = []
    for at in range(len(warps)):
        for group in found:
            if _may_swap(warps, group[0], at):
                group.append(at)
                break
        else:
            found.append([at])
    return [group for group in found if len(group) > 1]


def _may_swap(warps: Sequence[Sequence[Step]], one: int, other: int) -> bool:
    """True if the steps of all warps stay the same with the names of two of them exchanged."""

    def swapped(before: tuple[int, ...]) -> tuple[int, ...]:
        found = list(before)
        found[one], found[other] = found[other], found[one]
        return tuple(found)

    names = list(range(len(warps)))
    names[one], names[other] = other, one
    return all(
        [(step.gain, swapped(step.before)) for step in warps[at]] == [(each.gain, each.before) for each in warps[name]]
        for at, name in enumerate(names)
    )


def _canonical(state: tuple[int, ...], alike: list[list[int]]) -> tuple[int, ...]:
    """One of the states that differ in the names of warps only."""
    found = list(state)
    for group in alike:
        for at, count in zip(group, sorted(found[at] for at in group), strict=True):
            found[at] = count
    return tuple(found)


@dataclass(slots=True, eq=False)
class _Change:
    """A `setmaxnreg` of a warp, with all that it comes after."""

    warp: int
    gain: int
    component: int
    time: int
    executed: npt.NDArray[np.int32]
    event: Event

    def follows(self, other: _Change) -> bool:
        if self.warp == other.warp:
            return self.time > other.time
        return len(self.executed) > other.component and bool(self.executed[other.component] >= other.time)


class _Latest(NamedTuple):
    """A `setmaxnreg` of a warp, and how many the warp has executed before."""

    number: int
    change: _Change


@dataclass(slots=True)
class _Pool:
    """The registers of a CTA: those in the pool, those of each thread by warp, and the changes since."""

    free: int = 0
    owned: dict[int, int] = field(default_factory=dict)
    changes: list[_Change] = field(default_factory=list)
    latest: dict[int, _Latest] = field(default_factory=dict)
    """The latest `setmaxnreg` of each warp."""


class RegisterBudgets:
    """The registers of all CTAs that run."""

    def __init__(self, agents: Agents, rules: Rules, findings: Findings) -> None:
        self._agents, self._rules, self._findings = agents, rules, findings
        self._pools: dict[Triple, _Pool] = {}
        self.has_too_many_orders = False
        """True if the orders of some CTA's warps were too many to be searched."""

    def change(self, event: Event, warp: Warp) -> None:
        """A warp has given registers back, or got more."""
        part = self._agents.act(warp, event.lanes)[0]
        pool = self._pools.setdefault(warp.cta, _Pool())
        pool.owned.setdefault(warp.number, event.leave)
        gain = (event.count - event.leave) * WARP_LANES
        made = _Change(warp.number, gain, part.component, warp.time, part.clock.rows[X].copy(), event)
        self._check_warpgroup(pool, made)
        if gain:
            pool.changes.append(made)
            if len(pool.changes) % _SOME == 0:
                self._settle(warp.cta, pool)
            if len(pool.changes) >= _MOST_CHANGES:
                self.has_too_many_orders = True
                pool.changes.clear()

    def _check_warpgroup(self, pool: _Pool, change: _Change) -> None:
        """The warps of a warpgroup synchronise after a `setmaxnreg` and before the next (PTX ISA 9.7.20.5)."""
        own = pool.latest.get(change.warp)
        number = 0 if own is None else own.number + 1
        pool.latest[change.warp] = _Latest(number, change)
        if not number:
            return
        first, warps = change.warp // WARPGROUP * WARPGROUP, -(-self._agents.threads // WARP_LANES)
        others = {each for each in range(first, min(first + WARPGROUP, warps)) if each != change.warp}
        found = {each: pool.latest.get(each) for each in others}
        early = [
            each
            for each, held in found.items()
            if held is None
            or held.number < number - 1
            or (held.number == number - 1 and not change.follows(held.change))
        ]
        if not early:
            return
        self._rules.relaxed["setmaxnreg-sync"] += 1
        if self._rules.lenient:
            return
        parties = [self._party(change, "changes its registers again")]
        held = found[min(early)]
        parties += [] if held is None else [self._party(held.change, "has changed its own")]
        text = (
            f"Nothing orders this setmaxnreg after the previous one of all warps of its warpgroup (warp {min(early)})."
        )
        missing = "a barrier of the four warps between one setmaxnreg and the next"
        self._findings.add("REGISTER_SYNC", text, tuple(parties), missing=missing, excused_by="setmaxnreg-sync")

    def end(self, ctas: Iterable[Triple]) -> None:
        """CTAs have ended: judge what they did."""
        for cta in ctas:
            pool = self._pools.pop(cta, None)
            if pool is not None:
                self._judge(pool, pool.changes)

    def _settle(self, cta: Triple, pool: _Pool) -> None:
        """Judge the changes that all later ones come after, and forget them."""
        warps = [warp for (place, _), warp in self._agents.warps.items() if place == cta]
        if len(warps) < -(-self._agents.threads // WARP_LANES):
            return  # a warp that has done nothing yet may come to its first change before all of these
        rows = [part.clock.rows[X] for warp in warps for part in warp.parts]
        known = [
            all(len(row) > each.component and row[each.component] >= each.time for row in rows) for each in pool.changes
        ]
        while True:
            old = [each for each, is_known in zip(pool.changes, known, strict=True) if is_known]
            new = [each for each, is_known in zip(pool.changes, known, strict=True) if not is_known]
            kept = [
                is_known and all(one.follows(each) for one in new)
                for each, is_known in zip(pool.changes, known, strict=True)
            ]
            if kept == known:
                break
            known = kept
        if old:
            self._judge(pool, old)
            for each in old:
                pool.free -= each.gain
                pool.owned[each.warp] = each.event.count
            pool.changes = new

    def _judge(self, pool: _Pool, changes: list[_Change]) -> None:
        names = sorted({each.warp for each in changes})
        by_warp = [[each for each in changes if each.warp == name] for name in names]
        steps = [
            [
                Step(each.gain, tuple(sum(each.follows(other) for other in others) for others in by_warp))
                for each in mine
            ]
            for mine in by_warp
        ]
        try:
            state = first_hang(steps, pool.free)
        except TooManyOrders:
            self.has_too_many_orders = True
            return
        if state is not None:
            self._report(pool, by_warp, steps, state)

    def _report(
        self, pool: _Pool, by_warp: list[list[_Change]], steps: list[list[Step]], state: tuple[int, ...]
    ) -> None:
        """Add the finding that some warps wait for ever in this state."""
        done = [each for mine, count in zip(by_warp, state, strict=True) for each in mine[:count]]
        left = [each for mine, count in zip(by_warp, state, strict=True) for each in mine[count:]]
        waiting = [
            mine[count]
            for at, (mine, count) in enumerate(zip(by_warp, state, strict=True))
            if _may_come(steps, state, at)
        ]
        wants = min(waiting, key=lambda each: each.gain)
        free = pool.free - sum(each.gain for each in done)
        owned = dict(pool.owned) | {each.warp: each.event.count for each in done}
        late = [each for each in left if each.gain < 0]
        rivals = [
            each for each in (*waiting, *done) if each.gain > 0 and each.warp // WARPGROUP != wants.warp // WARPGROUP
        ]
        parties: list[Party] = [self._party(wants, "waits for registers")]
        parties += [self._party(each, "gives registers back only after it") for each in late[:1]]
        parties += [self._party(each, "takes registers too") for each in (rivals or done)[:1] if not late or rivals]
        text = (
            f"{_names(waiting)} may wait for ever: setmaxnreg.inc needs {wants.gain:,} more registers for a warp, and "
            f"the CTA's pool has {free:,} when all has happened that waits for none of them ({_owners(owned)})."
        )
        missing = f"{wants.gain - free:,} registers, or a setmaxnreg.dec that comes before"
        self._findings.add("REGISTER_BUDGET", text, tuple(parties), missing=missing)

    def _party(self, change: _Change, action: str) -> Party:
        return self._findings.party(change.event.source, change.event, action)

    def describe(self, form: Form) -> None:
        """Add the pools to a normal form."""
        for cta, pool in sorted(self._pools.items()):
            self._settle(cta, pool)
            form.plain("registers", cta, pool.free, sorted(pool.owned.items()))
            for each in pool.changes:
                after = [at for at, other in enumerate(pool.changes) if each.follows(other)]
                form.plain(each.warp, each.gain, after, form.value(each.component, each.time, compared=True))
            for warp, (number, each) in sorted(pool.latest.items()):
                group = [pool.latest[other].number for other in pool.latest if other // WARPGROUP == warp // WARPGROUP]
                form.plain(warp, number - min(group), form.value(each.component, each.time, compared=True))


def _names(changes: list[_Change]) -> str:
    """Warps by their numbers."""
    numbers = sorted(each.warp for each in changes)
    return f"warp{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def _owners(owned: dict[int, int]) -> str:
    """The registers of each thread, by warps."""
    found: dict[int, list[int]] = {}
    for warp, count in sorted(owned.items()):
        found.setdefault(count, []).append(warp)
    each = (f"warp{'s' * (len(warps) > 1)} {', '.join(map(str, warps))} {count}" for count, warps in found.items())
    return f"of each thread own {'; '.join(each)}"
