"""Cuts: points of a run at which its state is taken, and the parts between equal states that may be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from warploom.checker.clocks import Triple
from warploom.checker.loops import Counted, Loops, Steering
from warploom.checker.observer import Checker
from warploom.checker.recurrence import Unfit, passes, state_of
from warploom.machine.core.grid import Grid
from warploom.machine.core.group import DONE, Group
from warploom.machine.core.setup import Setup
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.syntax.model import Immediate, Register

_MOST = 96
"""Cuts of one run."""

Warp = tuple[Triple, int]


class Moving(NamedTuple):
    """A comparison that a warp is about to make: the values of the counter and of the bound."""

    counter: int
    bound: int


class Cut(NamedTuple):
    """A point of a run."""

    state: bytes
    passes: dict[tuple[Triple, int, int], int]
    comparisons: dict[tuple[Warp, int], Moving]


class Repeat(NamedTuple):
    """A part of a run between two equal states: how far it moves each counter, and the side of its bound it is on."""

    moved: dict[tuple[Warp, int], int]
    before: dict[tuple[Warp, int], bool]
    passes: dict[tuple[Triple, int, int], int]


@dataclass(slots=True)
class Cuts:
    """Takes the state whenever one chosen warp waits inside a counted loop."""

    checker: Checker
    loops: Loops
    steering: Steering
    live: dict[int, tuple[str, ...]]
    found: list[Cut] = field(default_factory=list)
    users: set[tuple[Triple, int, int]] = field(default_factory=set)
    """The loops that each warp has entered."""
    reason: str = ""
    _chosen: Warp | None = None
    _passed_before: int = -1

    def turn(self, grid: Grid, group: Group) -> None:
        """A group has had its turn."""
        heads = [each.head for each in self.steering.counted.values()]
        for head in heads:
            if group.counts[head]:
                for warp in range(group.first_warp, group.first_warp + group.warps):
                    self.users.add((group.cta.index, warp, head))
        if group.state == DONE or len(self.found) >= _MOST or grid.flight.count:
            return
        inside = [head for head in heads if group.pc in self.loops.bodies[head]]
        if not inside:
            return
        me = (group.cta.index, group.first_warp)
        self._chosen = self._chosen or me
        if me != self._chosen:
            return
        cluster = group.cta.cluster
        passed = sum(passes(group.cta, inside).get((*me, head), 0) for head in inside)
        if passed == self._passed_before:
            return
        self._passed_before = passed
        try:
            state = state_of(self.checker, cluster, self.live)
            comparisons = dict(self._comparisons(group))
        except Unfit as why:
            self.reason = str(why)
            return
        counts: dict[tuple[Triple, int, int], int] = {}
        for cta in cluster.ctas:
            counts |= passes(cta, heads)
        self.found.append(Cut(state, counts, comparisons))

    def _comparisons(self, group: Group) -> Iterator[tuple[tuple[Warp, int], Moving]]:
        for cta in group.cta.cluster.ctas:
            for each in cta.all_groups:
                for key, counted in self.steering.counted.items():
                    if each.state != DONE and each.pc in self.loops.bodies[counted.head]:
                        moving = Moving(*(_number(each, operand) for operand in _sides(counted)))
                        for warp in range(each.first_warp, each.first_warp + each.warps):
                            yield ((cta.index, warp), key), moving

    def repeats(self) -> list[Repeat]:
        """The parts between two equal states, the shortest of each kind first."""
        found = []
        for at, first in enumerate(self.found):
            for second in self.found[at + 1 :]:
                if second.state == first.state and (made := self._repeat(first, second)) is not None:
                    found.append(made)
                    break
        return found

    def _repeat(self, first: Cut, second: Cut) -> Repeat | None:
        if first.comparisons.keys() != second.comparisons.keys():
            return None
        moved: dict[tuple[Warp, int], int] = {}
        before: dict[tuple[Warp, int], bool] = {}
        for key, one in first.comparisons.items():
            other = second.comparisons[key]
            if one == other:
                continue
            delta = other.counter - one.counter
            if delta <= 0 or one.bound != other.bound:
                return None
            room = 2 * max(delta // max(self._passed(first, second, key), 1), 1)
            if other.counter + room < one.bound:
                before[key] = True
            elif one.counter - room > one.bound:
                before[key] = False
            else:
                return None
            moved[key] = delta
        counts = {key: count - first.passes.get(key, 0) for key, count in second.passes.items()}
        return Repeat(moved, before, counts)

    def _passed(self, first: Cut, second: Cut, key: tuple[Warp, int]) -> int:
        (cta, warp), comparison = key
        place = (cta, warp, self.steering.counted[comparison].head)
        return second.passes.get(place, 0) - first.passes.get(place, 0)


class WatchedGrid(Grid):
    """A grid that shows its state after every turn of a group."""

    def __init__(self, setup: Setup, cuts: Cuts) -> None:
        super().__init__(setup)
        self.cuts = cuts

    def _run(self, group: Group) -> None:
        super()._run(group)
        self.cuts.turn(self, group)


def live_registers(loops: Loops, steering: Steering) -> dict[int, tuple[str, ...]]:
    """The steering registers that are live at the start of every block."""
    names = sorted(steering.registers)
    masks = live_at_entry(loops.flow, names)
    return {
        block: tuple(name for at, name in enumerate(names) if mask >> at & 1) for block, mask in enumerate(masks)
    }


def _sides(counted: Counted) -> tuple[object, object]:
    """The operands of a comparison: the counter, then the bound."""
    operands = [counted.op.operands[slot.name] for slot in counted.op.form.slots if slot.kind == "in"]
    own = [each for each in operands if isinstance(each, Register)]
    bound = operands[1] if own and own[0] is operands[0] else operands[0]
    return Register(counted.counter), bound


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
