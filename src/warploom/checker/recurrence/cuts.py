"""Cuts: points of a run at which its state is taken, and the parts between equal states that may be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from warploom.checker.model.clocks import Triple
from warploom.checker.model.shadow import Access
from warploom.checker.observer import Checker
from warploom.checker.recurrence.loops import Loops, Steering
from warploom.checker.recurrence.state import Unfit, state_of
from warploom.machine.core.grid import Grid
from warploom.machine.core.group import DONE, Group
from warploom.machine.core.setup import Setup
from warploom.machine.core.turns import Begun
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.syntax.model import Immediate, Register

_MOST = 256
"""Cuts of one run."""

_OFFSET = 0xFFFFFF
"""The bits of a shared address that are the offset in its CTA."""

Warp = tuple[Triple, int]


class Moving(NamedTuple):
    """A comparison that a warp is about to make: the values of the counter and of the bound."""

    counter: int
    bound: int
    compared: int
    """The counter with what is added to it before it is compared."""


class Cut(NamedTuple):
    """A point of a run."""

    state: bytes
    comparisons: dict[tuple[Warp, int], Moving]
    taken: int
    """The tiles that clusters have begun or asked for."""
    slots: tuple[Access | None, ...]
    """The last write of every place in shared memory that steering values are loaded from."""
    loop: tuple[int, int]
    """The loop of the chosen warp, by its head, and the number of times that the warp has entered it."""
    counter: int
    """The counter of that loop."""
    begins: bool
    """True for the first cut of an entry."""


class Repeat(NamedTuple):
    """A part of a run between two equal states: how far it moves each counter, and the side of its bound it is on."""

    first: int
    second: int
    """Its cuts, by number."""
    moved: dict[tuple[Warp, int], int]
    before: dict[tuple[Warp, int], bool]


@dataclass(slots=True)
class Cuts:
    """Takes the state whenever a chosen warp has begun a pass of its innermost loop.

    With `passes`, it does so only in the first pass of every entry, and in those with these values of the counter.
    """

    checker: Checker
    loops: Loops
    steering: Steering
    passes: frozenset[int] | None = None
    found: list[Cut] = field(default_factory=list)
    users: set[tuple[Warp, int]] = field(default_factory=set)
    """The counted comparisons of the loops that each warp has entered."""
    reason: str = ""
    _live: dict[int, tuple[str, ...]] = field(init=False)
    _chosen: Warp | None = None
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._live = live_registers(self.loops, self.steering)

    def turn(self, grid: WatchedGrid, group: Group) -> None:
        """A group has had its turn."""
        me = (group.cta.index, group.first_warp)
        for key, counted in self.steering.counted.items():
            if group.counts[counted.head]:
                for warp in range(group.first_warp, group.first_warp + group.warps):
                    self.users.add(((group.cta.index, warp), key))
        if group.state == DONE or len(self.found) >= _MOST or grid.flight.count:
            return
        inside = [each for each in self.steering.counted.values() if group.pc in self.loops.bodies[each.head]]
        if not inside or me != (self._chosen or me):
            return
        self._chosen = me
        ends = [each for each in inside if each.leaves]
        if not ends:
            return
        innermost = min(ends, key=lambda each: len(self.loops.bodies[each.head]))
        try:
            now = _number(group, Register(innermost.counter))
            entry = self._entries(group, innermost.head)
            begins = (innermost.head, entry) not in self._seen
            if (innermost.head, entry, now) in self._seen or not (begins or self.passes is None or now in self.passes):
                return
            self._seen |= {(innermost.head, entry), (innermost.head, entry, now)}
            state = state_of(self.checker, group.cta.cluster, self._live, self.steering.near)
            slots = tuple(self._slots(group))
            comparisons = dict(self._comparisons(group))
        except Unfit as why:
            self.reason = str(why)
            return
        self.found.append(Cut(state, comparisons, grid.taken, slots, (innermost.head, entry), now, begins))

    def _entries(self, group: Group, head: int) -> int:
        """The number of times that the warp has entered a loop."""
        body = self.loops.bodies[head]
        before = [block.index for block in self.loops.flow.blocks if head in block.successors]
        outside = [index for index in before if index not in body]
        mine = [each for each in group.cta.all_groups if each.first_warp <= group.first_warp <= each.last_warp]
        return sum(each.counts[index] for each in mine for index in outside)

    def _slots(self, group: Group) -> Iterator[Access | None]:
        """The last writes of the places from which steering values are yet loaded; these have a constant address."""
        groups = [each for cta in group.cta.cluster.ctas for each in cta.all_groups if each.state != DONE]
        ahead = frozenset().union(*(self.loops.ahead(each.pc) for each in groups))
        for op in self.steering.shared_loads:
            if self.loops.block_of(op) not in ahead:
                yield None
                continue
            place = self.loops.address(op)
            if place is None or place[0] not in group.cta.symbols:
                raise Unfit("control depends on shared memory")
            name, offset = place
            for cta in group.cta.cluster.ctas:
                shadow = self.checker.memories.of_ctas.get(("shared", cta.index))
                address = (cta.symbols[name] & _OFFSET) + offset
                yield None if shadow is None else shadow.last_write(address)

    def _comparisons(self, group: Group) -> Iterator[tuple[tuple[Warp, int], Moving]]:
        for cta in group.cta.cluster.ctas:
            for each in cta.all_groups:
                for key, counted in self.steering.counted.items():
                    if each.state != DONE and each.pc in self.loops.bodies[counted.head]:
                        counter, bound = _number(each, Register(counted.counter)), _number(each, counted.limit)
                        added = sum(sign * _number(each, operand) for sign, operand in counted.added)
                        moving = Moving(counter, bound, counter + added)
                        for warp in range(each.first_warp, each.first_warp + each.warps):
                            yield ((cta.index, warp), key), moving

    def repeats(self) -> list[Repeat]:
        """The parts between two equal states."""
        earlier: dict[bytes, list[int]] = {}
        found = []
        for at, cut in enumerate(self.found):
            if self.passes is not None and not cut.begins:
                continue
            same = earlier.setdefault(cut.state, [])
            for before in reversed(same if self.passes is not None else same[-1:]):
                if (made := self._repeat(before, at)) is not None:
                    found.append(made)
                    break
            same.append(at)
        return found

    def inner(self, ends: tuple[tuple[int, int], ...]) -> dict[tuple[int, int], Repeat | None]:
        """A part between two values of the counter, for every entry of a loop; None where the states differ."""
        places = {(cut.loop, cut.counter): at for at, cut in enumerate(self.found)}
        found: dict[tuple[int, int], Repeat | None] = dict.fromkeys(cut.loop for cut in self.found)
        for loop, (first, second) in product(tuple(found), ends):
            one, other = places.get((loop, first)), places.get((loop, second))
            if one is not None and other is not None and self.found[one].state == self.found[other].state:
                found[loop] = found[loop] or self._repeat(one, other)
        return found

    def _repeat(self, first: int, second: int) -> Repeat | None:
        one, other = self.found[first], self.found[second]
        if one.comparisons.keys() != other.comparisons.keys():
            return None
        if any(cut.slots != one.slots for cut in self.found[first:]):
            self.reason = "control depends on shared memory that changes"
            return None
        moved: dict[tuple[Warp, int], int] = {}
        before: dict[tuple[Warp, int], bool] = {}
        for key, start in one.comparisons.items():
            end = other.comparisons[key]
            if start == end:
                continue
            step = self.steering.counted[key[1]].step
            delta = end.counter - start.counter
            room = 2 * (step if isinstance(step, int) else delta)
            if delta <= 0 or start.bound != end.bound:
                return None
            if end.compared + room < end.bound:
                before[key] = True
            elif start.compared - room > start.bound:
                before[key] = False
            else:
                return None
            moved[key] = delta
        return Repeat(first, second, moved, before)


class WatchedGrid(Grid):
    """A grid that shows its state after every turn of a group."""

    def __init__(self, setup: Setup, cuts: Cuts) -> None:
        super().__init__(setup)
        self.cuts = cuts

    @property
    def taken(self) -> int:
        """The clusters that were launched, or whose work was given to others."""
        return self._total - self.not_started

    def _run(self, group: Group, turn: int, begun_by: Begun | None = None) -> int:
        begun = super()._run(group, turn, begun_by)
        self.cuts.turn(self, group)
        return begun


def live_registers(loops: Loops, steering: Steering) -> dict[int, tuple[str, ...]]:
    """The steering registers that are live at the start of every block."""
    names = sorted(steering.registers)
    masks = live_at_entry(loops.flow, names)
    return {block: tuple(name for at, name in enumerate(names) if mask >> at & 1) for block, mask in enumerate(masks)}


def _number(group: Group, operand: object) -> int:
    """The value of an operand that is the same in all lanes."""
    if isinstance(operand, Immediate):
        return int(operand.value)
    if not isinstance(operand, Register):
        raise Unfit("a bound that is not a register")
    place = group.cta.program.layout.places[operand.name]
    if place.file == "u":
        value = int(group.u[place.index])
    else:
        lanes = slice(group.first_lane, group.first_lane + group.lanes)
        values = np.unique(group.warpgroup.files[place.file][place.index, lanes][group.active])
        if len(values) != 1:
            raise Unfit("a counter that differs between lanes")
        value = int(values[0])
    return value - (1 << place.bits) if value >> (place.bits - 1) else value
