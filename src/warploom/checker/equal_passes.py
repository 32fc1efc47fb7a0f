"""Equal passes of a loop are judged once: events that come again are compared with the pass before, and left out.

Take two points of a run at which the checker's state has the same normal form (`recurrence/state.py`): it is the same
up to a renaming of the values of each clock component that keeps their order, and up to a shift of phases, rounds and
groups. Let the events that follow be those between the two points, with their phases, rounds and groups shifted by as
much again. The checker is a function of its state and the events, and commutes with such renamings. So it would find
nothing in them, as it found nothing before, and would be in the same state after them, renamed once more. They are left
out, and all later events are judged with phases, rounds and groups as if the ones that were left out had not happened.

The same holds for renamings of places in shared memory and TMEM (`renaming.py`), by which passes differ that use the
stages of a pipeline in turn. The renaming is the one that takes each event of a pass to the event at its place in the
next pass. It must be the same bijection for all of them, and take the first state to the second. Later events are then
judged at the places from which the passes that were left out have moved them.

Accesses to global memory are not part of the state. Those that are left out are noted, and `Unjudged` is raised where
another access would have to be judged with one of them; also at the first finding, whose text would name other phases.
Every event of the run is then judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.checker.event_streams import (
    GROUP,
    NONE,
    PHASE,
    SHAPE,
    Item,
    Shapes,
    events_of,
    global_touches,
    made,
)
from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import Unjudged
from warploom.checker.model.operations import engine_of
from warploom.checker.observer import Checker
from warploom.checker.recurrence.state import Knowledge, Names, Reach, Unfit
from warploom.checker.renaming import OFFSET, Renaming, Unmovable
from warploom.machine.observers.events import BarrierName, Event, Touch, WarpEvents

Array = npt.NDArray[Any]
_LONGEST = 1 << 12
"""Events of the longest pass, or of several that make up a period, that is looked for."""
_REMEMBERED = 1 << 10
"""Events of earlier batches that a period may begin with."""
_LEAST = 256
"""Events that must be left out for a search to be worth its while."""
_STATES = 5
"""States that are compared in one attempt."""
_PASSES = 16
"""Passes of one attempt."""
_ATTEMPTS = 6
"""Attempts without success after which no more are made."""
_RENAMED = 2
"""Attempts among these with other places, before only passes with the same places are looked for."""
_CANDIDATES = 48
_MOST_TOUCHES = 1 << 10


class _Counts(NamedTuple):
    """Numbers that the checker has counted."""

    assumed: Counter[str]
    relaxed: Counter[str]
    converged: int
    polled: int
    events: int


class _Plan(NamedTuple):
    """A part of the events that comes again and again."""

    first: int
    length: int
    last: int
    """The end of the repetitions."""
    renaming: Renaming
    """It takes the places of a pass to those of the next one."""
    following: Array
    """The shape of an event of the next pass by that of the event of this pass; -1 where it is not known."""


class _State(NamedTuple):
    """A point of a run: the normal form of its state, and the counts that are relative in it."""

    form: bytes
    at: int
    counted: _Counts
    phases: dict[Hashable, int]
    """The phases and rounds of barriers."""
    latest: dict[Hashable, int]
    """The latest groups of engines."""


class _Period(NamedTuple):
    """Events between two equal states."""

    shift: Array
    """The distance by which each event's group moves."""
    phases: dict[Hashable, int]
    groups: dict[Hashable, int]
    """The distances by which phases and groups move, by barrier and by engine."""
    renaming: Renaming
    following: Array
    """The shapes of the next period, as in a plan."""
    moved: Array
    """The distance by which phases move, by shape."""
    accesses: tuple[int, ...]
    """The events that access global memory."""
    counted: _Counts
    """Numbers that the checker counts in them."""


class Passes:
    """Judges the events of a cluster, but for those of equal passes."""

    def __init__(self, checker: Checker, shapes: Shapes, ctas: set[Triple], reach: Reach) -> None:
        self._checker, self._shapes, self._ctas, self._reach = checker, shapes, ctas, reach
        self.left_out = 0
        """Events that were not judged."""
        self._before = np.zeros((0, 4), np.int64)
        """The numbers of the latest events."""
        self._attempts = self._renamed_attempts = 0
        self._period: _Period | None = None
        self._expected = self._before
        """The numbers of the events that the next period must have."""
        self._waiting: list[Item] = []
        """Events of an equal period that is not complete."""
        self._phases: dict[Hashable, int] = {}
        self._groups: dict[Hashable, int] = {}
        """The distance by which phases and groups of later events are moved."""
        self._places = Renaming()
        """Takes the places of later events to those at which they are judged."""
        self._times = 0
        """Periods that were left out since the distances and places were determined."""
        self._touches: dict[int, tuple[Touch, Touch]] = {}
        """Touches of later events and what is judged in their place, by identity."""
        first = min(ctas)
        across, down, _ = (max(each[axis] for each in ctas) - first[axis] + 1 for axis in range(3))
        self._ranks = {
            each: ((each[2] - first[2]) * down + each[1] - first[1]) * across + each[0] - first[0] for each in ctas
        }

    def judge(self, items: Sequence[Item], table: Array) -> None:
        """Judge the next events, whose numbers are the rows of a table."""
        start = len(self._before)
        whole = np.concatenate((self._before, table)) if start else table
        at, end = 0, len(items)
        while at < end:
            if self._period is not None:
                at = self._follow(items, whole[start:], at)
                continue
            plan = self._plan(whole, start + at) if self._attempts < _ATTEMPTS else None
            if plan is None:
                self._play(items[at:])
                break
            self._play(items[at : plan.first - start])
            at = self._try(items, whole, start, plan) - start
        self._before = whole[-_REMEMBERED:].copy()

    def finish(self) -> None:
        """Judge the events of a period that has not come to its end."""
        self._settle()
        self._period = None
        items, self._waiting = self._waiting, []
        self._play(items)

    def _play(self, items: Sequence[Item]) -> None:
        on_event, moves = self._checker.on_event, not self._places.moves_nothing
        changed = self.left_out > 0
        for each in items:
            item = each if each.__class__ is WarpEvents else made(each)
            if changed and isinstance(item, WarpEvents):
                item = self._moved(item)
            elif moves:
                (event,) = events_of(item)
                on_event(self._moved_row(event))
                continue
            for event in events_of(item):
                on_event(event)
        reuses = not self._reach.frees_barriers and self._checker.rules.relaxed["barrier-reuse"] > 0
        if self.left_out and (reuses or len(self._checker.findings)):
            raise Unjudged

    def _moved(self, item: WarpEvents) -> WarpEvents:
        """Events with phases, groups and places as if those that were left out had not happened."""
        if item.barrier is not None and item.phase is not None:
            back = self._phases.get(_place(item.barrier))
            if back:
                item = item._replace(phase=item.phase - back)
        if item.group is not None:
            back = _same(self._groups.get(engine, 0) for engine in _engines(item))
            if back is None:
                raise Unjudged
            if back:
                item = item._replace(group=item.group._replace(number=item.group.number - back))
        if not self._places.moves_nothing:
            barrier = item.barrier
            if barrier is not None and barrier.kind == "mbarrier":
                item = item._replace(barrier=barrier._replace(address=self._barrier(barrier.cta, barrier.address)))
            if item.touches:
                item = item._replace(touches=tuple([self._moved_touch(touch) for touch in item.touches]))
        return item

    def _moved_row(self, event: Event) -> Event:
        return event._replace(touches=tuple([self._moved_touch(touch) for touch in event.touches]))

    def _moved_touch(self, touch: Touch) -> Touch:
        """A touch at the place where it is judged."""
        if touch.space not in ("shared", "tensor") or touch.cta is None:
            return touch
        known = self._touches.get(id(touch))
        if known is not None and known[0] is touch:
            return known[1]
        try:
            addresses = self._places.addresses((touch.space, self._ranks[touch.cta]), touch.addresses, touch.width)
        except Unmovable:
            raise Unjudged from None
        moved = touch._replace(addresses=addresses)
        if len(self._touches) >= _MOST_TOUCHES:
            self._touches.clear()
        self._touches[id(touch)] = touch, moved
        return moved

    def _barrier(self, cta: Triple, address: int, renaming: Renaming | None = None) -> int:
        try:
            return (renaming or self._places).barrier(self._ranks[cta], address)
        except Unmovable:
            raise Unjudged from None

    def _plan(self, whole: Array, at: int) -> _Plan | None:
        """A part of the events from a place on that comes again and again, with other places in shared memory and TMEM
        or the same; None where that would save little.
        """
        if len(whole) - at < _LEAST:
            return None
        shapes = whole[:, SHAPE]
        for numbers in (self._shapes.sorts(shapes), shapes) if self._renamed_attempts < _RENAMED else (shapes,):
            for first, length, last in self._repetitions(shapes, numbers, at):
                renamed = self._renaming(shapes[first : last - length], shapes[first + length : last])
                if renamed is not None:
                    return _Plan(first, length, last, *renamed)
        return None

    def _repetitions(self, shapes: Array, numbers: Array, at: int) -> Iterator[tuple[int, int, int]]:
        """Parts that come again and again: the first event, the length, and the end of the repetitions."""
        end, middle = len(numbers), at + (len(numbers) - at) // 2
        low = max(middle - _LONGEST, 0)
        for before in np.flatnonzero(numbers[low:middle] == numbers[middle])[::-1][:_CANDIDATES].tolist():
            period = middle - low - before
            if period > middle or middle + period > end:
                return
            if not np.array_equal(numbers[middle - period : middle], numbers[middle : middle + period]):
                continue
            # Event j is equal to event j + period from `first` on, as far as `last`.
            same = numbers[at : end - period] == numbers[at + period :]
            differs = np.flatnonzero(~same) + at
            first = int(differs[differs < middle - period].max(initial=at - 1)) + 1
            last = int(differs[differs >= first].min(initial=end - period)) + period
            barred = np.flatnonzero(self._shapes.barred()[shapes[first:last]])
            if len(barred):
                last = first + int(barred[0])
            engine = self._shapes.engine()
            while first < last and engine[shapes[first]]:  # an operation and what it signals belong together
                first += 1
            if last - first - 3 * period >= _LEAST:
                yield first, period, last

    def _renaming(self, old: Array, new: Array) -> tuple[Renaming, Array] | None:
        """The renaming of places that takes events to others, with the shapes that it takes shapes to."""
        shapes = self._shapes
        following = np.full(int(max(old.max(), new.max())) + 1, NONE, np.int64)
        following[old] = new
        if not np.array_equal(following[old], new):
            return None
        pairs = [(one, int(following[one])) for one in np.unique(old).tolist()]
        if all(one == other for one, other in pairs):
            return Renaming(), following
        shapes.sorts(old)
        shapes.sorts(new)
        spans = (pair for one, other in pairs for pair in zip(shapes.spans(one), shapes.spans(other), strict=True))
        found = Renaming.of(spans)
        return None if found is None else (found, following)

    def _try(self, items: Sequence[Item], whole: Array, start: int, plan: _Plan) -> int:
        """Judge passes until a state comes again; the place after them."""
        at, period = plan.first, plan.length
        back, moved = plan.renaming.inverse(), Renaming()
        states: list[tuple[int, _State]] = []
        known, outline = self._knowledge(moved), 0
        for passes in range(_PASSES):
            if known is None or len(states) > _STATES or at + 2 * period > plan.last:
                break
            before, outline = outline, known.outline()
            if outline == before:  # else the state is another one than a pass ago
                now = self._state(at, known)
                if now is None:
                    self._give_up(moved)
                    break
                for number, state in reversed(states):
                    if state.form == now.form:
                        part = slice(state.at - start, at - start)
                        self._begin(items[part], whole[state.at : at], state, now, plan, passes - number)
                        return at
                states.append((passes, now))
            self._play(items[at - start : at + period - start])
            at += period
            moved = back.after(moved)
            known = self._knowledge(moved)
        self._attempts += 1
        self._renamed_attempts += not plan.renaming.moves_nothing
        return at

    def _knowledge(self, moved: Renaming) -> Knowledge | None:
        """The present state, with places named as by a renaming; None if it cannot be compared."""
        checker = self._checker
        if len(checker.findings) or checker.operations.in_flight() or moved.is_complex():
            return None
        # The places of the events that are judged have other names already.
        names = Names(self._places.after(moved).after(self._places.inverse()), self._ranks)
        try:
            return Knowledge(checker, self._ctas, self._reach, names)
        except Unfit:
            self._give_up(moved)
            return None

    def _give_up(self, moved: Renaming) -> None:
        """Look for no more passes, or for none with other places, after a state that has no normal form."""
        if moved.moves_nothing:
            self._attempts = _ATTEMPTS
        self._renamed_attempts = _RENAMED

    def _state(self, at: int, known: Knowledge) -> _State | None:
        checker, real = self._checker, self._places.inverse()
        try:
            form = known.digest()
        except Unfit:
            return None
        phases: dict[Hashable, int] = {}
        for (cta, address), ledger in checker.barriers.ledgers.items():
            barrier = "mbarrier", cta, self._barrier(cta, address, real)
            phases[barrier] = ledger.phase + self._phases.get(barrier, 0)
        for place, number in checker.meetings.newest().items():
            phases[place] = number + self._phases.get(place, 0)
        return _State(form, at, self._counted(), phases, checker.operations.latest())

    def _counted(self) -> _Counts:
        checker = self._checker
        rules, polled = checker.rules, checker.memories.polled
        return _Counts(Counter(rules.assumed), Counter(rules.relaxed), checker.agents.converged, polled, checker.events)

    def _begin(
        self, items: Sequence[Item], table: Array, before: _State, now: _State, plan: _Plan, passes: int
    ) -> None:
        """Expect the events between two equal states once more, unless they have no common distance."""
        renaming, following = plan.renaming, plan.following
        for _ in range(passes - 1):
            renaming = plan.renaming.after(renaming)
            following = np.where(following == NONE, NONE, plan.following[following])
        phases = {
            place: now.phases.get(self._renamed(place, renaming), phase) - phase
            for place, phase in before.phases.items()
        }
        groups = {engine: number - before.latest.get(engine, 0) for engine, number in now.latest.items()}
        shift = np.zeros_like(table)
        accesses = np.flatnonzero(self._shapes.reaching()[table[:, SHAPE]]).tolist()
        for at in np.flatnonzero(table[:, GROUP] != NONE).tolist():
            item = made(items[at])
            if isinstance(item, WarpEvents):
                distance = _same(groups.get(engine, 0) for engine in _engines(item))
                if distance is None:
                    self._attempts += 1
                    return
                shift[at, GROUP] = distance
        old, new = before.counted, now.counted
        counted = _Counts(
            new.assumed - old.assumed,
            new.relaxed - old.relaxed,
            new.converged - old.converged,
            new.polled - old.polled,
            new.events - old.events,
        )
        moved = np.zeros(len(following), np.int64)
        places = {self._ranks[cta]: cta for cta in self._ctas}
        for shape in np.flatnonzero(following != NONE).tolist():
            barrier = self._shapes.barrier(shape)
            if barrier is not None:
                moved[shape] = phases.get(_key(barrier[0], places.get(barrier[1]), barrier[2]), 0)
        self._period = _Period(shift, phases, groups, renaming, following, moved, tuple(accesses), counted)
        self._expected = table
        self._expect()

    def _renamed(self, place: Any, renaming: Renaming) -> Hashable:
        """A barrier's place by another name."""
        kind, cta, address = place
        return (kind, cta, self._barrier(cta, address, renaming)) if kind == "mbarrier" else place

    def _expect(self) -> None:
        """Expect the next period, which has the events of the last one with other places, phases and groups."""
        period = self._period
        assert period is not None
        table = self._expected + period.shift
        shapes = table[:, SHAPE]
        phased = table[:, PHASE] != NONE
        table[phased, PHASE] += period.moved[shapes[phased]]
        table[:, SHAPE] = period.following[shapes]
        if (table[:, SHAPE] == NONE).any():
            self._settle()
            self._period = None  # the shapes of a pass that was never seen
        self._expected = table

    def _follow(self, items: Sequence[Item], table: Array, at: int) -> int:
        """Compare events with those of the period before; the place up to which that was done."""
        done = len(self._waiting)
        count = min(len(self._expected) - done, len(items) - at)
        differs = (table[at : at + count] != self._expected[done : done + count]).any(axis=1)
        equal = int(differs.argmax()) if differs.any() else count
        self._waiting += items[at : at + equal]
        if equal < count:
            self.finish()
        elif len(self._waiting) == len(self._expected):
            self._leave_out()
        return at + equal

    def _leave_out(self) -> None:
        """Leave out a period that is equal to the one before."""
        period, checker = self._period, self._checker
        assert period is not None
        for at in period.accesses:
            for touch in global_touches(self._waiting[at]):
                if touch.proxy == "tensormap":
                    self._pass_over_map(self._waiting[at], touch)
                else:
                    checker.memories.pass_over(touch.addresses, touch.width, writes=touch.verb == "writes")
        self._waiting = []
        self._times += 1
        counted = period.counted
        checker.rules.assumed.update(counted.assumed)
        checker.rules.relaxed.update(counted.relaxed)
        checker.agents.converged += counted.converged
        checker.memories.polled += counted.polled
        checker.events += counted.events
        self.left_out += counted.events
        self._expect()

    def _pass_over_map(self, item: Item, touch: Touch) -> None:
        """Leave out the use of a tensor map; to leave out a fence means to know less."""
        if touch.verb == "fences":
            return
        checker, events = self._checker, made(item)
        assert isinstance(events, WarpEvents)
        for agent, lanes in events.agents:
            warp = checker.agents.warp(agent)
            clock = checker.operations.knowledge(warp, lanes)[1]
            checker.maps.pass_over(int(touch.addresses[0]), warp, lanes, clock)

    def _settle(self) -> None:
        """Determine the distances and places of later events, after some periods have been left out."""
        left, period = self._times, self._period
        if not left or period is None:
            return
        self._times, times = 0, left
        # What is at a place now was at the one that the renaming takes to it.
        self._places = self._places.after(period.renaming.inverse().power(left))
        self._touches.clear()
        places = list(self._phases | period.phases)
        numbers = {place: at for at, place in enumerate(places)}
        to = np.array([numbers.get(self._renamed(place, period.renaming), -1) for place in places], np.int64)
        if (to < 0).any():
            raise Unjudged
        by = np.array([period.phases.get(place, 0) for place in places], np.int64)
        now, distances = np.arange(len(places)), np.array([self._phases.get(place, 0) for place in places], np.int64)
        while times:
            if times & 1:
                distances, now = distances + by[now], to[now]
            by, to, times = by + by[to], to[to], times >> 1
        self._phases = {places[at]: distance for at, distance in zip(now.tolist(), distances.tolist(), strict=True)}
        for engine, distance in period.groups.items():
            self._groups[engine] = self._groups.get(engine, 0) + left * distance


def _place(barrier: BarrierName) -> Hashable:
    """A barrier as the checker knows it."""
    return _key(barrier.kind, barrier.cta, barrier.address)


def _key(kind: str, cta: Triple | None, address: int) -> Hashable:
    return kind, cta, address & OFFSET if kind == "mbarrier" else address


def _engines(item: WarpEvents) -> Iterator[Hashable]:
    """The engines that count the groups of events, one for each."""
    assert item.group is not None
    kind = item.group.kind
    return (engine_of(kind, agent.cta, agent.warp, lanes) for agent, lanes in item.agents)


def _same(distances: Iterable[int]) -> int | None:
    """The distance that is common to all, or None."""
    found = set(distances)
    return found.pop() if len(found) == 1 else None
