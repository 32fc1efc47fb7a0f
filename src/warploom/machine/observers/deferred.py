"""Events that follow each other again and again, made when an observer looks at them.

A loop issues the same MMAs with every pass, commits them to the same barriers, loads the same columns of TMEM, and
stores boxes from the same place. Their events differ in phases, groups, the numbers of operations and places in global
memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from typing import Protocol

from warploom.machine.observers.events import (
    Agent,
    BarrierName,
    CommitGroup,
    Declared,
    Several,
    Source,
    Touch,
    Triple,
    WarpEvents,
)

Agents = tuple[tuple[Agent, int], ...]
OneOperation = tuple[Agents, Source, tuple[Touch, ...]]
"""An operation: the warps that issue it, with their lanes, its instruction and touches."""
_new = tuple.__new__  # the constructor of a named tuple takes twice as long
PLAIN = True, 0, True, None
"""The last fields of an event that has passed, leaves nothing, and changes memory without a clash."""


class Deferred(Several, Protocol):
    """Events whose number is known."""

    @property
    def total(self) -> int:
        """The number of events."""
        ...


@lru_cache(maxsize=256)
def _engine_of(space: str, proxy: str) -> Declared:
    return Declared(space, proxy)


def engine_in(touches: tuple[Touch, ...]) -> Declared:
    """An operation's own space and proxy: those of what it touches first."""
    return _engine_of(touches[0].space, touches[0].proxy) if touches else _engine_of("", "async")


class Operations:
    """Operations that are issued one after the other, again and again, each by as many warps.

    They are made when an observer looks at them. Those of two CTAs whose `likeness` is equal differ in nothing but the
    CTA; without it, they are like no others.
    """

    __slots__ = ("_each", "_make", "agents", "count", "likeness")

    def __init__(
        self, agents: Agents, count: int, make: Callable[[], Iterable[OneOperation]], likeness: Hashable = None
    ) -> None:
        self.agents, self.count = agents, count
        """The warps that issue the first one, and the number of operations."""
        self.likeness = likeness
        self._make: Callable[[], Iterable[OneOperation]] | None = make
        self._each: tuple[OneOperation, ...] = ()

    @property
    def each(self) -> tuple[OneOperation, ...]:
        """The operations, the same objects every time."""
        if self._make is not None:
            self._each, self._make = tuple(self._make()), None
        return self._each


class Again:
    """Operations that are issued one after the other, as before, or that complete; if both, each completes at once."""

    __slots__ = ("_events", "_kind", "_number", "_operations", "_step", "group", "verbs")
    phase = 0

    def __init__(
        self, verbs: tuple[str, ...], operations: Operations, group: CommitGroup, step: int, number: int
    ) -> None:
        self.verbs = verbs
        """Among `issue` and `complete`."""
        self._operations, self._step = operations, step
        self._kind, self.group = group
        """The kind of their groups, and the number of the first one's; those of the others follow at a distance."""
        self._number = number
        """The number of the first warp's part of the first operation; those of the others follow."""
        self._events: list[WarpEvents] | None = None

    @property
    def total(self) -> int:
        return self._operations.count * len(self._operations.agents) * len(self.verbs)

    @property
    def cta(self) -> Triple:
        return self._operations.agents[0][0].cta

    @property
    def likeness(self) -> tuple[Hashable, object]:
        operations = self._operations
        key, same = (id(operations), operations) if operations.likeness is None else (operations.likeness, None)
        return (self.verbs, self._kind, self._step, key), same

    @property
    def agents(self) -> Agents:
        """The warps that issue the first one."""
        return self._operations.agents

    @property
    def commit_group(self) -> CommitGroup:
        """The group of the first one."""
        return CommitGroup(self._kind, self.group)

    def completed(self) -> Again:
        """Their completion, of operations that were issued."""
        return Again(("complete",), self._operations, self.commit_group, self._step, self._number)

    def in_global(self, number: int) -> list[Touch]:
        touches = self.events()[number].touches
        return [touch for touch in touches if touch.space == "global" and touch.verb in ("reads", "writes")]

    def events(self) -> list[WarpEvents]:
        if self._events is not None:
            return self._events
        number, found = self._number, list[WarpEvents]()
        for at, (agents, source, touches) in enumerate(self._operations.each):
            group = CommitGroup(self._kind, self.group + at * self._step)
            rest = source, touches, engine_in(touches), None, None, 0, group, number, *PLAIN
            for verb in self.verbs:
                who = agents
                if verb == "complete":
                    engines = enumerate(agents, number)
                    who = tuple(
                        [(_new(Agent, (agent.cta, agent.warp, each)), lanes) for each, (agent, lanes) in engines]
                    )
                found.append(_new(WarpEvents, (verb, "operation", who, *rest)))
            number += len(agents)
        self._events = found
        return found


class Committed:
    """Operations that warps issue, as before, and commit, and that complete if that is reported."""

    __slots__ = ("_commits", "_completes", "_events", "_issued", "group", "total")
    phase = 0

    def __init__(self, issued: Again, commits: tuple[Source, Declared], *, completes: bool) -> None:
        self._issued, self._commits, self._completes = issued, commits, completes
        self.group = issued.group
        self.total = issued.total * (1 + completes) + len(issued.agents)
        self._events: list[WarpEvents] | None = None

    @property
    def cta(self) -> Triple:
        return self._issued.cta

    @property
    def likeness(self) -> tuple[Hashable, object]:
        key, same = self._issued.likeness
        return (key, self._commits[0].number, self._completes), same

    def in_global(self, number: int) -> list[Touch]:
        return []

    def events(self) -> list[WarpEvents]:
        found, issued = self._events, self._issued
        if found is None:
            found = self._events = []
            source, declared = self._commits
            rest = source, (), declared, None, None, 0, issued.commit_group, 0, *PLAIN
            found += [*issued.events(), _new(WarpEvents, ("issue", "commits", issued.agents, *rest))]
            if self._completes:
                found += issued.completed().events()
        return found


class Commit:
    """The commit of operations that are complete, to a barrier: it arrives in a phase, and may end it.

    If they are operations that were issued before, their own events come first.
    """

    __slots__ = (
        "_barrier", "_before", "_declared", "_ends", "_events", "_kind", "_number", "_touch", "_who", "group", "phase",
        "total",
    )  # fmt: skip

    def __init__(
        self,
        who: tuple[Agent, int, Source],
        touch: Touch,
        declared: tuple[Declared, Declared],
        group: CommitGroup,
        barrier: BarrierName,
        phase: int,
        number: int,
        *,
        ends: bool,
        before: Again | None = None,
    ) -> None:
        self._who, self._before = who, before
        self._touch, self._declared, self._barrier, self._number, self._ends = touch, declared, barrier, number, ends
        self._kind, self.group = group
        self.phase = phase
        self.total = 3 + ends if before is None else 3 + ends + before.total
        self._events: list[WarpEvents] | None = None

    @property
    def cta(self) -> Triple:
        return self._who[0].cta

    @property
    def likeness(self) -> tuple[Hashable, object]:
        (agent, lanes, source), barrier = self._who, self._barrier
        key = agent.warp, lanes, barrier.cta == agent.cta, barrier.address, self._ends, source.number
        if self._before is None:
            return key, None
        operations, same = self._before.likeness
        return (*key, operations), same

    def in_global(self, number: int) -> list[Touch]:
        before = self._before
        return before.in_global(number) if before is not None and number < len(before.events()) else []

    def events(self) -> list[WarpEvents]:
        if self._events is not None:
            return self._events
        found = self._events = [] if self._before is None else self._before.events().copy()
        (agent, lanes, source), number, touches = self._who, self._number, (self._touch,)
        arrives, phase = self._declared
        rest = source, touches, engine_in(touches), None, None, 0, CommitGroup(self._kind, self.group), number, *PLAIN
        engine = ((_new(Agent, (agent.cta, agent.warp, number)), lanes),)
        found += [
            _new(WarpEvents, ("issue", "operation", ((agent, lanes),), *rest)),
            _new(WarpEvents, ("complete", "operation", engine, *rest)),
            _new(WarpEvents, (
                "arrive", "arrives", engine, source, (), arrives, self._barrier, self.phase, 1, None, number, *PLAIN
            )),
        ]  # fmt: skip
        if self._ends:
            end = source, (), phase, self._barrier, self.phase, 0, None, 0, *PLAIN
            found.append(_new(WarpEvents, ("complete", "phase", engine, *end)))
        return found
