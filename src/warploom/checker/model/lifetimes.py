"""Lifetimes: TMEM from allocation to release, and CTAs that must outlive what others do to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from warploom.checker.collecting import Findings
from warploom.checker.model.agents import Lanes, Warp
from warploom.checker.model.barriers import Ledger
from warploom.checker.model.clocks import Clock, Triple, X
from warploom.checker.model.operations import Form
from warploom.checker.model.shadow import Access
from warploom.checker.rules import Rules
from warploom.hardware.tmem import COLUMNS
from warploom.machine.observers.events import Event, Touch


@dataclass(slots=True)
class _Ending:
    """A CTA of which some lanes have exited: what they knew, and how many are left."""

    executed: Clock
    left: int


@dataclass(slots=True)
class _Made:
    """An allocation of TMEM."""

    size: int
    component: int
    time: int
    event: Event
    is_freed: bool = False


@dataclass(slots=True)
class Lifetimes:
    """The allocations of TMEM, and the CTAs that end."""

    findings: Findings
    rules: Rules
    relinquishes: bool = False
    """True if the kernel has `tcgen05.relinquish_alloc_permit`."""
    _made: dict[Triple, list[_Made]] = field(default_factory=dict)
    """The allocations of each CTA."""
    _begun: set[tuple[Triple, int, int, Triple]] = field(default_factory=set)
    """By CTA, warp and component: the CTAs that have begun, as far as these lanes know."""
    _allocated: dict[Triple, dict[int, tuple[int, int, int]]] = field(default_factory=dict)
    _peers: dict[Triple, Triple] = field(default_factory=dict)
    """The CTAs that allocated together with another one."""
    _endings: dict[Triple, _Ending] = field(default_factory=dict)
    _foreign: dict[Triple, dict[tuple[int, int], Access]] = field(default_factory=dict)

    def allocate(self, event: Event, touch: Touch, warp: Warp, part: Lanes) -> None:
        """Columns of TMEM get an owner; the later CTA of a pair also allocates for the earlier one."""
        column = int(touch.addresses[0]) & 0xFFFF
        assert touch.cta is not None
        if touch.cta != warp.cta:
            self._peers[touch.cta], self._peers[warp.cta] = warp.cta, touch.cta
        size = touch.width // 4
        if touch.cta == warp.cta and touch.cta not in self._peers:
            self._order(event, warp, part, size)
        self._allocated.setdefault(touch.cta, {})[column] = (size, part.component, warp.time)

    def _order(self, event: Event, warp: Warp, part: Lanes, size: int) -> None:
        """Allocations of a CTA in another order must all succeed as well: their sizes may not grow, none may come after
        `tcgen05.relinquish_alloc_permit`, and none of them may wait for columns of the others.
        """
        made = self._made.setdefault(warp.cta, [])
        rivals = [each for each in made if not part.clock.knows(X, each.component, each.time)]
        live = sum(each[0] for each in self._allocated.get(warp.cta, {}).values())
        freed = sum(each.size for each in rivals if each.is_freed)
        for each in rivals:
            if each.size == size and not self.relinquishes and live + freed + size <= COLUMNS:
                continue
            text = "Nothing orders two tcgen05.alloc of a CTA, and in another order one of them is wrong or waits."
            parties = tuple(self.findings.party(one.source, one, "allocates") for one in (event, each.event))
            self.findings.add("TMEM_ALLOC_ORDER", text, parties, missing="a barrier between the two")
        made.append(_Made(size, part.component, warp.time, event))

    def allocate_together(self, warp: Warp, part: Lanes) -> None:
        """The earlier CTA of a pair goes on: the columns that its peer allocated for it are its own."""
        columns = self._allocated.get(warp.cta, {})
        for column, (size, _, _) in columns.items():
            columns[column] = (size, part.component, warp.time)

    def free(self, touch: Touch) -> None:
        assert touch.cta is not None
        gone = self._allocated.get(touch.cta, {}).pop(int(touch.addresses[0]) & 0xFFFF, None)
        for each in self._made.get(touch.cta, ()):
            each.is_freed |= gone is not None and each.component == gone[1] and each.time == gone[2]

    def use(self, touch: Touch, access: Access, clock: Clock) -> None:
        """An access to TMEM comes after the allocation of its columns.

        The CTAs of a pair allocate together (PTX ISA 9.7.16.7.1): to know of either's allocation is enough.
        """
        column, peer = int(touch.addresses[0]) & 0xFFFF, self._peers.get(access.cta)
        for base, (size, component, time) in self._allocated.get(access.cta, {}).items():
            if base <= column < base + size and not clock.knows(X, component, time):
                others = {} if peer is None else self._allocated.get(peer, {})
                if base in others and clock.knows(X, *others[base][1:]):
                    continue
                text = "TMEM is accessed, and nothing orders the access after tcgen05.alloc."
                party = self.findings.access(access)
                self.findings.add("TMEM_ALLOC_ORDER", text, (party,), missing="a barrier after tcgen05.alloc")

    def allocations(self) -> list[tuple[Triple, int, int]]:
        """The columns of TMEM that are allocated: the CTA, the first one, and how many."""
        return [(cta, base, each[0]) for cta, columns in self._allocated.items() for base, each in columns.items()]

    def reach(self, touch: Touch, access: Access, part: Lanes | None = None) -> None:
        """A CTA's shared memory is accessed from another one, by threads of this knowledge."""
        if touch.space == "shared" and touch.cta is not None and touch.cta != access.cta:
            number = access.source.number
            if part is not None and not self._has_begun(touch.cta, access, part.clock):
                text = "Shared memory of another CTA is accessed, and nothing orders that after the CTA's beginning."
                party = self.findings.access(access)
                self.findings.add("REMOTE_BEFORE_START", text, (party,), missing="a barrier of the cluster before it")
            self._foreign.setdefault(touch.cta, {})[access.warp, number] = access

    def _has_begun(self, cta: Triple, access: Access, clock: Clock) -> bool:
        """True if threads come after some action of a CTA: it must have begun before others reach its memory."""
        key = access.cta, access.warp, access.component, cta
        if key not in self._begun:
            keys, known = access.components.keys, clock.rows[X]
            if not any(keys[at][:2] == ("warp", cta) for at in np.flatnonzero(known).tolist()):
                return False
            self._begun.add(key)
        return True

    def exit(self, event: Event, warp: Warp, threads: int) -> bool:
        """Lanes end; True if they are the last of their CTA."""
        cta = warp.cta
        ending = self._endings.get(cta)
        if ending is None:
            ending = self._endings[cta] = _Ending(warp.components.clock(), threads)
        for part in warp.parts:
            if part.mask & event.lanes:
                ending.executed.follow(part.clock)
        ending.left -= event.lanes.bit_count()
        return ending.left <= 0

    def is_over(self, ctas: set[Triple]) -> bool:
        """True if all these CTAs have ended."""
        return all(cta in self._endings and self._endings[cta].left <= 0 for cta in ctas)

    def describe(self, form: Form) -> None:
        """Add the allocations and foreign accesses to a normal form."""
        for cta, columns in sorted(self._allocated.items()):
            for column, (size, component, time) in sorted(columns.items()):
                form.plain("allocated", cta, column, size, form.value(component, time, compared=True))
        for cta, accesses in sorted(self._foreign.items()):
            form.plain("foreign", cta, sorted((key, form.access(access)) for key, access in accesses.items()))
        for cta, ending in sorted(self._endings.items()):
            form.clock(("ending", cta, ending.left), ending.executed)

    def judge(self, ctas: set[Triple], ledgers: dict[tuple[Triple, int], Ledger]) -> None:
        """A cluster has ended: each CTA must have known of what the others did to it."""
        ends = {cta: self._endings.pop(cta).executed for cta in ctas}
        for cta, end in ends.items():
            for access in self._foreign.pop(cta, {}).values():
                if access.value is None or not end.knows(X, access.component, access.value):
                    text = "Shared memory of another CTA is accessed, and nothing keeps that CTA from ending before."
                    party = self.findings.access(access)
                    self.findings.add("REMOTE_AFTER_EXIT", text, (party,), missing="a wait by that CTA before it ends")
            self._allocated.pop(cta, None)
            self._peers.pop(cta, None)
            self._made.pop(cta, None)
        self._begun = {each for each in self._begun if each[0] not in ctas}
        for (owner, _), ledger in ledgers.items():
            if owner in ends and ledger.made_by is not None:
                self._judge_barrier(ledger, ends[owner])

    def _judge_barrier(self, ledger: Ledger, end: Clock) -> None:
        for phase, is_asynchronous, known, event in ledger.remote.values():
            order = self.rules.follows(end, ledger.component, phase, known, is_asynchronous, event.source)
            if order != "":
                text = f"{ledger.name} is reached from another CTA, and nothing keeps its own CTA from ending before."
                missing = f"a wait for phase {phase} before the CTA ends"
                party = self.findings.party(event.source, event, event.verb, barrier=ledger.name, phase=phase)
                self.findings.add(
                    "REMOTE_AFTER_EXIT", text, (party,), missing=missing, barrier=ledger.name, excused_by=order or ""
                )
        if ledger.bytes:
            text = f"{ledger.name} ends with {ledger.bytes} bytes outstanding in phase {ledger.phase}."
            parties = tuple(
                self.findings.party(user.source, user, user.verb, barrier=ledger.name)
                for _, user in list(ledger.users.values())[:1]
            )
            self.findings.add("MBAR_UNBALANCED", text, parties, missing="a wait for these bytes", barrier=ledger.name)
