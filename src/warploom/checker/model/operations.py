"""Asynchronous operations: from issue to the mechanism that makes their completion known.

An operation needs no component of its own. A copy that signals an mbarrier is complete for those that know its phase; a
copy, store or MMA that belongs to a group is complete for those that waited for the group, which is a count of a
thread's, a warp's or a warpgroup's engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple, Protocol

from warploom.checker.model.agents import Agents, Lanes, Sync, Warp
from warploom.checker.model.clocks import PG, TB, Clock, Components, G, Known, P, T, Triple, X
from warploom.checker.model.shadow import Access
from warploom.checker.rules import Rules
from warploom.machine.observers.events import Event, Touch

WARPGROUP = 4
"""Warps that issue a wgmma together."""
_LATEST = 8
"""Groups of wgmma whose issuers are remembered."""


@dataclass(slots=True, eq=False)
class Pending:
    """An operation that was issued."""

    clock: Clock
    """The knowledge of its issuer, with the operation itself where its engine completes in order."""
    component: int
    time: int
    cta: Triple
    accesses: list[tuple[Access, int]] = field(default_factory=list)
    """Its accesses, with the rank of the CTA that owns the bytes."""
    is_pair: bool = False
    known: Known = ()
    """To know these actions is to come after the operation; its completion, where its engine completes in order."""

    def signal(self, components: Components, component: int, event: Event) -> None:
        """Its completion is announced at a barrier: those that know the phase know the accesses of that CTA.

        What it read has been read before anything is announced, wherever that is.
        """
        assert event.barrier is not None
        rank = event.barrier.address >> 24
        waiting = [(access, at) for access, at in self.accesses if access.value is None]
        near = [
            (access, at)
            for access, at in waiting
            if at in (rank, -1) or not access.writes or (self.is_pair and at >> 1 == rank >> 1)
        ]
        for access, _ in near or waiting:
            access.components, access.component = components, component
            access.value, access.phase = (event.phase or 0) + 1, event.phase
            access.barrier = event.barrier.name


class Form(Protocol):
    """A normal form of the state that parts of the checker add theirs to (`recurrence/state.py`)."""

    near: int
    """Groups, the latest first, that a wait may still refer to."""

    def plain(self, *values: object) -> None: ...

    def clock(self, label: object, clock: Clock | None) -> None: ...

    def value(self, component: int, value: int, *, compared: bool = False) -> int: ...

    def access(self, access: Access | None) -> int: ...


class _Engine(NamedTuple):
    """The components of an operation's completion: one for its reads, one for its writes, and their value.

    The value is None where a barrier decides; operations in one pipe execute in order.
    """

    reads: int
    writes: int
    value: int | None
    pipe: object = None


class _Copies:
    """The copies by `cp.async` of some lanes: each has a number, and the commits of every lane before it."""

    __slots__ = ("done", "issued", "open")

    def __init__(self) -> None:
        self.issued = self.done = 0
        self.open: deque[tuple[int, tuple[int, ...]]] = deque()

    def issue(self, commits: tuple[int, ...]) -> int:
        """The number of another copy."""
        self.issued += 1
        self.open.append((self.issued, commits))
        return self.issued

    def drain(self, complete: tuple[int, ...]) -> int:
        """The number up to which all copies are done, if each lane has waited for so many of its groups."""
        while self.open and all(one < most for one, most in zip(self.open[0][1], complete, strict=True)):
            self.done = self.open.popleft()[0]
        return self.done


class Operations:
    """The operations in flight, and the groups that threads commit and wait for."""

    def __init__(self, agents: Agents, rules: Rules) -> None:
        self._agents, self._rules = agents, rules
        self._pending: dict[int, Pending] = {}
        self._issuers: dict[tuple[Triple, int], dict[int, Clock]] = {}
        self.unwaited: dict[tuple[Triple, int, int], tuple[int, Event]] = {}
        """Bulk stores that their thread has not waited for: the number of the group."""
        self._bulk: set[tuple[Triple, int, int]] = set()
        self._copies: dict[tuple[Triple, int], dict[int, _Copies]] = {}
        """The copies by `cp.async` of each warp, by the lanes that issued them together."""
        self._latest: dict[int, int] = {}
        """The latest number of a group that was seen, by its component."""
        self._over: list[int] = []
        """Operations that have completed, whose signals may still come."""

    def pending(self, event: Event) -> Pending | None:
        """The operation that an event is part of the completion of."""
        return self._pending.get(event.agent.operation) if event.agent.operation else None

    def complete(self, event: Event) -> None:
        """An operation takes effect; its signals follow at once."""
        self._over.append(event.agent.operation)

    def issue(self, event: Event, warp: Warp) -> tuple[Pending, Lanes, Clock]:
        """Take an operation; the caller judges its accesses with the issuer's clock.

        To issue teaches nothing and is known by the completion alone, so that it does not count as an action.
        """
        if self._over:
            for number in self._over:  # an operation signals while it completes, and not after the next issue
                self._pending.pop(number, None)
            self._over.clear()
        parts, clock = self.knowledge(warp, event.lanes)
        signals = _signals(event)
        is_tensor = event.group is not None and event.group.kind in ("tcgen05", "cp.async")
        pending = Pending(clock.copy() if signals and is_tensor else clock, parts[0].component, warp.time, warp.cta)
        pending.is_pair, is_reduction = _traits(event.source.instruction.opcode)
        engine = self._engine(event, warp, pending.clock if signals else None)
        if signals:
            known = [(part.component, part.clock.value(X, part.component)) for part in parts]
            if engine.value is not None:
                known.append((engine.writes, pending.clock.value(X, engine.writes)))
            pending.known = tuple(known)
        for touch in event.touches:
            if touch.verb in ("reads", "writes") and touch.space != "register":
                writes = touch.verb == "writes"
                access = Access(
                    event.source, warp.cta, warp.number, event.lanes, writes, touch.space, touch.proxy, warp.components,
                    engine.writes if writes else engine.reads, engine.value,
                )  # fmt: skip
                access.asynchronous, access.pipe, access.layout = True, engine.pipe, touch.layout
                if touch.proxy == "tensormap":
                    access.map, access.group = int(touch.addresses[0]), self._next_bulk(event, warp)
                elif is_reduction and touch.space != "tensor":
                    access.scope = "gpu"  # the additions of a reduction are atomic
                pending.accesses.append((access, _rank(touch) if signals else -1))
        if signals:
            self._pending[event.operation] = pending
        return pending, parts[0], clock

    def knowledge(self, warp: Warp, lanes: int) -> tuple[list[Lanes], Clock]:
        """The classes of some lanes, and what these know together, as a clock that the caller must not change."""
        parts = warp.parts if len(warp.parts) == 1 else [part for part in warp.parts if part.mask & lanes]
        if len(parts) == 1 and not parts[0].partial:
            return parts, parts[0].snapshot()
        # The same lanes often issue one operation after the other; a class takes a new snapshot when it has learned.
        taken = [part.snapshot() for part in parts]
        if warp.issuing is not None:
            before, snapshots, clock = warp.issuing
            if before == lanes and len(snapshots) == len(taken) and all(map(is_, snapshots, taken)):
                return parts, clock
        clock = parts[0].given(lanes, warp.components)
        if clock is parts[0].clock:
            clock = clock.copy()
        for part in parts[1:]:
            clock.join(part.given(lanes, warp.components))
        warp.issuing = lanes, taken, clock
        return parts, clock

    def _engine(self, event: Event, warp: Warp, carried: Clock | None) -> _Engine:
        """The components and the value of the operation's completion; what its signal carries learns of them."""
        group, components = event.group, warp.components
        if group is None:
            return _Engine(-1, -1, None)
        value = group.number + 1
        lane = (event.lanes & -event.lanes).bit_length() - 1
        match group.kind:
            case "tcgen05":
                pipe = engine_of(group.kind, warp.cta, warp.number, event.lanes)
                component = components.of(pipe)
                self._latest[component] = value
                if carried is not None:
                    carried.fit(components)
                    carried.set(component, value, (X, G, P, PG, TB))
                self._rules.assumed["tcgen05-pipe"] += 1
                return _Engine(component, component, value, pipe)
            case "wgmma":
                self.remember(warp, group.number, event.lanes)
                component = components.of(engine_of(group.kind, warp.cta, warp.number, event.lanes))
                self._latest[component] = value
                return _Engine(component, component, value)
            case "bulk":
                thread = (warp.cta, warp.number, lane)
                number = warp.committed("bulk")[lane] + 1
                self.unwaited[thread] = (number, event)
                self._bulk.add(thread)
                return _Engine(components.of(("bulk reads", *thread)), components.of(("bulk", *thread)), number)
            case "cp.async":
                return self._copy(event, warp, carried)
        component = components.of(engine_of(group.kind, warp.cta, warp.number, event.lanes))
        self._latest[component] = value
        return _Engine(component, component, value)

    def _next_bulk(self, event: Event, warp: Warp) -> tuple[int, int]:
        """The reads of the bulk group that a thread commits next, in which a load is by the practice of CUTLASS."""
        lane = (event.lanes & -event.lanes).bit_length() - 1
        thread = (warp.cta, warp.number, lane)
        self._bulk.add(thread)
        return warp.components.of(("bulk reads", *thread)), warp.committed("bulk")[lane] + 1

    def _copy(self, event: Event, warp: Warp, carried: Clock | None) -> _Engine:
        """A copy by `cp.async`, or an arrival that follows all copies of its own lanes."""
        components, copies = warp.components, self._copies.setdefault((warp.cta, warp.number), {})
        if carried is not None:
            for lanes, each in copies.items():
                if not lanes & ~event.lanes:
                    component = components.of(("cp.async", warp.cta, warp.number, lanes))
                    carried.fit(components)
                    carried.set(component, each.issued, (X, G))
            return _Engine(-1, -1, None)
        component = components.of(("cp.async", warp.cta, warp.number, event.lanes))
        commits = warp.committed("cp.async")
        each = copies.setdefault(event.lanes, _Copies())
        return _Engine(component, component, each.issue(tuple(commits[lane] for lane in _bits(event.lanes))))

    def remember(self, warp: Warp, number: int, lanes: int) -> None:
        """A wgmma follows all four warps of its warpgroup, and the groups before it."""
        issuers = self._issuers.setdefault((warp.cta, warp.number // WARPGROUP), {})
        if number not in issuers:
            issuers[number] = issuers[max(issuers)].copy() if issuers else warp.components.clock()
            issuers.pop(number - _LATEST, None)
        for part in warp.parts:
            if part.mask & lanes:
                issuers[number].follow(part.clock)

    def commit(self, event: Event, warp: Warp) -> None:
        """Lanes close their open groups."""
        if event.group is not None:
            counts = warp.committed(event.group.kind)
            for lane in range(32):
                if event.lanes >> lane & 1:
                    counts[lane] += 1

    def drain(self, event: Event, warp: Warp) -> None:
        """Lanes have waited for groups, or have used all registers of their loads of TMEM."""
        if event.group is not None and event.group.kind == "tensor load" and not _is_wait(event):
            self._rules.relaxed["load-by-use"] += 1
            if not self._rules.lenient:
                return
        parts, group = self._agents.act(warp, event.lanes), event.group
        if group is None:
            return
        if group.kind == "bulk":
            for part in parts:
                self._drain_bulk(event, warp, part)
            return
        if group.kind == "cp.async":
            self._drain_copies(event, warp, parts)
            return
        rows: tuple[int, ...] = (X, G)
        if group.kind == "wgmma":
            rows = (X, G, P, PG)
            component = warp.components.of(engine_of(group.kind, warp.cta, warp.number, event.lanes))
            self._rules.assumed["wgmma-warpgroup"] += 1
            issuers = self._issuers.get((warp.cta, warp.number // WARPGROUP), {})
            before = max((number for number in issuers if number < group.number), default=None)
            if before is not None:
                for part in parts:
                    part.clock.follow(issuers[before])
        else:
            component = warp.components.of(engine_of(group.kind, warp.cta, warp.number, event.lanes))
            if group.kind in ("tensor load", "tensor store"):
                rows = (X, G, T)
        self._latest[component] = max(self._latest.get(component, 0), group.number)
        for part in parts:
            part.clock.fit(warp.components)
            part.clock.set(component, group.number, rows)
            part.history.append(Sync(event.source, part.clock.copy()))

    def _drain_bulk(self, event: Event, warp: Warp, part: Lanes) -> None:
        """Each lane knows of its own groups: their reads, and without `.read` their writes."""
        components, counts = warp.components, warp.committed("bulk")
        lanes = part.mask & event.lanes
        for lane in range(32):
            thread = (warp.cta, warp.number, lane)
            done = counts[lane] - event.leave
            if not lanes >> lane & 1 or done <= 0 or thread not in self._bulk:
                continue
            if thread in self.unwaited and self.unwaited[thread][0] <= done:
                del self.unwaited[thread]
            part.clock.set(_numbered(components, part.clock, ("bulk reads", *thread)), done, (X, G, P, PG))
            if event.semantics != "read":
                part.clock.set(_numbered(components, part.clock, ("bulk", *thread)), done, (X, G, P, PG))
        part.history.append(Sync(event.source, part.clock.copy()))

    def _drain_copies(self, event: Event, warp: Warp, parts: list[Lanes]) -> None:
        """Lanes have waited for their own copies: those that lanes issued together are done when all of them have."""
        components, counts = warp.components, warp.committed("cp.async")
        for lanes, copies in self._copies.get((warp.cta, warp.number), {}).items():
            if not lanes & ~event.lanes:
                done = copies.drain(tuple(counts[lane] - event.leave for lane in _bits(lanes)))
                for part in parts:
                    number = _numbered(components, part.clock, ("cp.async", warp.cta, warp.number, lanes))
                    part.clock.set(number, done, (X, G))
        for part in parts:
            part.history.append(Sync(event.source, part.clock.copy()))

    def in_flight(self) -> int:
        """The number of operations that have not completed."""
        over = set(self._over)
        return len([number for number in self._pending if number not in over])

    def latest(self) -> dict[Hashable, int]:
        """The latest group of each engine of the one cluster that runs."""
        (components,) = self._agents.clusters.values()
        return {components.keys[component]: number for component, number in self._latest.items()}

    def describe(self, form: Form, counts: dict[int, int]) -> None:
        """Add the groups and operations to a normal form, and their present counts."""
        counts |= self._latest
        for warp in self._agents.warps.values():
            for lane, number in enumerate(warp.committed("bulk")):
                thread = (warp.cta, warp.number, lane)
                if thread in self._bulk:
                    for key in (("bulk", *thread), ("bulk reads", *thread)):
                        counts[warp.components.of(key)] = number
                    held = self.unwaited.get(thread)
                    form.plain("bulk", thread, None if held is None else number - held[0])
        for place, issuers in sorted(self._issuers.items()):
            newest = max(issuers)
            for number, clock in sorted(issuers.items()):
                if number > newest - form.near:
                    form.clock(("issuer", place, number - newest), clock)
        for owner, by_lanes in sorted(self._copies.items()):
            warp = self._agents.warps[owner]
            commits = warp.committed("cp.async")
            for lanes, copies in sorted(by_lanes.items()):
                component = warp.components.of(("cp.async", *owner, lanes))
                numbers = [form.value(component, each) for each in (copies.issued, copies.done)]
                form.plain("copies", owner, lanes, numbers)
                now = [commits[lane] for lane in _bits(lanes)]
                for number, then in copies.open:
                    ago = [after - before for after, before in zip(now, then, strict=True)]
                    form.plain("copy", form.value(component, number), ago)
        form.plain("pending", self.in_flight())

    def forget(self, ctas: set[Triple]) -> None:
        """Drop the operations of CTAs that have ended."""
        self._pending = {number: each for number, each in self._pending.items() if each.cta not in ctas}
        self._issuers = {key: value for key, value in self._issuers.items() if key[0] not in ctas}
        self._bulk = {thread for thread in self._bulk if thread[0] not in ctas}
        self._copies = {key: value for key, value in self._copies.items() if key[0] not in ctas}
        self._latest.clear()  # of the components of one cluster; it is asked for where clusters run one after the other


def engine_of(kind: str, cta: Triple, warp: int, lanes: int) -> tuple[Any, ...]:
    """The engine that numbers groups of a kind: a thread's, a warp's or a warpgroup's."""
    if kind == "tcgen05":
        return kind, cta, warp, (lanes & -lanes).bit_length() - 1
    return kind, cta, warp // WARPGROUP if kind == "wgmma" else warp


def _bits(lanes: int) -> list[int]:
    return [lane for lane in range(32) if lanes >> lane & 1]


def _numbered(components: Components, clock: Clock, key: tuple[object, ...]) -> int:
    number = components.of(key)
    clock.fit(components)
    return number


def _rank(touch: Touch) -> int:
    return int(touch.addresses[0]) >> 24 if touch.space == "shared" and len(touch.addresses) else -1


def _is_wait(event: Event) -> bool:
    return event.source.instruction.opcode.startswith("tcgen05.wait")


def _signals(event: Event) -> bool:
    for touch in event.touches:  # noqa: SIM110  (it is executed for every operation)
        if touch.verb in ("arrives", "completes"):
            return True
    return False


@lru_cache(maxsize=1 << 10)
def _traits(opcode: str) -> tuple[bool, bool]:
    """True for an operation of a pair of CTAs; true for a reduction."""
    return "cta_group::2" in opcode, opcode.startswith("red.") or ".red" in opcode or "reduce" in opcode
