"""Redundant synchronisation: barriers, fences and waits without which everything is still in order.

One run is recorded, and judged again once for each candidate with its effect left out. If nothing is found then, the
candidate is redundant in this launch, and for each pair of accesses that it ordered another path is named: the first
synchronisation of the later party that hands over the knowledge of the earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from warploom.checker.codes import CODES
from warploom.checker.collecting import Findings
from warploom.checker.determinism import awaited, readers, steering
from warploom.checker.model.agents import Lanes
from warploom.checker.model.shadow import Access
from warploom.checker.observer import Checker
from warploom.checker.report import Finding
from warploom.checker.rules import Rules, row_of
from warploom.host.launch import Launch
from warploom.launcher import prepare
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import Eager
from warploom.machine.observers.events import Event, Source, Started

MOST_EVENTS = 500_000
"""Longer runs are not judged again."""
_KEPT = 64
"""Synchronisations of a thread that are remembered."""
_NAMED = 3
"""Pairs that a remark names."""
_UNRECORDED = "its own earlier synchronisation"


class Pair(NamedTuple):
    """Two instructions that access the same bytes, the earlier first, by their places in the kernel."""

    old: int
    new: int


@dataclass
class Orders:
    """The path that orders each pair of accesses: the synchronisation that makes the first known to the second."""

    paths: dict[Pair, Counter[int]] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)

    def add(self, old: Access, new: Access, part: Lanes) -> None:
        """Take a pair that is in order; one thread's own accesses need nothing."""
        if old.value is None or old.components is not new.components:
            return
        if not old.asynchronous and old.component == part.component:
            return
        row = row_of(old, new)
        by = next((sync.source for sync in part.history if sync.handed.knows(row, old.component, old.value)), None)
        pair = Pair(old.source.number, new.source.number)
        number = -1 if by is None else by.number
        self.paths.setdefault(pair, Counter())[number] += 1
        for source in (old.source, new.source, by):
            if source is not None:
                self.sources.setdefault(source.number, source)

    def text(self, number: int) -> str:
        """An instruction in words."""
        if number not in self.sources:
            return _UNRECORDED
        source = self.sources[number]
        return f"{source.loc} `{' '.join(source.instruction.text.split()).rstrip(';')[:70]}`"


class Recorder:
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.events: list[Event] = []

    def on_start(self, started: Started) -> None:
        self.started = started

    def on_event(self, event: Event) -> None:
        """Keep an event; runs that are too long keep none beyond the limit."""
        if len(self.events) <= MOST_EVENTS:
            self.events.append(event)


@dataclass
class Judgement:
    """The events of a run, judged without some instructions."""

    codes: frozenset[Hashable]
    orders: Orders


class Replay:
    """A recorded run that can be judged again."""

    def __init__(self, launch: Launch, profile: str, limit: int | None, sms: int | None = None) -> None:
        self._profile, recorder = profile, Recorder()
        setup = prepare(launch, Eager(), sms, limit, (recorder,), None)
        for region, _ in setup.memory.arrays:
            region.data = region.data.copy()
        flow = setup.program.flow
        self._steering, self._awaited, self._readers = steering(flow), awaited(flow), readers(flow)
        grid = Grid(setup)
        try:
            with np.errstate(all="ignore"):
                grid.run()
        finally:
            grid.discard()
        self.events, self._started = recorder.events, recorder.started

    @property
    def is_whole(self) -> bool:
        """True if all events of the run are there."""
        return len(self.events) <= MOST_EVENTS

    def judged(self, without: frozenset[int] = frozenset()) -> Judgement:
        """Judge the run as if some instructions synchronised nothing."""
        findings = Findings()
        checker = Checker(Rules(self._profile), findings)
        checker.agents.kept = _KEPT
        orders = checker.memories.orders = Orders()
        checker.memories.steering, checker.memories.awaited = self._steering, self._awaited
        checker.memories.readers = self._readers
        if self._started is not None:
            checker.on_start(self._started)
        for event in self.events:
            if event.source.number in without and _synchronises(event):
                continue
            checker.on_event(event)
        found: set[Hashable] = {each.code for each in findings.all()}
        return Judgement(frozenset(found | set(checker.lints)), orders)


def _synchronises(event: Event) -> bool:
    if event.kind == "arrive":
        return event.barrier is not None and event.barrier.kind != "mbarrier"
    return event.kind in ("wait", "fence")


def candidates(events: Iterable[Event]) -> list[frozenset[int]]:
    """Fences, waits and barriers by their instructions; those that meet at one barrier go together."""
    alone, met = dict[int, None](), dict[Hashable, set[int]]()
    for event in events:
        number, opcode = event.source.number, event.source.instruction.opcode
        if (
            number < 0
            or not _synchronises(event)
            or opcode.startswith(("wgmma", "tcgen05.alloc", "elect", "shfl", "vote"))
        ):
            continue
        if event.barrier is not None and event.barrier.kind in ("named", "cluster"):
            met.setdefault((event.barrier.kind, event.barrier.cta, event.barrier.address, event.phase), set()).add(
                number
            )
        else:
            alone[number] = None
    groups: list[set[int]] = []
    for numbers in met.values():
        joined = set(numbers)
        for group in [each for each in groups if each & joined]:
            joined |= group
            groups.remove(group)
        groups.append(joined)
    return [frozenset({number}) for number in alone] + [frozenset(group) for group in groups]


def changed(before: Orders, after: Orders, removed: Iterable[int]) -> dict[Pair, list[str]]:
    """The pairs that some instructions ordered, with the paths that order them without."""
    gone = set(removed)
    found = {}
    for pair, paths in before.paths.items():
        now = after.paths.get(pair, Counter())
        if gone & set(paths) or paths != now:
            found[pair] = [after.text(number) for number in sorted(now)]
    return found


def redundant(launch: Launch, profile: str, limit: int | None, sms: int | None = None) -> list[Finding]:
    """Remarks on synchronisation that is redundant in this launch."""
    replay = Replay(launch, profile, limit, sms)
    if not replay.is_whole:
        return []
    whole = replay.judged()
    sources = {event.source.number: event.source for event in replay.events}
    events = {event.source.number: event for event in replay.events if _synchronises(event)}
    findings, found = Findings(), list[Finding]()
    if replay._started is not None:  # noqa: SLF001
        findings.start(replay._started)  # noqa: SLF001
    for group in candidates(replay.events):
        less = replay.judged(group)
        if less.codes != whole.codes:
            continue
        pairs = changed(whole.orders, less.orders, group)
        parties = tuple(findings.party(sources[at], events[at], "synchronises") for at in sorted(group))
        text = "Without it, everything is in order as well: "
        if not pairs:
            text += "it orders no pair of accesses."
        else:
            text += f"the {len(pairs)} pairs of instructions that it orders have other paths."
        notes = [
            f"{whole.orders.text(pair.old)} before {whole.orders.text(pair.new)}: {' or '.join(paths) or 'one thread'}"
            for pair, paths in list(pairs.items())[:_NAMED]
        ]
        found.append(Finding("REDUNDANT", text, parties, advice=CODES["REDUNDANT"].advice, notes=tuple(notes)))
    return found
