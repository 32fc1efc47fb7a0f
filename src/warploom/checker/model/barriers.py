"""Barriers: a ledger of each mbarrier's phases, and rounds of named, cluster and warp barriers.

The obligations on an mbarrier (docs/checking.md names them) are checked as the events come:

    W0   every use comes after the initialisation
    W2   a contribution to phase n comes after the end of phase n - 1
    W2b  bytes are expected before, or with, an arrival of their phase
    W3   a wait that saw phase n end began after the end of phase n - 1, and phase n + 1 cannot end before it passed
    W5   threads come to round n of a named barrier after the end of round n - 1
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from warploom.checker.collecting import Findings
from warploom.checker.model.agents import Agents, Lanes, Sync, Warp
from warploom.checker.model.clocks import PG, Clock, Components, G, Known, P, Triple, X
from warploom.checker.model.operations import Form, Operations, Pending
from warploom.checker.model.releases import gather, lend
from warploom.checker.model.shadow import Access
from warploom.checker.report import Party
from warploom.checker.rules import Rules
from warploom.machine.observers.events import BarrierName, Event, Touch

Place = tuple[Triple, int]
"""A CTA and an address in its shared memory."""
_KEPT = 2
"""Ended phases that a ledger keeps."""
_ROUNDS = 8
"""Rounds of a barrier, or meetings of the lanes of a warp, that are kept."""


class Ended(NamedTuple):
    """A phase that is over."""

    contributed: dict[int, int]
    """The latest contribution of each component; to know them all is to come after the phase."""
    is_asynchronous: bool


class Waiter(NamedTuple):
    """A thread that has seen a phase end."""

    component: int
    time: int
    event: Event


class Arrivals(NamedTuple):
    """The arrivals of one warp instruction, lane by lane at several barriers."""

    warp: Warp
    source: int
    lanes: int
    time: int
    parts: tuple[tuple[int, int], ...]
    """The component and the time of each."""
    clocks: tuple[Clock, ...]
    """The clocks of the phases that they contribute to."""


@dataclass(slots=True, eq=False)
class Ledger:
    """The state of one mbarrier, from init to inval."""

    name: str
    cta: Triple
    components: Components
    component: int
    made_by: tuple[int, int] | None = None
    """The action that initialised it."""
    is_fenced: bool = False
    """True after `fence.mbarrier_init` of the thread that initialised it."""
    clock: Clock | None = None
    """The contributions to the present phase."""
    arrived: Clock | None = None
    """The arrivals among them."""
    contributed: dict[int, int] = field(default_factory=dict)
    asynchronous: int = 0
    ended: dict[int, Ended] = field(default_factory=dict)
    handed: Clock | None = None
    """The knowledge that the latest phase to end hands to threads that see its end: a test can see no earlier one."""
    waiters: dict[int, list[Waiter]] = field(default_factory=dict)
    expects: list[Waiter] = field(default_factory=list)
    users: dict[int, tuple[int, Event]] = field(default_factory=dict)
    observed: int = -1
    bytes: int = 0
    phase: int = 0
    signals: dict[int, tuple[int, Known, Event]] = field(default_factory=dict)
    """The latest asynchronous contribution of each instruction."""
    remote: dict[Hashable, tuple[int, bool, Known, Event]] = field(default_factory=dict)
    """The latest contribution of each other CTA's instruction."""


class Mbarriers:
    """The mbarriers of a launch."""

    def __init__(self, agents: Agents, rules: Rules, findings: Findings, operations: Operations) -> None:
        self._agents, self._rules, self._findings, self._operations = agents, rules, findings, operations
        self.ledgers: dict[tuple[Triple, int], Ledger] = {}
        self._epochs: dict[tuple[Triple, int], int] = {}
        self._arrivals: Arrivals | None = None

    def _ledger(self, name: BarrierName) -> Ledger:
        key = (name.cta, name.address & 0xFFFFFF)
        found = self.ledgers.get(key)
        return self._made(name, key) if found is None else found

    def _made(self, name: BarrierName, key: tuple[Triple, int]) -> Ledger:
        epoch = self._epochs[key] = self._epochs.get(key, -1) + 1
        components = self._agents.cluster(name.cta)
        made = Ledger(name.name, name.cta, components, components.of(("barrier", *key, epoch)))
        self.ledgers[key] = made
        return made

    def init(self, event: Event, warp: Warp, part: Lanes) -> None:
        """A barrier begins."""
        assert event.barrier is not None
        ledger = self._made(event.barrier, (event.barrier.cta, event.barrier.address & 0xFFFFFF))
        ledger.made_by = (part.component, warp.time)

    def inval(self, event: Event, part: Lanes) -> None:
        """A barrier ends: every use of it must come before."""
        assert event.barrier is not None
        ledger = self._ledger(event.barrier)
        party = self._findings.party(event.source, event, "frees", barrier=ledger.name)
        self._end(ledger, party, part.clock, "mbarrier.inval")

    def _end(self, ledger: Ledger, party: Party, clock: Clock, what: str) -> bool:
        """Judge the end of a barrier by a thread with this knowledge; true if all uses come before it."""
        is_over = True
        for component, (time, user) in ledger.users.items():
            if not clock.knows(X, component, time):
                is_over = False
                text = f"{what} of {ledger.name} is not ordered after its last use."
                missing = "a barrier after the last use"
                self._findings.add(
                    "MBAR_LIFETIME", text, (party, self.party(user, ledger)), missing=missing, barrier=ledger.name
                )
        for phase, known, user in ledger.signals.values():
            order = self._rules.follows(clock, ledger.component, phase, known, True, user.source)
            if order != "":
                is_over = False
                text = f"{what} of {ledger.name} may come before an asynchronous arrival."
                self._findings.add(
                    "MBAR_LIFETIME", text, (party, self.party(user, ledger)), missing=f"a wait for phase {phase}",
                    excused_by=order or "", barrier=ledger.name,
                )  # fmt: skip
        ledger.made_by = None
        return is_over

    def touched(self, made: Access, touch: Touch, access: Access, clock: Clock) -> None:
        """Something else than an mbarrier instruction accesses the bytes of a barrier that `made` initialised."""
        ledger = self.ledgers.get((made.cta, made.begins))
        if ledger is None or ledger.made_by is None:
            return
        low = int((touch.addresses & 0xFFFFFF).min())
        party = self._findings.access(access, (low, int((touch.addresses & 0xFFFFFF).max()) + touch.width))
        if not access.writes:
            text = f"A read of the bytes of {ledger.name}: an mbarrier is opaque, and may change while it is read."
            missing = "mbarrier.inval, and a write of these bytes"
            self._findings.add("MBAR_LIFETIME", text, (party,), missing=missing, barrier=ledger.name)
            return
        if not self._end(ledger, party, clock, "The reuse of the bytes"):
            return
        self._rules.relaxed["barrier-reuse"] += 1
        if not self._rules.lenient:
            text = f"The bytes of {ledger.name} are used for something else, and it was not invalidated."
            missing = "mbarrier.inval before this write"
            self._findings.add(
                "MBAR_LIFETIME", text, (party,), missing=missing, excused_by="barrier-reuse", barrier=ledger.name
            )

    def contribute(self, event: Event, warp: Warp) -> None:
        """An arrival, an expectation of bytes, or bytes that have come."""
        assert event.barrier is not None
        ledger = self._ledger(event.barrier)
        pending = self._operations.pending(event)
        if pending is not None:
            pending.signal(ledger.components, ledger.component, event)
            self._add(ledger, event, pending.clock, pending.component, pending.time, pending)
        elif not event.agent.operation:
            before = warp.time
            parts = self._agents.act(warp, event.lanes)
            for part in parts:
                self._add(ledger, event, part.given(event.lanes, warp.components), part.component, warp.time, None)
            if self._rules.lenient and event.verb == "arrives" and ledger.clock is not None:
                self._join(event, warp, before, [(part.component, warp.time) for part in parts], ledger.clock)
        if event.verb == "expects":
            ledger.bytes += event.count
        elif event.verb == "completes":
            ledger.bytes -= event.count

    def _join(self, event: Event, warp: Warp, before: int, parts: list[tuple[int, int]], clock: Clock) -> None:
        """Let the arrivals of one instruction take effect together: the relaxation `simultaneous-arrivals`."""
        last, number = self._arrivals, event.source.number
        joined = last is not None and last.warp is warp and last.source == number and last.time == before
        if last is None or not joined or last.lanes & event.lanes:
            self._arrivals = Arrivals(warp, number, event.lanes, warp.time, tuple(parts), (clock,))
            return
        self._rules.relaxed["simultaneous-arrivals"] += 1
        every, clocks = (*last.parts, *parts), (*last.clocks, clock)
        for each in clocks:
            each.fit(warp.components)
            for component, time in every:
                each.set(component, time, (X,))
        self._arrivals = Arrivals(warp, number, last.lanes | event.lanes, warp.time, every, clocks)

    def arriving(self, named: Callable[[Place], Place]) -> tuple[object, ...] | None:
        """The latest arrivals and their barriers' names, if more of the same instruction take effect with them."""
        last = self._arrivals
        if last is None or last.time != last.warp.time:
            return None
        clocks = {id(clock) for clock in last.clocks}
        places = sorted(named(place) for place, ledger in self.ledgers.items() if id(ledger.clock) in clocks)
        return last.warp.cta, last.warp.number, last.source, last.lanes, [part for part, _ in last.parts], places

    def _add(
        self, ledger: Ledger, event: Event, clock: Clock, component: int, time: int, pending: Pending | None
    ) -> None:
        self._check_init(ledger, event, clock)
        if event.verb == "drops":
            return
        phase = event.phase or 0
        before = ledger.ended.get(phase - 1)
        if before is not None and not _after(clock, ledger, phase, before):
            text = (
                f"{ledger.name}: nothing orders this contribution to phase {phase} after the end of phase {phase - 1}; "
                "in another interleaving it counts there."
            )
            self._findings.add(
                "PHASE_MIXUP",
                text,
                (self.party(event, ledger),),
                missing=f"a wait for phase {phase - 1}",
                barrier=ledger.name,
            )
        if phase > ledger.observed + 1 and event.verb == "arrives" and pending is None and not self._rules.lenient:
            text = f"{ledger.name}: an arrival of phase {phase} comes before any thread waited for phase {phase - 1}."
            missing = f"a wait for phase {phase - 1}"
            parties = (self.party(event, ledger),)
            self._findings.add("PHASE_UNOBSERVED", text, parties, missing=missing, barrier=ledger.name)
        if ledger.clock is None:
            ledger.clock = ledger.components.clock()
        elsewhere = event.agent.cta != ledger.cta
        if elsewhere and pending is None and event.scope == "cta" and event.semantics != "relaxed":
            self._rules.assumed["remote-arrival-scope"] += 1
        ledger.clock.release(clock, relaxed=event.semantics == "relaxed" and pending is None)
        if event.verb == "expects":
            ledger.expects.append(Waiter(component, time, event))
        elif event.verb == "arrives":
            if ledger.arrived is None:
                ledger.arrived = ledger.components.clock()
            ledger.arrived.follow(clock)
        ledger.contributed[component] = time
        known: Known = ((component, time),) if pending is None else pending.known
        if pending is None:
            ledger.users[component] = (time, event)
        else:
            ledger.asynchronous += 1
            ledger.signals[event.source.number] = (phase, known, event)
        if elsewhere:
            ledger.remote[event.agent.cta, event.source.number] = (phase, pending is not None, known, event)

    def party(self, event: Event, ledger: Ledger) -> Party:
        """The party of an event at a barrier."""
        return self._findings.party(event.source, event, event.verb, barrier=ledger.name, phase=event.phase)

    def _check_init(self, ledger: Ledger, event: Event, clock: Clock) -> None:
        if ledger.made_by is None or clock.knows(G, *ledger.made_by):
            return
        executed = clock.knows(X, *ledger.made_by)
        if executed and ledger.is_fenced:
            return
        text = f"{ledger.name}: nothing orders this use after mbarrier.init."
        party, missing = self.party(event, ledger), "a barrier between mbarrier.init and this use"
        if executed:
            text = f"{ledger.name}: this use is executed after mbarrier.init, which nothing makes visible to it."
            missing = "fence.mbarrier_init after mbarrier.init, or a barrier with release and acquire semantics"
        self._findings.add("MBAR_INIT_ORDER", text, (party,), missing=missing, barrier=ledger.name)

    def fence_init(self, event: Event, warp: Warp) -> None:
        """`fence.mbarrier_init` makes the initialisations of its thread visible to the cluster."""
        for part in self._agents.act(warp, event.lanes):
            for ledger in self.ledgers.values():
                if ledger.made_by is not None and part.clock.knows(G, *ledger.made_by):
                    ledger.is_fenced = True

    def end_phase(self, event: Event) -> None:
        """The last contribution has come."""
        assert event.barrier is not None
        ledger, phase = self._ledger(event.barrier), event.phase or 0
        clock = ledger.clock or ledger.components.clock()
        clock.fit(ledger.components)
        executed = clock.rows[X]
        for expect in ledger.expects:
            if ledger.arrived is not None and not ledger.arrived.knows(X, expect.component, expect.time):
                text = f"{ledger.name}: phase {phase} may end before these bytes are expected."
                missing = "the expectation before, or with, an arrival of the phase"
                self._findings.add(
                    "PREMATURE_PHASE", text, (self.party(expect.event, ledger),), missing=missing, barrier=ledger.name
                )
        for waiter in ledger.waiters.pop(phase - 1, ()):
            if not (len(executed) > waiter.component and executed[waiter.component] >= waiter.time):
                text = f"{ledger.name}: phase {phase} may end before this wait for phase {phase - 1} has passed."
                missing = f"an arrival after this wait, on which phase {phase} depends"
                self._findings.add(
                    "PHASE_OVERRUN", text, (self.party(waiter.event, ledger),), missing=missing, barrier=ledger.name
                )
        clock.set(ledger.component, phase + 1, (X, G, P, PG))
        ledger.ended[phase], ledger.handed = Ended(ledger.contributed, ledger.asynchronous > 0), clock
        ledger.ended.pop(phase - _KEPT, None)
        ledger.phase, ledger.clock, ledger.arrived, ledger.asynchronous = phase + 1, None, None, 0
        ledger.expects, ledger.contributed = [], {}

    def wait(self, event: Event, warp: Warp) -> None:
        """A thread has seen a phase end."""
        assert event.barrier is not None
        ledger, phase = self._ledger(event.barrier), -1 if event.phase is None else event.phase
        for part in self._agents.act(warp, event.lanes):
            self._check_init(ledger, event, part.clock)
            if not event.passed:
                ledger.users[part.component] = (warp.time, event)
                continue
            before = ledger.ended.get(phase - 1)
            if before is not None and not _after(part.clock, ledger, phase, before):
                text = (
                    f"{ledger.name}: this wait saw phase {phase} end, and nothing orders it after the end of phase "
                    f"{phase - 1}; the end of phase {phase - 2} passes the same test."
                )
                missing = f"a wait for phase {phase - 1}"
                self._findings.add(
                    "PHASE_ABA", text, (self.party(event, ledger),), missing=missing, barrier=ledger.name
                )
            handed = ledger.handed
            if handed is not None and phase == ledger.phase - 1:
                part.clock.acquire(handed, relaxed=event.semantics == "relaxed")
                part.learned(handed)
                part.history.append(Sync(event.source, handed))
            ledger.waiters.setdefault(phase, []).append(Waiter(part.component, warp.time, event))
            ledger.users[part.component] = (warp.time, event)
        if event.passed:
            ledger.observed = max(ledger.observed, phase)


def _after(clock: Clock, ledger: Ledger, phase: int, before: Ended) -> bool:
    """True if an action comes after the end of the phase before: it knows of it, or of every contribution to it.

    Program order after an asynchronous contribution is not enough: it may complete later.
    """
    if clock.knows(X, ledger.component, phase):
        return True
    return not before.is_asynchronous and all(clock.knows(X, *each) for each in before.contributed.items())


@dataclass(slots=True)
class _Round:
    """One use of a barrier: what the threads that came know, and the latest of each component."""

    clock: Clock
    fenced: dict[str, Clock] = field(default_factory=dict)
    """Knowledge that those who came have fenced, by scope, under `lenient`."""
    came: dict[int, int] = field(default_factory=dict)
    waiting: int = 0
    """The lanes of a warp that have come and have not gone on."""


class Meetings:
    """Named barriers, cluster barriers, and collectives of a warp."""

    def __init__(self, agents: Agents, rules: Rules, findings: Findings) -> None:
        self._agents, self._rules, self._findings = agents, rules, findings
        self._rounds: dict[Hashable, dict[int, _Round]] = {}

    def _round(self, key: Hashable, number: int, components: Components) -> _Round:
        rounds = self._rounds.setdefault(key, {})
        found = rounds.get(number)
        if found is None:
            found = rounds[number] = _Round(components.clock())
            if len(rounds) > (_ROUNDS if key[0] == "warp" else _KEPT):  # type: ignore[index]
                del rounds[min(rounds)]
        return found

    def arrive(self, event: Event, warp: Warp) -> None:
        """Threads come to a named or cluster barrier."""
        name = event.barrier
        assert name is not None
        key, number = (name.kind, name.cta, name.address), event.phase or 0
        parts = self._agents.act(warp, event.lanes)
        now = self._round(key, number, warp.components)
        before = self._rounds[key].get(number - 1)
        for part in parts:
            if name.kind == "named" and before is not None:
                known = part.clock.knows(X, warp.components.of(key), number)
                if not known and not all(part.clock.knows(X, *each) for each in before.came.items()):
                    text = f"{name.name}: nothing orders round {number} here after the end of round {number - 1}."
                    party = self._findings.party(event.source, event, "arrives", barrier=name.name, phase=number)
                    missing = f"a wait for round {number - 1}"
                    self._findings.add("NAMED_RECYCLE", text, (party,), missing=missing, barrier=name.name)
            given = part.given(event.lanes, warp.components)
            now.clock.release(given, relaxed=event.semantics == "relaxed")
            for ready in part.fenced if event.semantics == "relaxed" else ():
                if ready.scope != "cta" and not ready.lanes & ~event.lanes:
                    now.clock.release(ready.clock)  # a fence before it (PTX ISA, example of barrier.cluster)
            now.came[part.component] = warp.time
            if self._rules.lenient and name.kind == "named":
                gather(part, now.fenced)

    def wait(self, event: Event, warp: Warp) -> None:
        """Threads have passed a named or cluster barrier."""
        name = event.barrier
        assert name is not None
        key, number = (name.kind, name.cta, name.address), event.phase or 0
        self._agents.act(warp, event.lanes)
        part = self._agents.unite(warp, event.lanes)
        met = self._rounds.get(key, {}).get(number)
        if met is None:
            return
        handed = met.clock
        if name.kind == "named":
            component = warp.components.of(key)
            handed.fit(warp.components)
            handed.set(component, number + 1, (X, G, P, PG))
        part.clock.acquire(handed)
        part.learned(handed)
        lend(part, warp, met.fenced)
        part.history.append(Sync(event.source, handed))

    def collective(self, event: Event, warp: Warp) -> None:
        """Lanes that are together execute a `.sync` instruction."""
        parts = self._agents.act(warp, event.lanes)
        if event.scope != "warp":
            return
        if len(parts) == 1:
            if _orders_memory(event) or self._rules.lenient:
                self._agents.unite(warp, event.lanes)
            return
        if _orders_memory(event):
            self._agents.unite(warp, event.lanes)
            return
        self._rules.relaxed["warp-collectives"] += 1
        if self._rules.lenient:
            self._agents.unite(warp, event.lanes)
            return
        together = warp.components.clock()
        for part in parts:
            together.follow(part.clock)
        for part in parts:
            part.clock.follow(together)

    def gather(self, event: Event, warp: Warp) -> None:
        """Lanes on different paths come to a `.sync` instruction."""
        name = event.barrier
        assert name is not None
        met = self._round((name.kind, name.cta, name.address), event.phase or 0, warp.components)
        met.waiting |= event.lanes
        for part in self._agents.act(warp, event.lanes):
            met.clock.join(part.clock)

    def leave(self, event: Event, warp: Warp) -> None:
        """They proceed."""
        name = event.barrier
        assert name is not None
        parts = self._agents.act(warp, event.lanes)
        gathered = self._rounds.get((name.kind, name.cta, name.address), {}).get(event.phase or 0)
        if gathered is None:
            return
        gathered.waiting &= ~event.lanes
        for part in parts:
            if _orders_memory(event) or self._rules.lenient:
                part.clock.join(gathered.clock)
                part.partial = {}
                part.whole = part.met = warp.time
            else:
                self._rules.relaxed["warp-collectives"] += 1
                part.clock.follow(gathered.clock)

    def newest(self) -> dict[Hashable, int]:
        """The number of the latest round of each barrier."""
        return {key: max(rounds) for key, rounds in self._rounds.items() if rounds}

    def describe(self, form: Form, counts: dict[int, int]) -> None:
        """Add the rounds to a normal form, and their present counts."""
        for key, rounds in sorted(self._rounds.items(), key=repr):
            if key[0] == "warp":  # type: ignore[index]
                for number, met in sorted(rounds.items()):
                    if met.waiting:
                        form.clock(("lanes", key, number, met.waiting), met.clock)
                continue
            if not rounds:
                continue
            newest = max(rounds)
            if key[0] == "named":  # type: ignore[index]
                counts[self._agents.cluster(key[1]).of(key)] = newest  # type: ignore[index]
            for number, met in sorted(rounds.items()):
                came = [(each, form.value(each, time, compared=True)) for each, time in sorted(met.came.items())]
                form.plain("came", came if number == newest or key[0] == "named" else ())  # type: ignore[index]
                form.clock(("round", key, number - newest), met.clock)
                for scope, fenced in sorted(met.fenced.items()):
                    form.clock(("fenced", key, scope), fenced)

    def forget(self, ctas: set[Triple]) -> None:
        """Drop the barriers of CTAs that have ended."""
        self._rounds = {key: rounds for key, rounds in self._rounds.items() if key[1] not in ctas}  # type: ignore[index]


def _orders_memory(event: Event) -> bool:
    """True for `bar.warp.sync`, which orders memory among its lanes (PTX ISA 9.7.13.4)."""
    return event.source.instruction.opcode.startswith(("bar.warp.sync", "barrier", "bar.sync", "bar.red", "bar.arrive"))
