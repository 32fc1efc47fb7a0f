"""The checker as an observer of one run: every event goes to the part of the checker that it concerns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import ClassVar

import numpy as np

from warploom.checker.collecting import Findings
from warploom.checker.model.agents import Agents, Warp
from warploom.checker.model.barriers import Mbarriers, Meetings
from warploom.checker.model.clocks import Triple
from warploom.checker.model.layouts import Layouts
from warploom.checker.model.lifetimes import Lifetimes
from warploom.checker.model.memories import Memories
from warploom.checker.model.operations import WARPGROUP, Operations
from warploom.checker.model.register_budget import RegisterBudgets
from warploom.checker.model.shadow import Access
from warploom.checker.model.tensor_maps import TensorMaps
from warploom.checker.report import Finding
from warploom.checker.rules import Rules
from warploom.machine.observers.events import Clash, Event, Started, Touch

_BARRIER_BYTES = 8


class Checker:
    """Judges a run while it happens; `findings.all()` is what it found."""

    needs_completions = False
    """An operation that signals nothing is complete for those that wait for its group."""

    def __init__(self, rules: Rules, findings: Findings) -> None:
        self.rules, self.findings, self.agents = rules, findings, Agents()
        self.operations = Operations(self.agents, self.rules)
        self.barriers = Mbarriers(self.agents, self.rules, self.findings, self.operations)
        self.meetings = Meetings(self.agents, self.rules, self.findings)
        self.lints: dict[tuple[str, object], Finding] = {}
        self.memories = Memories(
            self.agents, self.rules, self.findings, Layouts(self.findings, self.lints), self.barriers
        )
        self.maps = TensorMaps(self.agents, self.rules, self.memories)
        self.lifetimes = Lifetimes(self.findings, self.rules)
        self.registers = RegisterBudgets(self.agents, self.rules, self.findings)
        self.events = 0
        self._wgmma: tuple[Event | None, list[Access]] = (None, [])
        """The latest wgmma that was issued, with its accesses."""

    def on_start(self, started: Started) -> None:
        """Take the shape and the names of the launch."""
        for part in (self.agents, self.findings, self.memories):
            part.start(started)

    def on_event(self, event: Event) -> None:
        """Judge one event."""
        self.events += 1
        self._HANDLERS[event.kind](self, event)

    def _access(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        self.memories.access(event, warp)
        if event.space == "shared" and any(touch.cta != warp.cta for touch in event.touches):
            for touch in event.touches:
                for part in warp.parts:
                    if part.mask & event.lanes:
                        access = Access(
                            event.source, warp.cta, warp.number, event.lanes, writes=event.verb == "writes",
                            space="shared", proxy="generic", components=warp.components, component=part.component,
                            value=warp.time,
                        )  # fmt: skip
                        self.lifetimes.reach(touch, access, part)

    def _issue(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        if event.verb == "commits":
            self.operations.commit(event, warp)
            return
        is_wgmma = event.group is not None and event.group.kind == "wgmma"
        if is_wgmma and self._is_repeated(event, warp):
            return
        pending, part, clock = self.operations.issue(event, warp)
        if is_wgmma:
            self._wgmma = event, [access for access, _ in pending.accesses]
        accesses = iter(pending.accesses)
        for touch in event.touches:
            if touch.space == "register" or touch.verb not in ("reads", "writes"):
                continue
            access = next(accesses)[0]
            if touch.verb == "writes" and touch.proxy == "generic" and len(touch.addresses) > 1:
                self._compare_lanes(event, touch, warp)
            if touch.space == "tensor":
                self.lifetimes.use(touch, access, clock)
            elif touch.proxy == "tensormap":
                self.maps.use(access)
            elif touch.cta != warp.cta:
                self.lifetimes.reach(touch, access)
            self.memories.touch(touch, access, part, clock)

    def _compare_lanes(self, event: Event, touch: Touch, warp: Warp) -> None:
        """Find lanes that copy from different places to one address with `cp.async`, or store to one with `st.async`.

        Reductions commute, and lanes with a source size of their own name their sources byte by byte: neither counts.
        """
        addresses, reads = touch.addresses, [each for each in event.touches if each.verb == "reads"]
        sources = reads[0].addresses if reads else None
        if event.lanes.bit_count() != len(addresses) or any(each.space == touch.space for each in reads):
            return
        if sources is not None and len(sources) != len(addresses):
            return
        order = np.argsort(addresses, kind="stable")
        same = np.diff(addresses[order]) == 0
        if sources is not None:
            same &= np.diff(sources[order]) != 0
        if same.any():
            lanes, at = [lane for lane in range(32) if event.lanes >> lane & 1], int(same.argmax())
            one, other = sorted((lanes[int(order[at])], lanes[int(order[at + 1])]))
            self.memories.lane_race(event, touch, warp, Clash(one, other))

    def _is_repeated(self, event: Event, warp: Warp) -> bool:
        """True if another warp has issued its part of this wgmma just before, and this one sees all that is read.

        The four parts have the same touches, and complete together: the first one's reads stand for all.
        """
        first, accesses = self._wgmma
        if (
            first is None
            or first.touches is not event.touches
            or first.group != event.group
            or first.agent.cta != event.agent.cta
            or first.source.instruction is not event.source.instruction
            or first.agent.warp // WARPGROUP != event.agent.warp // WARPGROUP
            or first.agent.warp == event.agent.warp
        ):
            return False
        touches = [each for each in event.touches if each.space != "register" and each.verb in ("reads", "writes")]
        clock = self.operations.knowledge(warp, event.lanes)[1]
        for touch, access in zip(touches, accesses, strict=True):
            if not self.memories.sees(touch, access, clock):
                return False
        assert event.group is not None
        self.operations.remember(warp, event.group.number, event.lanes)
        return True

    def _complete(self, event: Event) -> None:
        if event.verb == "phase":
            self.barriers.end_phase(event)
        else:
            self.operations.complete(event)

    def _arrive(self, event: Event) -> None:
        if event.barrier is None:
            return
        warp = self.agents.warp(event.agent)
        match event.barrier.kind:
            case "mbarrier":
                self.barriers.contribute(event, warp)
            case "warp":
                self.meetings.gather(event, warp)
            case _:
                self.meetings.arrive(event, warp)

    def _wait(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        if event.barrier is None:
            if event.verb == "syncs":
                self.meetings.collective(event, warp)
            elif event.verb == "drains":
                self.operations.drain(event, warp)
            return
        match event.barrier.kind:
            case "mbarrier":
                self.barriers.wait(event, warp)
            case "warp":
                self.meetings.leave(event, warp)
            case _:
                self.meetings.wait(event, warp)

    def _fence(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        if event.semantics == "mbarrier_init":
            self.barriers.fence_init(event, warp)
        elif event.proxy == "tensormap":
            self.maps.fence(event, warp)
        else:
            self.memories.fence(event, warp)

    def _alloc(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        if event.space == "register":
            self.registers.change(event, warp)
            return
        part = self.agents.act(warp, event.lanes)[0]
        if event.barrier is not None:
            self.barriers.init(event, warp, part)
            self._rewrite(event)
        elif not event.touches and event.source.instruction.opcode.startswith("tcgen05.alloc"):
            self.lifetimes.allocate_together(warp, part)
        for touch in event.touches:
            self.lifetimes.allocate(event, touch, warp, part)

    def _free(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        if event.space == "register":
            self.registers.change(event, warp)
            return
        part = self.agents.act(warp, event.lanes)[0]
        if event.barrier is not None:
            self.barriers.inval(event, part)
            self._rewrite(event)
        for touch in event.touches:
            if touch.space == "tensor":
                access = Access(
                    event.source, warp.cta, warp.number, event.lanes, writes=True, space="tensor", proxy="tcgen05",
                    components=warp.components, component=part.component, value=warp.time,
                )  # fmt: skip
                self.memories.free(touch, access, part)
                self.lifetimes.free(touch)

    def _rewrite(self, event: Event) -> None:
        """`mbarrier.init` and `mbarrier.inval` write the bytes of the barrier."""
        assert event.barrier is not None
        warp = self.agents.warp(event.agent)
        part = next(each for each in warp.parts if each.mask & event.lanes)
        access = Access(
            event.source, warp.cta, warp.number, event.lanes, writes=True, space="shared", proxy="generic",
            components=warp.components, component=part.component, value=warp.time,
        )  # fmt: skip
        access.begins = event.barrier.address & 0xFFFFFF if event.kind == "alloc" else -1
        addresses = np.array([event.barrier.address], np.int64)
        touch = Touch("writes", "shared", event.barrier.cta, "generic", addresses, _BARRIER_BYTES)
        self.memories.touch(touch, access, part, part.clock)

    def _exit(self, event: Event) -> None:
        warp = self.agents.warp(event.agent)
        if not self.lifetimes.exit(event, warp, self.agents.threads):
            return
        ctas = self._cluster_of(warp.cta)
        if self.lifetimes.is_over(ctas):
            self._lint_unwaited(ctas)
            self.lifetimes.judge(ctas, self.barriers.ledgers)
            self.registers.end(sorted(ctas))
            place = warp.components.place
            self.barriers.ledgers = {key: each for key, each in self.barriers.ledgers.items() if key[0] not in ctas}
            for part in (self.memories, self.maps, self.meetings, self.operations):
                part.forget(ctas)
            self.agents.forget(place)

    def _cluster_of(self, cta: Triple) -> set[Triple]:
        shape = self.agents.shape
        if prod(shape) == 1:
            return {cta}
        x, y, z = (at // size * size for at, size in zip(cta, shape, strict=True))
        return {(x + i, y + j, z + k) for i in range(shape[0]) for j in range(shape[1]) for k in range(shape[2])}

    def _lint_unwaited(self, ctas: set[Triple]) -> None:
        for thread in [thread for thread in self.operations.unwaited if thread[0] in ctas]:
            _, event = self.operations.unwaited.pop(thread)
            text = "A thread ends without a wait for this store; its source must stay as it is until the store is done."
            party = self.findings.party(event.source, event, "writes", space="global", proxy="async")
            self.lints.setdefault(("BULK_UNWAITED", event.source.number), Finding("BULK_UNWAITED", text, (party,)))

    _HANDLERS: ClassVar[Mapping[str, Callable[[Checker, Event], None]]] = {
        "access": _access,
        "issue": _issue,
        "complete": _complete,
        "arrive": _arrive,
        "wait": _wait,
        "fence": _fence,
        "alloc": _alloc,
        "free": _free,
        "exit": _exit,
    }
    """By the kind of an event; not bound, since a checker that refers to itself would outlive its run."""
