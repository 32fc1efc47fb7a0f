"""Equal passes of a loop are judged once: events that come again are compared with the pass before, and left out.

Take two points of a run at which the checker's state has the same normal form (`recurrence/state.py`): it is the same
up to a renaming of the values of each clock component that keeps their order, and up to a shift of phases, rounds and
groups. Let the events that follow be those between the two points, with their phases, rounds and groups shifted by as
much again. The checker is a function of its state and the events, and commutes with such renamings. So it would find
nothing in them, as it found nothing before, and would be in the same state after them, renamed once more. They are left
out, and all later events are judged with phases, rounds and groups as if the ones that were left out had not happened.

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
)
from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import Unjudged
from warploom.checker.model.operations import engine_of
from warploom.checker.observer import Checker
from warploom.checker.recurrence.state import Unfit, knowledge_of
from warploom.machine.core.events import BarrierName, WarpEvents

Array = npt.NDArray[Any]
_LONGEST = 1 << 12
"""Events of the longest pass, or of several that make up a period, that is looked for."""
_REMEMBERED = 1 << 10
"""Events of earlier batches that a period may begin with."""
_LEAST = 256
"""Events that must be left out for a search to be worth its while."""
_STATES = 5
"""States that are compared in one attempt."""
_ATTEMPTS = 6
"""Attempts without success after which no more are made."""
_CANDIDATES = 48


class _Counts(NamedTuple):
    """Numbers that the checker has counted."""

    assumed: Counter[str]
    relaxed: Counter[str]
    converged: int
    polled: int
    events: int


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
    """The distance by which each event's phase and group move."""
    phases: dict[Hashable, int]
    groups: dict[Hashable, int]
    """The same by barrier and by engine."""
    accesses: tuple[int, ...]
    """The events that access global memory."""
    counted: _Counts
    """Numbers that the checker counts in them."""


class Passes:
    """Judges the events of a cluster, but for those of equal passes."""

    def __init__(self, checker: Checker, shapes: Shapes, ctas: set[Triple], near: int) -> None:
        self._checker, self._shapes, self._ctas, self._near = checker, shapes, ctas, near
        self.left_out = 0
        """Events that were not judged."""
        self._before = np.zeros((0, 4), np.int64)
        """The numbers of the latest events."""
        self._attempts = 0
        self._period: _Period | None = None
        self._expected = self._before
        """The numbers of the events that the next period must have."""
        self._waiting: list[Item] = []
        """Events of an equal period that is not complete."""
        self._phases: dict[Hashable, int] = {}
        self._groups: dict[Hashable, int] = {}
        """The distance by which phases and groups of later events are moved."""

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
            first, period, last = plan
            self._play(items[at : first - start])
            at = self._try(items, whole, start, first, period, last) - start
        self._before = whole[-_REMEMBERED:].copy()

    def finish(self) -> None:
        """Judge the events of a period that has not come to its end."""
        self._period = None
        items, self._waiting = self._waiting, []
        self._play(items)

    def _play(self, items: Sequence[Item]) -> None:
        on_event = self._checker.on_event
        for item in items:
            moved = self._moved(item) if self.left_out and isinstance(item, WarpEvents) else item
            for event in events_of(moved):
                on_event(event)
        if self.left_out and len(self._checker.findings):
            raise Unjudged

    def _moved(self, item: WarpEvents) -> WarpEvents:
        """Events with phases and groups as if those that were left out had not happened."""
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
        return item

    def _plan(self, whole: Array, at: int) -> tuple[int, int, int] | None:
        """A part of the events from a place on that comes again and again: its first event, its length, and the end of
        the repetitions; None where that would save little.
        """
        shapes = whole[:, SHAPE]
        end, middle = len(shapes), at + (len(shapes) - at) // 2
        if end - at < _LEAST:
            return None
        low = max(middle - _LONGEST, 0)
        for before in np.flatnonzero(shapes[low:middle] == shapes[middle])[::-1][:_CANDIDATES].tolist():
            period = middle - low - before
            if period > middle or middle + period > end:
                return None
            if np.array_equal(shapes[middle - period : middle], shapes[middle : middle + period]):
                break
        else:
            return None
        # Event j is equal to event j + period from `first` on, as far as `last`.
        same = shapes[at : end - period] == shapes[at + period :]
        differs = np.flatnonzero(~same) + at
        first = int(differs[differs < middle - period].max(initial=at - 1)) + 1
        last = int(differs[differs >= first].min(initial=end - period)) + period
        barred = np.flatnonzero(self._shapes.barred()[shapes[first:last]])
        if len(barred):
            last = first + int(barred[0])
        engine = self._shapes.engine()
        while first < last and engine[shapes[first]]:  # an operation and what it signals belong together
            first += 1
        if last - first - 3 * period < _LEAST:
            return None
        return first, period, last

    def _try(self, items: Sequence[Item], whole: Array, start: int, at: int, period: int, last: int) -> int:
        """Judge passes until a state comes again; the place after them."""
        states = [self._state(at)]
        while states[-1] is not None and len(states) < _STATES and at + 2 * period <= last:
            self._play(items[at - start : at + period - start])
            at += period
            now = self._state(at)
            for before in reversed(states):
                if now is not None and before is not None and before.form == now.form:
                    first = before.at
                    self._begin(items[first - start : at - start], whole[first:at], before, now)
                    return at
            states.append(now)
        self._attempts += 1
        return at

    def _state(self, at: int) -> _State | None:
        checker = self._checker
        if len(checker.findings) or checker.operations.in_flight():
            return None
        try:
            form = knowledge_of(checker, self._ctas, self._near)
        except Unfit:
            self._attempts = _ATTEMPTS
            return None
        phases: dict[Hashable, int] = {("mbarrier", *key): each.phase for key, each in checker.barriers.ledgers.items()}
        return _State(form, at, self._counted(), phases | checker.meetings.newest(), checker.operations.latest())

    def _counted(self) -> _Counts:
        checker = self._checker
        rules, polled = checker.rules, checker.memories.polled
        return _Counts(Counter(rules.assumed), Counter(rules.relaxed), checker.agents.converged, polled, checker.events)

    def _begin(self, items: Sequence[Item], table: Array, before: _State, now: _State) -> None:
        """Expect the events between two equal states once more, unless they have no common distance."""
        phases = {place: phase - before.phases.get(place, 0) for place, phase in now.phases.items()}
        groups = {engine: number - before.latest.get(engine, 0) for engine, number in now.latest.items()}
        shift = np.zeros_like(table)
        accesses = []
        for at, item in enumerate(items):
            if global_touches(item):
                accesses.append(at)
            if isinstance(item, WarpEvents):
                if item.barrier is not None and table[at, PHASE] != NONE:
                    shift[at, PHASE] = phases.get(_place(item.barrier), 0)
                if table[at, GROUP] != NONE:
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
        self._period = _Period(shift, phases, groups, tuple(accesses), counted)
        self._expected = table + shift

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
                checker.memories.pass_over(touch.addresses, touch.width, writes=touch.verb == "writes")
        self._waiting = []
        self._expected = self._expected + period.shift
        for moved, by in ((self._phases, period.phases), (self._groups, period.groups)):
            for key, distance in by.items():
                moved[key] = moved.get(key, 0) + distance
        counted = period.counted
        checker.rules.assumed.update(counted.assumed)
        checker.rules.relaxed.update(counted.relaxed)
        checker.agents.converged += counted.converged
        checker.memories.polled += counted.polled
        checker.events += counted.events
        self.left_out += counted.events


def _place(barrier: BarrierName) -> Hashable:
    """A barrier as the checker knows it."""
    address = barrier.address & 0xFFFFFF if barrier.kind == "mbarrier" else barrier.address
    return barrier.kind, barrier.cta, address


def _engines(item: WarpEvents) -> Iterator[Hashable]:
    """The engines that count the groups of events, one for each."""
    assert item.group is not None
    kind = item.group.kind
    return (engine_of(kind, agent.cta, agent.warp, lanes) for agent, lanes in item.agents)


def _same(distances: Iterable[int]) -> int | None:
    """The distance that is common to all, or None."""
    found = set(distances)
    return found.pop() if len(found) == 1 else None
