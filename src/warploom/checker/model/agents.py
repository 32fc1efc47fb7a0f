"""Warps as agents: the lanes of a warp are parted into classes that know the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from warploom.checker.model.clocks import Clock, Components, G, Triple, X, fitted
from warploom.machine.observers.events import WORD, Agent, Source, Started

_HISTORY = 12


class Sync(NamedTuple):
    """A synchronisation that a thread went through, with the knowledge that it handed out."""

    source: Source
    handed: Clock


class Ready(NamedTuple):
    """Knowledge that a fence of some lanes has made ready for their next relaxed stores to release."""

    lanes: int
    clock: Clock
    scope: str
    component: int
    whole: int
    """The component of these lanes, and the time up to which they knew each other's accesses."""
    lent: bool = False
    """True if other threads have fenced it, before a barrier that these lanes have passed since."""

    def of(self, lanes: int) -> Clock | None:
        """Get the knowledge that some lanes may release by it: a fence is one of its own thread."""
        if lanes & ~self.lanes:
            return None
        if lanes == self.lanes:
            return self.clock
        clock = self.clock.copy()
        if clock.rows.shape[1] > self.component:
            np.minimum(clock.rows[G:, self.component], self.whole, out=clock.rows[G:, self.component])
        return clock


class Seen(NamedTuple):
    """Knowledge that relaxed loads of some lanes have found, for their next fence to acquire."""

    lanes: int
    scope: str
    """The smallest scope of a fence that includes the thread which released it."""
    clock: Clock


_Kept = TypeVar("_Kept")


class Lanes:
    """Lanes of a warp that know the same."""

    __slots__ = ("clock", "component", "fenced", "history", "mask", "met", "partial", "seen", "taken", "whole")

    def __init__(self, mask: int, clock: Clock, component: int) -> None:
        self.mask, self.clock, self.component = mask, clock, component
        self.fenced: tuple[Ready, ...] = ()
        self.seen: tuple[Seen, ...] = ()
        self.history: deque[Sync] = deque(maxlen=_HISTORY)
        self.taken: Clock | None = None
        """A copy of the clock, while that does not change."""
        self.met = 0
        """The time of the last synchronisation of all these lanes, under whichever component."""
        self.whole = 0
        """The time up to which these lanes know each other's accesses: their last synchronisation."""
        self.partial: dict[int, int] = {}
        """Components of more lanes, of whose accesses each lane knows its own only since that time."""

    def snapshot(self) -> Clock:
        """The present knowledge, as a copy that the caller must not change."""
        if self.taken is None:
            self.taken = self.clock.copy()
        return self.taken

    def given(self, lanes: int, components: Components) -> Clock:
        """The knowledge that some lanes hand over: what they did with other lanes is not theirs to release."""
        if not self.partial:
            return self.clock
        limits = {at: time for at, time in self.partial.items() if components.keys[at][3] & ~lanes}
        if not limits:
            return self.clock
        clock = self.clock.copy()
        for at, time in limits.items():
            np.minimum(clock.rows[G:, at], time, out=clock.rows[G:, at])
        return clock

    def learned(self, source: Clock) -> None:
        """Know the accesses of other lanes as far as a synchronisation has handed them over."""
        if source.rows.shape[1] > self.component and source.rows[G, self.component] > self.whole:
            self.whole = self.met = int(source.rows[G, self.component])
        for at, time in self.partial.items():
            if source.rows.shape[1] > at and source.rows[G, at] > time:
                self.partial[at] = int(source.rows[G, at])

    def synchronised(self, lanes: int, time: int, components: Components) -> None:
        """All of these lanes know each other's accesses."""
        self.whole = self.met = time
        if self.partial:
            self.partial = {at: old for at, old in self.partial.items() if components.keys[at][3] & ~lanes}


class Warp:
    """A warp of a CTA, and how often its lanes have committed groups of each kind."""

    __slots__ = ("commits", "components", "cta", "issuing", "number", "parts", "time")

    def __init__(self, cta: Triple, number: int, components: Components, mask: int) -> None:
        self.cta, self.number, self.components = cta, number, components
        self.time = 0
        self.parts = [Lanes(mask, components.clock(), components.of(("warp", cta, number, mask)))]
        self.commits: dict[str, list[int]] = {}
        self.issuing: tuple[int, list[Clock], Clock] | None = None
        """Lanes that issued an operation, the snapshots of their classes, and what they knew together."""

    def committed(self, kind: str) -> list[int]:
        """The number of groups that each lane has committed."""
        return self.commits.setdefault(kind, [0] * 32)

    def component(self, mask: int) -> int:
        return self.components.of(("warp", self.cta, self.number, mask))


class Agents:
    """The warps of a launch."""

    def __init__(self) -> None:
        self.clusters: dict[Triple, Components] = {}
        self.warps: dict[tuple[Triple, int], Warp] = {}
        self.shape: Triple = (1, 1, 1)
        self.threads = 0
        self.kept = _HISTORY
        """Synchronisations of a thread that are remembered."""
        self.converged = 0
        """The number of times that lanes which had parted executed an instruction together."""

    def start(self, started: Started) -> None:
        self.shape = started.cluster
        self.threads = started.block[0] * started.block[1] * started.block[2]

    def cluster(self, cta: Triple) -> Components:
        """The components of a CTA's cluster."""
        place = self.place(cta)
        found = self.clusters.get(place)
        if found is None:
            found = self.clusters[place] = Components(place)
        return found

    def place(self, cta: Triple) -> Triple:
        """The index of a CTA's cluster."""
        shape = self.shape
        return cta[0] // shape[0], cta[1] // shape[1], cta[2] // shape[2]

    def warp(self, agent: Agent) -> Warp:
        key = (agent.cta, agent.warp)
        found = self.warps.get(key)
        if found is None:
            left = self.threads - 32 * agent.warp
            mask = WORD if left >= 32 or not self.threads else (1 << left) - 1
            found = self.warps[key] = Warp(agent.cta, agent.warp, self.cluster(agent.cta), mask)
            found.parts[0].history = deque(maxlen=self.kept)
        return found

    def part(self, warp: Warp, lanes: int) -> None:
        """Tell some lanes of a warp from the others, because they are to know something by themselves."""
        self._parted(warp, lanes)

    def act(self, warp: Warp, lanes: int) -> list[Lanes]:
        """The classes that some lanes make up, parted where needed; each counts one action."""
        parts = warp.parts
        taken = parts if len(parts) == 1 and not parts[0].mask & ~lanes else self._parted(warp, lanes)
        warp.time += 1
        if len(taken) > 1:
            self._converge(warp, taken)
        time = warp.time
        for part in taken:
            rows = part.clock.rows
            if rows.shape[1] <= part.component:
                part.clock.fit(warp.components)
                rows = part.clock.rows
            rows[X, part.component] = rows[G, part.component] = time
            part.taken = None
        return taken

    def _parted(self, warp: Warp, lanes: int) -> list[Lanes]:
        taken, every = list[Lanes](), list[Lanes]()
        for part in warp.parts:
            inside = part.mask & lanes
            every.append(part)
            if not inside:
                continue
            taken.append(part)
            if inside != part.mask:
                rest = Lanes(part.mask & ~lanes, part.clock.copy(), warp.component(part.mask & ~lanes))
                rest.fenced, rest.seen, rest.history = part.fenced, part.seen, part.history.copy()
                rest.met = part.met
                part.partial = {**part.partial, part.component: part.whole}
                rest.partial, rest.whole = dict(part.partial), warp.time
                part.whole = warp.time
                part.mask, part.component = inside, warp.component(inside)
                every.append(rest)
        warp.parts = every
        return taken

    def _converge(self, warp: Warp, taken: list[Lanes]) -> None:
        """Lanes that execute an instruction together are at one point: the assumption `convergence`."""
        self.converged += 1
        capacity = warp.components.capacity
        executed = np.zeros(capacity, np.int32)
        for part in taken:
            part.clock.rows = fitted(part.clock.rows, capacity)
            np.maximum(executed, part.clock.rows[X, :capacity], out=executed)
        for part in taken:
            executed[part.component] = warp.time
        for part in taken:
            part.clock.rows[X, :capacity] = executed
            part.taken = None

    def unite(self, warp: Warp, lanes: int) -> Lanes:
        """Make one class of all lanes that synchronise with each other, memory included."""
        inside = [part for part in warp.parts if part.mask & lanes]
        one = inside[0]
        if len(inside) == 1:
            if not one.mask & ~lanes:
                one.synchronised(lanes, warp.time, warp.components)
            return one
        for part in inside[1:]:
            one.clock.join(part.clock)
            one.mask |= part.mask
            one.fenced, one.seen = _together(one.fenced, part.fenced), _together(one.seen, part.seen)
            one.partial = {
                at: min(one.partial.get(at, time), time) for at, time in (one.partial | part.partial).items()
            }
        one.taken, one.component = None, warp.component(one.mask)
        one.clock.fit(warp.components)
        one.clock.set(one.component, warp.time, (X, G))
        one.synchronised(one.mask, warp.time, warp.components)
        warp.parts = [part for part in warp.parts if part is one or part not in inside]
        return one

    def forget(self, place: Triple) -> None:
        """Drop a cluster that has ended."""
        gone = self.clusters.pop(place, None)
        self.warps = {key: warp for key, warp in self.warps.items() if warp.components is not gone}


def _together(one: Sequence[_Kept], other: Sequence[_Kept]) -> tuple[_Kept, ...]:
    """Join the lists of two classes of lanes; those that were one class before have the same entries."""
    return tuple(one) + tuple(each for each in other if all(each is not known for known in one))
