"""Cuts: points of a run at which its state is taken, and the parts between equal states that may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from warploom.checker.model.clocks import Triple
from warploom.checker.model.shadow import Access
from warploom.checker.observer import Checker
from warploom.checker.recurrence.branches import Branches
from warploom.checker.recurrence.loops import Counted, Loops, Steering
from warploom.checker.recurrence.state import Unfit, state_of
from warploom.machine.core.cta import Cta
from warploom.machine.core.grid import Grid
from warploom.machine.core.group import DONE, READY, Group
from warploom.machine.core.setup import Setup
from warploom.ptx.analysis.liveness import live_at_entry
from warploom.ptx.syntax.model import Immediate, Register

_MOST = 256
"""Cuts of one run."""

_OFFSET = 0xFFFFFF
"""The bits of a shared address that are the offset in its CTA."""

_WIDEST = 16
"""The bytes of the widest load."""

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
    contents: tuple[bytes, ...]
    """The bytes of these places."""
    entries: dict[tuple[Warp, int], int]
    """The number of times that each warp has entered the loop of a comparison that it is in."""
    evaluated: dict[tuple[Warp, int], int]
    """The number of times that each warp has executed a comparison, a request for work, or a test of its answer."""
    loop: tuple[int, int]
    """The loop of the chosen warp, by its head, and the number of times that the warp has entered it."""
    counter: int
    """The counter of that loop."""
    left: int
    """Its distance to the bound."""


class Repeat(NamedTuple):
    """A part of a run between two equal states: how far it moves each counter, and the side of its bound it is on."""

    first: int
    second: int
    """Its cuts, by number."""
    moved: dict[tuple[Warp, int], int]
    before: dict[tuple[Warp, int], bool]


class Stop(Exception):
    """Nothing is left to be seen in a run."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The cuts that are made in a run."""

    heads: frozenset[int] | None = None
    """The loops that are cut, by their heads; None for all."""
    begins: bool = True
    """True if the first pass of every entry is cut."""
    passes: Callable[[int, int], bool] = lambda _counter, _left: True
    """True for the values of a counter, and of its distance to the bound, at which other passes are cut."""
    is_done: Callable[[Cuts], bool] = lambda _: False
    """Asked after each cut; the run ends there if it is true."""
    branches: Branches | None = None
    """Given to refuse each request for work in a copy of the process, and to grant it here."""


@dataclass(slots=True)
class Cuts:
    """Takes the state whenever a chosen warp has begun a pass of its innermost loop."""

    checker: Checker
    loops: Loops
    steering: Steering
    watch: Watch
    found: list[Cut] = field(default_factory=list)
    users: set[tuple[Warp, int]] = field(default_factory=set)
    """The counted comparisons of the loops that each warp has entered."""
    ended: dict[tuple[Warp, int], int] = field(default_factory=dict)
    """The number of times that the warps of CTAs which have ended entered the loop of a comparison."""
    reason: str = ""
    is_stopped: bool = False
    """True if the run was ended after the last cut."""
    heads: tuple[int, ...] = field(init=False)
    """The loops with counters."""
    _live: dict[int, tuple[str, ...]] = field(init=False)
    _entered: dict[int, list[int]] = field(init=False)
    """The blocks from which each loop is entered."""
    _chosen: Warp | None = None
    _seen: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._live = live_registers(self.loops, self.steering)
        self.heads = tuple({each.head for each in self.steering.counted.values() if each.leaves})
        self._entered = {head: self.loops.entered_from(head) for head in self.loops.bodies}

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
        watch = self.watch
        if watch.heads is not None and innermost.head not in watch.heads:
            return
        try:
            now = _number(group, Register(innermost.counter))
            entry = self._entries(group.cta, group.first_warp, innermost.head)
            begins = (innermost.head, entry) not in self._seen
            self._seen.add((innermost.head, entry))
            if (innermost.head, entry, now) in self._seen:
                return
            left = _number(group, innermost.limit) - now
            if not (begins and watch.begins) and not watch.passes(now, left):
                return
            self._seen.add((innermost.head, entry, now))
            state = self._state(group)
            slots, contents = zip(*self._slots(group), strict=True) if self.steering.shared_loads else ((), ())
            comparisons = dict(self._comparisons(group))
        except Unfit as why:
            self.reason = str(why)
            return
        heads = {key: self.steering.counted[key[1]].head for key in comparisons}
        ctas = {cta.index: cta for cta in group.cta.cluster.ctas}
        entries = {key: self._entries(ctas[key[0][0]], key[0][1], head) for key, head in heads.items()}
        evaluated = dict(self._evaluated(group))
        loop = (innermost.head, entry)
        self.found.append(
            Cut(state, comparisons, grid.taken, slots, contents, entries, evaluated, loop, now, left)
        )  # fmt: skip
        if watch.is_done(self):
            self.is_stopped = True
            raise Stop

    def _state(self, group: Group) -> bytes:
        given, frees = self.steering, self.steering.frees_barriers or self.checker.rules.relaxed["barrier-reuse"] > 0
        return state_of(self.checker, group.cta.cluster, self._live, given.near, is_freed=frees)

    def end(self, cta: Cta) -> None:
        """A CTA has ended."""
        for warp in range(len(cta.live)):
            for key, counted in self.steering.counted.items():
                if (entries := self._entries(cta, warp, counted.head)) > 0:
                    self.ended[(cta.index, warp), key] = entries

    def _entries(self, cta: Cta, warp: int, head: int) -> int:
        """The number of times that a warp has entered a loop."""
        return _executions(cta, warp, self._entered[head])

    def _evaluated(self, group: Group) -> Iterator[tuple[tuple[Warp, int], int]]:
        blocks = {key: self.loops.block_of(counted.op) for key, counted in self.steering.counted.items()}
        blocks |= {id(op): self.loops.block_of(op) for op in (*self.steering.oracles, *self.loops.requests)}
        for cta in group.cta.cluster.ctas:
            for warp in range(len(cta.live)):
                for key, block in blocks.items():
                    yield ((cta.index, warp), key), _executions(cta, warp, [block])

    def _slots(self, group: Group) -> Iterator[tuple[Access | None, bytes]]:
        """The last writes, and the bytes, of the places from which steering values are yet loaded.

        These have a constant address.
        """
        groups = [each for cta in group.cta.cluster.ctas for each in cta.all_groups if each.state != DONE]
        ahead = frozenset().union(*(self.loops.ahead(each.pc) for each in groups))
        for op in self.steering.shared_loads:
            if self.loops.block_of(op) not in ahead:
                yield None, b""
                continue
            place = self.loops.address(op)
            if place is None or place[0] not in group.cta.symbols:
                raise Unfit("control depends on shared memory")
            name, offset = place
            for cta in group.cta.cluster.ctas:
                shadow = self.checker.memories.of_ctas.get(("shared", cta.index))
                address = (cta.symbols[name] & _OFFSET) + offset
                held = cta.shared.whole[address : address + _WIDEST].tobytes()
                yield None if shadow is None else shadow.last_write(address), held

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
        """The parts between two equal states, each from the latest cut of that state."""
        earlier: dict[bytes, int] = {}
        found = []
        for at, cut in enumerate(self.found):
            before = earlier.get(cut.state)
            if before is not None and (made := self.repeat(before, at)) is not None:
                found.append(made)
            earlier[cut.state] = at
        return found

    def returns(self) -> Iterator[Repeat]:
        """The parts from cuts of earlier entries of the loop to the last cut; the shortest first."""
        last = len(self.found) - 1
        for at in range(last - 1, -1, -1):
            one, other = self.found[at], self.found[last]
            if one.state == other.state and one.loop != other.loop and (made := self.repeat(at, last)) is not None:
                yield made

    def repeat(self, first: int, second: int) -> Repeat | None:
        """The part between two cuts of equal state; None if it moves a counter near its bound."""
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
            counted, delta = self.steering.counted[key[1]], end.counter - start.counter
            if delta <= 0 or start.bound != end.bound:
                return None
            if has_room(counted, end, delta, before=True):
                before[key] = True
            elif has_room(counted, start, delta, before=False):
                before[key] = False
            else:
                return None
            moved[key] = delta
        return Repeat(first, second, moved, before)


class WatchedGrid(Grid):
    """A grid that shows its state after every turn of a group.

    Groups that are behind run first, and the foremost runs block by block: at a cut, all others have done what they can
    do so far. States then depend little on the order of turns, and recur early.
    """

    def __init__(self, setup: Setup, cuts: Cuts) -> None:
        super().__init__(setup)
        self.cuts = cuts
        self._front = (0, 0)
        """The progress of the foremost group."""
        self._launches = False

    def _eager_steps(self) -> None:
        ready = self.ready
        while ready:
            group = min(ready, key=self._progress) if len(ready) > 1 else ready[0]
            ready.remove(group)
            if group.state != READY:
                continue
            now = self._progress(group)
            self._front = max(self._front, now)
            self._run(group, 1 if now == self._front else self._turn)
            self._check_limits()
            if self.parked:
                self._unpark()
        self._check_limits()

    def _progress(self, group: Group) -> tuple[int, int]:
        """The passes of outermost loops, and of loops with counters, that a group and those it comes from have begun.

        A loop that asks for work is about the next tile.
        """
        outer = inner = 0
        loops, heads, at = self.cuts.loops, self.cuts.heads, group
        while True:
            counts = at.counts
            for head in loops.outermost:
                outer += counts[head]
            for head in heads:
                inner += counts[head]
            for head in loops.asking:
                outer += counts[head] > 0
            if at.parent is None:
                return outer, inner
            at = at.parent

    @property
    def taken(self) -> int:
        """The clusters that were launched, or whose work was given to others."""
        return self._next

    def launch_next(self) -> None:
        self._launches = True
        super().launch_next()
        self._launches = False

    def take_cluster(self) -> Triple | None:
        branches = self.cuts.watch.branches
        may_part = branches is not None and not branches.is_copy and not self._launches and self._next < self._total
        if branches is not None and may_part and branches.part(self.cuts.checker.events):
            self._total = self._next  # there is no more work
        return super().take_cluster()

    def _count(self, cta: Cta) -> None:
        super()._count(cta)
        self.cuts.end(cta)

    def _run(self, group: Group, turn: int, number: int = 0, second: int = 0, before: int = -1) -> int:
        begun = super()._run(group, turn, number, second, before)
        self.cuts.turn(self, group)
        return begun


def has_room(counted: Counted, at: Moving, delta: int, *, before: bool) -> bool:
    """True if a comparison is two passes or more before its bound, or past it; `delta` is what a part moves it by."""
    room = 2 * (counted.step if isinstance(counted.step, int) else delta)
    return at.compared + room < at.bound if before else at.compared - room > at.bound


def _executions(cta: Cta, warp: int, blocks: list[int]) -> int:
    """The number of times that a warp has executed some blocks."""
    mine = [each for each in cta.all_groups if each.first_warp <= warp <= each.last_warp]
    return sum(each.counts[index] for each in mine for index in blocks)


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
