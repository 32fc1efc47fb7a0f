"""Events for observers: one for each effect of an instruction or operation on memory or a barrier.

Events come through three doors. A run with observers binds every meaning in a wrapper (`core/observation.py`) that
names the agent and reports the accesses and fences that the instruction's row declares. Things with a state (barriers,
groups, TMEM) report their own changes, because they know the phase or the group. The grid reports when an
asynchronous operation is issued and when it completes. Without observers there is no `Reporter`, and no event is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Loc
from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine.access_log import (
    ADDRESSES,
    AGENT,
    CHANGES,
    LANES,
    MOST_ENTRIES,
    MOST_LANES,
    SITE,
    WORDS,
    AccessLog,
    agent_parts,
)
from warploom.ptx.syntax.model import Instruction

if TYPE_CHECKING:
    from warploom.machine.core.async_operations import Operation

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """Equal runs of bytes that something reads or writes: `width` bytes from each of `addresses`.

    A lane's access, the rows of a box, the granules of an operand and a plain range all have this form. `cta` owns the
    memory (None: global). Shared addresses are those of the cluster: rank << 24 | offset. In TMEM an address
    is lane << 16 | column and a run goes along the columns, four bytes each. In registers it is the row of the register
    file. An access of a warp has one address for each lane of its event, or one for all of them.
    """

    verb: str
    space: str
    cta: Triple | None
    proxy: str
    addresses: Array
    width: int

    @property
    def bytes(self) -> int:
        """The number of bytes; those that several lanes touch count once for each address."""
        return len(self.addresses) * self.width

    def _key(self) -> tuple[object, ...]:
        return self.verb, self.space, self.cta, self.proxy, self.width

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Touch):
            return NotImplemented
        return self._key() == other._key() and np.array_equal(self.addresses, other.addresses)

    def __hash__(self) -> int:
        return hash((self._key(), self.addresses.tobytes()))


Touches = Callable[[], Sequence[Touch]]
"""Returns what an operation will touch; called only in a run with observers."""
WORD = (1 << WARP_LANES) - 1
"""All lanes of a warp as bits."""


def run_of_bytes(verb: str, space: str, cta: Triple | None, address: int, size: int, proxy: str = "async") -> Touch:
    """One plain range."""
    return Touch(verb, space, cta, proxy, np.array([address], np.int64), size)


@dataclass(frozen=True, slots=True)
class Agent:
    """A warp of a CTA, or (with an operation) the engine that works on that operation for it."""

    cta: Triple
    warp: int
    operation: int = 0


agent_of = lru_cache(maxsize=1 << 12)(Agent)


@dataclass(frozen=True, slots=True)
class Source:
    """The instruction of an event, and its location: the author's line where the PTX carries it."""

    loc: Loc
    instruction: Instruction
    number: int = -1
    """The instruction's place among those of the kernel, the same in every run; -1 for what is none of them."""

    @property
    def text(self) -> str:
        return self.instruction.text

    @property
    def line(self) -> int:
        """The line of the PTX."""
        return self.instruction.line


@dataclass(frozen=True, slots=True)
class BarrierName:
    """The name of a barrier: `kind` is mbarrier, named, cluster or warp; `address` its shared address, number or
    warp.
    """

    kind: str
    cta: Triple
    address: int
    name: str


@dataclass(frozen=True, slots=True)
class CommitGroup:
    """Operations of one thread (of one warp for wgmma and TMEM) between two commits, counted from 0.

    `kind` is cp.async, bulk, wgmma, tensor load, tensor store, or tcgen05, where every operation is its own group and
    groups complete in order. An operation belongs to the group, a commit closes it, and a wait knows that all groups
    *below* the number are complete.
    """

    kind: str
    number: int


class Event(NamedTuple):
    """One thing that happened.

    `kind` is issue, complete, access, arrive, wait, fence, alloc, free or exit, and `verb` the effect of the
    instruction's row after it; `operation` where an operation is issued or completes, `phase` where a barrier's phase
    does. `lanes`
    are the lanes of the agent's warp as bits. `count` is what a barrier counts: arrivals, bytes (expects, completes) or
    threads. `phase` is the one that an arrival belongs to or that a wait has passed; a wait that has not `passed` names
    the phase it asked for. `operation` is the number that joins an issue, its complete, and what its completion does.
    A wait for groups may `leave` so many of the latest incomplete. A store `changes` memory unless every byte had the
    stored value before.
    """

    kind: str
    verb: str
    agent: Agent
    lanes: int
    source: Source
    touches: tuple[Touch, ...] = ()
    space: str = ""
    proxy: str = "generic"
    scope: str = ""
    semantics: str = ""
    barrier: BarrierName | None = None
    phase: int | None = None
    count: int = 0  # type: ignore[assignment]  # a tuple's method, which no event needs
    group: CommitGroup | None = None
    operation: int = 0
    passed: bool = True
    leave: int = 0
    changes: bool = True

    @property
    def bytes(self) -> int:
        """The bytes of all that it touches."""
        return sum(touch.bytes for touch in self.touches)


@dataclass(frozen=True, slots=True)
class Placed:
    """An array of the launch in global memory."""

    name: str
    base: int
    size: int


@dataclass(frozen=True, slots=True)
class Started:
    """A launch that is about to run: its shape, its arrays, and the names that the program gives to warps."""

    shape: Triple
    block: Triple
    cluster: Triple
    arrays: tuple[Placed, ...]
    roles: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Declared:
    """An effect of a row with the choices of the instruction filled in."""

    space: str = ""
    proxy: str = "generic"
    scope: str = ""
    semantics: str = ""


@dataclass(frozen=True, slots=True)
class Site:
    """An instruction whose events may come in batches: the fields that all of them share."""

    source: Source
    kind: str
    verb: str
    declared: Declared
    width: int
    """Bytes at each address; 0 for an event without addresses."""
    one_address: bool
    """All lanes have the same address."""


class Warps(Sequence[tuple[Agent, int]]):
    """The warps whose lanes act, from the first of a CTA's on, each as an agent with its own 32 lanes: made when they
    are asked for.
    """

    __slots__ = ("_cta", "_first", "_lanes")

    def __init__(self, cta: Triple, first: int, lanes: int) -> None:
        self._cta, self._first, self._lanes = cta, first, lanes

    def _parts(self) -> list[tuple[int, int]]:
        lanes = self._lanes
        parts = [lanes >> first & WORD for first in range(0, lanes.bit_length(), WARP_LANES)]
        return [(number, part) for number, part in enumerate(parts) if part]

    def __len__(self) -> int:
        lanes = self._lanes
        count, rest = divmod(lanes.bit_length(), WARP_LANES)
        return count if not rest and not lanes & lanes + 1 else len(self._parts())

    def __getitem__(self, index: Any) -> Any:
        return [(agent_of(self._cta, self._first + number), part) for number, part in self._parts()][index]


class WarpEvents(NamedTuple):
    """Events of warps that act together, from the fields that they share: made when an observer looks at them."""

    kind: str
    verb: str
    agents: Sequence[tuple[Agent, int]]
    source: Source
    touches: tuple[Touch, ...]
    declared: Declared
    barrier: BarrierName | None
    phase: int | None
    number: int  # what the barrier counts, of all agents
    group: CommitGroup | None
    operation: int
    passed: bool
    leave: int
    changes: bool

    def events(self) -> Iterator[Event]:
        (
            kind, verb, agents, source, touches, declared, barrier, phase, number, group, operation, passed, leave,
            changes,
        ) = self  # fmt: skip
        whole = barrier is not None and barrier.kind == "named"
        total = sum(lanes.bit_count() for _, lanes in agents) if len(agents) > 1 and not whole else 1
        for agent, lanes in agents:
            share = number
            if len(agents) > 1:
                # A named barrier counts whole warps, every other one the lanes that arrive.
                share = number // len(agents) if whole else number * lanes.bit_count() // total
            yield _new(
                Event,
                (
                    kind, verb, agent, lanes, source, touches, declared.space, declared.proxy, declared.scope,
                    declared.semantics, barrier, phase, share, group, operation, passed, leave, changes,
                ),
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BarrierSite:
    """A `bar.sync` that native code may execute for a whole CTA."""

    index: int
    source: Source
    declared: Declared


class _Sites(dict[int, Site]):
    """Instructions by their numbers, each made when it is first asked for."""

    def __init__(self, make: Callable[[int], Site] | None) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: int) -> Site:
        assert self._make is not None
        made = self[number] = self._make(number)
        return made


class Others(Sequence[tuple[int, Event]]):
    """The events of a batch without a row, each with the row before which it came; made when they are looked at."""

    def __init__(self, count: int, warp_events: Callable[[], Iterable[tuple[int, WarpEvents]]]) -> None:
        self._count, self._placed = count, warp_events

    @cached_property
    def together(self) -> list[tuple[int, WarpEvents]]:
        """The same with the events of warps that act together as one."""
        return list(self._placed())

    @cached_property
    def _events(self) -> list[tuple[int, Event]]:
        return [(row, event) for row, warp_events in self.together for event in warp_events.events()]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, Event]]:
        return iter(self._events)

    def __getitem__(self, index: Any) -> Any:
        return self._events[index]


@dataclass(frozen=True, eq=False)
class Rows:
    """Events of loads, stores and shuffles that native code executes.

    Row i is the event of the instruction `sites[site[i]]` by `warp[i]` of the CTA `cta[i]` (its place in the grid, x
    first), of the `lanes[i]` as bits. `addresses[i]` has one address for each of the 32 lanes, valid where the bit is
    set; shared addresses are those of the cluster. `changes[i]` is the event's, for a store.
    """

    sites: Mapping[int, Site]
    shape: Triple
    site: Array
    cta: Array
    warp: Array
    lanes: Array
    changes: Array
    addresses: Array

    def __len__(self) -> int:
        return len(self.site)

    def part(self, numbers: Array) -> Rows:
        """Some of the rows, copied."""
        return Rows(self.sites, self.shape, *(each[numbers] for each in self.arrays()))

    def arrays(self) -> tuple[Array, ...]:
        """All columns, in their order."""
        return self.site, self.cta, self.warp, self.lanes, self.changes, self.addresses

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """The rows of several, one after the other."""
        arrays = zip(*(part.arrays() for part in parts), strict=True)
        return Rows(parts[0].sites, parts[0].shape, *(np.concatenate(each) for each in arrays))

    def sites_in(self) -> list[tuple[int, Site]]:
        """The instructions of the rows, with their numbers."""
        return [(number, self.sites[number]) for number in np.unique(self.site).tolist()]

    def ctas(self) -> list[Triple]:
        """The CTA of each row."""
        across, down, _ = self.shape
        return [(each % across, each // across % down, each // (across * down)) for each in self.cta.tolist()]

    def live(self) -> Array:
        """The lanes of each row that give an address, as a truth value for each of 32."""
        lanes = self.lanes.astype("<u4")
        sites = self.sites_in()
        none = np.isin(self.site, [number for number, site in sites if not site.width])
        first = np.isin(self.site, [number for number, site in sites if site.one_address])
        lanes = np.where(none, 0, np.where(first, lanes & -lanes, lanes)).astype("<u4")
        return np.unpackbits(lanes.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little").view(np.bool_)

    def stores(self) -> Array:
        """The rows that write, for which alone `changes` is set."""
        return np.isin(self.site, [number for number, site in self.sites_in() if site.verb == "writes"])

    def events(self) -> Iterator[Event]:
        """The rows as events."""
        rows = zip(
            self.site.tolist(), self.ctas(), self.warp.tolist(), self.lanes.tolist(), self.changes.tolist(),
            self.addresses, strict=True,
        )  # fmt: skip
        for number, index, warp, lanes, changes, addresses in rows:
            site = self.sites[number]
            said, touches = site.declared, tuple[Touch, ...]()
            if site.width:
                if site.one_address:
                    given = addresses[(lanes & -lanes).bit_length() - 1 :][:1]
                else:
                    given = addresses if lanes == WORD else addresses[_lanes(lanes)]
                owner = None if said.space in ("global", "const", "param") else index
                touches = (Touch(site.verb, said.space, owner, said.proxy, given.copy(), site.width),)
            yield Event(
                site.kind, site.verb, agent_of(index, warp), lanes, site.source, touches,
                said.space, said.proxy, said.scope, said.semantics, changes=changes,
            )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Batch:
    """Consecutive events: those of loads, stores and shuffles that native code executes as `rows`, and all others.

    `others` has pairs of a row and an event that came before it (and after the one before it). Arrays and events are
    made when they are first asked for; the length costs nothing.
    """

    sites: Mapping[int, Site]
    others: Others
    shape: Triple
    _entries: Array
    _lanes: Array
    """The lanes of each entry by warp; 0 where it is none of the events with a row."""

    @cached_property
    def _count(self) -> int:
        """The number of events with a row."""
        return int(np.count_nonzero(self._lanes))

    @cached_property
    def rows(self) -> Rows:
        """The events with a row."""
        entries, (at, part) = self._entries, self._lanes.nonzero()
        ctas, warps = agent_parts(entries[at, AGENT].astype(np.int64))
        shape = len(entries), MOST_LANES // WARP_LANES, WARP_LANES
        return Rows(
            self.sites,
            self.shape,
            entries[at, SITE].astype(np.int64),
            ctas,
            warps + part,
            np.ascontiguousarray(entries[:, LANES:CHANGES]).view("<u4")[at, part],
            np.ascontiguousarray(entries[:, CHANGES:ADDRESSES]).view("<u4")[at, part] != 0,
            entries[:, ADDRESSES:].view(np.int64).reshape(shape)[at, part],
        )

    def __len__(self) -> int:
        return self._count + len(self.others)

    def events(self) -> Iterator[Event]:
        """All events in order, as `on_event` gets them."""
        waiting = iter(self.others)
        place, other = next(waiting, (-1, None))
        for row, event in enumerate(self.rows.events() if self._count else ()):
            while other is not None and place == row:
                yield other
                place, other = next(waiting, (-1, None))
            yield event
        while other is not None:
            yield other
            place, other = next(waiting, (-1, None))


def _lanes(bits: int) -> Array:
    return np.unpackbits(np.frombuffer(bits.to_bytes(4, "little"), np.uint8), bitorder="little").view(np.bool_)


class Observer(Protocol):
    """Receives every event of a run, in order. A method `on_start`, if it has one, receives `Started` first.

    One with a method `on_events` gets them there instead, many at a time, as a `Batch`: some time after they happened,
    unless another observer has only `on_event`. Where all observers have `needs_completions = False`, the completion of
    an operation that signals nothing is not reported.
    """

    def on_event(self, event: Event) -> None:
        """See one event; must not change what the program sees."""
        ...


_new = tuple.__new__  # the constructor of a named tuple takes twice as long
_UNDECLARED = Declared()
_NO_ENTRIES = np.zeros((0, WORDS), np.uint64)
_MOST_OTHERS = 1 << 12
"""Events that wait for their batch."""


@runtime_checkable
class BatchObserver(Protocol):
    """An observer that gets its events in batches."""

    def on_events(self, batch: Batch) -> None: ...


AnyObserver = Observer | BatchObserver


@dataclass(slots=True)
class Actor:
    """The agent of the events that are reported next: set by an instruction's wrapper and by an operation's completion.

    A convoy acts as its first warp: bit 32·i + lane of `lanes` is a lane of the i-th warp after it.
    """

    agent: Agent
    lanes: int
    source: Source
    declared: dict[str, Declared]
    reported: set[str] = field(default_factory=set)


class Issued(NamedTuple):
    """An operation, or one warp's part of it, as it was reported to observers."""

    number: int
    actor: Actor
    lanes: int
    touches: tuple[Touch, ...]
    group: CommitGroup | None


_EXIT: tuple[Any, ...] = (
    Source(Loc("<machine>", 0), Instruction("")), (), _UNDECLARED, None, None, 0, None, 0, True, 0, True,
)  # fmt: skip
"""The other fields of an exit."""
_NOBODY = Actor(Agent((0, 0, 0), -1), 0, _EXIT[0], {})


class Reporter:
    """Makes events and passes them to the observers of a run.

    An event has one warp as its agent. What the warps of a convoy do together becomes one event for each warp, in their
    order, so that observers need not know of convoys.
    """

    def __init__(
        self,
        observers: Iterable[AnyObserver],
        shape: Triple = (1, 1, 1),
        site: Callable[[int], Site] | None = None,
        barriers: Callable[[], Mapping[int, BarrierSite]] = dict,
    ) -> None:
        self.observers = tuple(observers)
        self.log: AccessLog | None = None
        """The accesses of native code that were not reported yet."""
        self._shape, self._find_barriers = shape, barriers
        self._sites = _Sites(site)
        self._in_batches = [each.on_events for each in self.observers if isinstance(each, BatchObserver)]
        self._single: list[Observer] = [each for each in self.observers if not isinstance(each, BatchObserver)]
        self._completions = any(getattr(each, "needs_completions", True) for each in self.observers)
        self._others: list[tuple[int, WarpEvents]] = []
        """Events for those that get batches, each after so many entries of the log."""
        self.actor = _NOBODY
        self.lanes = 0
        self.operations = 0
        self.meetings = 0

    def start(self, started: Started) -> None:
        """Let the observers that ask for it know the launch."""
        for observer in self.observers:
            if (on_start := getattr(observer, "on_start", None)) is not None:
                on_start(started)

    def exits(self, cta: Triple, warp: int, lanes: int) -> None:
        """Tell that lanes of a warp, or of a convoy from it on, have exited."""
        if not self._single:
            logged = 0 if self.log is None else self.log.count
            self._others.append((logged, WarpEvents("exit", "exits", Warps(cta, warp, lanes), *_EXIT)))
            if 2 * logged >= MOST_ENTRIES or len(self._others) >= _MOST_OTHERS:
                self.flush()
            return
        before, narrowed = self.actor, self.lanes
        self.acts(Actor(agent_of(cta, warp), lanes, _NOBODY.source, {}))
        self.tell("exit", "exits")
        self.actor, self.lanes = before, narrowed

    def acts(self, actor: Actor) -> None:
        """Make an actor, with all its lanes, the agent of the next events."""
        self.actor, self.lanes = actor, actor.lanes

    def narrow(self, lanes: int) -> None:
        """Restrict the next events to some of the actor's lanes."""
        self.lanes = lanes

    def by_warp(self) -> list[tuple[Agent, int]]:
        """The warps whose lanes act, each as an agent with its own 32 lanes."""
        agent, lanes = self.actor.agent, self.lanes
        if lanes <= WORD:
            return [(agent, lanes)]
        parts = [
            (number, lanes >> WARP_LANES * number & WORD) for number in range(-(-lanes.bit_length() // WARP_LANES))
        ]
        return [(agent_of(agent.cta, agent.warp + number, agent.operation), part) for number, part in parts if part]

    @cached_property
    def _barriers(self) -> Mapping[int, BarrierSite]:
        return self._find_barriers()

    def flush(self) -> None:
        """Report the accesses of native code since the last event."""
        if not self._others and (self.log is None or self.log.is_empty):
            return
        entries = _NO_ENTRIES if self.log is None else self.log.take()
        others, self._others = self._others, []
        lanes = np.ascontiguousarray(entries[:, LANES:CHANGES]).view("<u4")
        met, warps, present = np.zeros(0, np.intp), 0, lanes
        if self._barriers:
            table = self._is_barrier
            at_barriers = table[np.minimum(entries[:, SITE], len(table) - 1).astype(np.intp)]
            met = at_barriers.nonzero()[0]
            warps = int(np.count_nonzero(lanes[met]))
            lanes = np.where(at_barriers[:, None], 0, lanes)

        def batch(warp_events: list[tuple[int, WarpEvents]]) -> Batch:
            def placed() -> Iterator[tuple[int, WarpEvents]]:
                passed = [
                    each for place in met.tolist() for each in self._passed(place, entries[place], present[place])
                ]
                # An event after so many entries comes before the entry of that number.
                every = sorted([*warp_events, *passed], key=lambda each: each[0])
                rows = np.searchsorted(lanes.nonzero()[0], [place for place, _ in every]).tolist()
                return zip(rows, (each for _, each in every), strict=True)

            count = sum([len(each.agents) for _, each in warp_events]) + 2 * warps
            return Batch(self._sites, Others(count, placed), self._shape, entries, lanes)

        if self._in_batches:
            whole = batch(others)
            for on_events in self._in_batches:
                on_events(whole)
        if self._single:  # they have had the others
            for event in batch([]).events():
                for observer in self._single:
                    observer.on_event(event)

    @cached_property
    def _is_barrier(self) -> Array:
        """By the number of an instruction; the last is for all later ones."""
        found = np.zeros(max(self._barriers) + 2, np.bool_)
        found[list(self._barriers)] = True
        return found

    def _passed(self, place: int, entry: Array, lanes: Array) -> list[tuple[int, WarpEvents]]:
        """The arrival and the wait of a CTA whose threads all passed a barrier in native code."""
        site = self._barriers[int(entry[SITE])]
        number, first = (int(each) for each in agent_parts(entry[AGENT].astype(np.int64)))
        across, down, _ = self._shape
        cta = number % across, number // across % down, number // (across * down)
        agents = [(agent_of(cta, first + warp), bits) for warp, bits in enumerate(lanes.tolist()) if bits]
        name = BarrierName("named", cta, site.index, f"barrier {site.index}")
        threads = sum(bits.bit_count() for _, bits in agents)
        return [
            (place, WarpEvents(kind, "syncs", agents, site.source, (), site.declared, name, int(entry[ADDRESSES]),
                               count, None, 0, True, 0, True))
            for kind, count in (("arrive", threads), ("wait", 0))
        ]  # fmt: skip

    def tell(
        self,
        kind: str,
        verb: str,
        touches: tuple[Touch, ...] = (),
        *,
        barrier: BarrierName | None = None,
        phase: int | None = None,
        count: int = 0,
        group: CommitGroup | None = None,
        operation: int | None = None,
        passed: bool = True,
        declared: Declared | None = None,
        leave: int = 0,
        changes: bool = True,
    ) -> None:
        """Make an event of what the actor does; space, scope and semantics are those that its row declares."""
        actor = self.actor
        actor.reported.add(verb)
        if declared is None:
            declared = actor.declared.get(verb, _UNDECLARED)
        number = actor.agent.operation if operation is None else operation
        agents = [(actor.agent, self.lanes)] if self.lanes <= WORD else self.by_warp()
        if verb == "phase":
            agents = agents[-1:]  # the last arrival completes it
        warp_events = WarpEvents(
            kind, verb, agents, actor.source, touches, declared, barrier, phase, count, group, number, passed, leave,
            changes,
        )  # fmt: skip
        self._report(warp_events)

    def _report(self, warp_events: WarpEvents) -> None:
        """Pass events to those that see each of them, and keep them for those that get batches."""
        logged = 0 if self.log is None else self.log.count
        if self._single:
            if logged:
                self.flush()
                logged = 0
            for event in warp_events.events():
                for observer in self._single:
                    observer.on_event(event)
        if self._in_batches:
            self._others.append((logged, warp_events))
        # Half of the log is left for the accesses until the next event.
        if 2 * logged >= MOST_ENTRIES or len(self._others) >= _MOST_OTHERS:
            self.flush()

    def issue(
        self, touches: Touches | Sequence[Touches] | None, group: CommitGroup | None = None
    ) -> tuple[Issued, ...]:
        """Tell that the actor issues an operation; one that several warps issue has one part for each of them.

        `touches` is then a list, with one function for each of these warps.
        """
        actor, parts, given = self.actor, list[Issued](), tuple[Touch, ...]()
        each = [touches] if touches is None or callable(touches) else touches
        source, declared, worked_out = actor.source, actor.declared, None
        for (agent, bits), work_out in zip(self.by_warp(), each, strict=False):
            self.operations = number = self.operations + 1
            if work_out is not worked_out or worked_out is None:
                worked_out, given = work_out, tuple(work_out()) if work_out is not None else ()
                for touch in given:
                    actor.reported.add(touch.verb)
                engine = _engine(given)
            part = Actor(agent, bits, source, declared, {"operation"})
            parts.append(Issued(number, part, bits, given, group))
            self._report(
                WarpEvents(
                    "issue",
                    "operation",
                    [(agent, bits)],
                    source,
                    given,
                    engine,
                    None,
                    None,
                    0,
                    group,
                    number,
                    True,
                    0,
                    True,
                )
            )
        return tuple(parts)

    def complete(self, operation: Operation) -> None:
        """An operation takes effect: its engine acts."""
        before, lanes = self.actor, self.lanes
        for issued in operation.issues:
            self._complete(issued)
        operation.run()
        self.actor, self.lanes = before, lanes

    def at_once(
        self,
        touches: Touches | Sequence[Touches] | None,
        group: CommitGroup | None,
        run: Callable[[], None] | None = None,
    ) -> None:
        """Tell that the actor issues an operation that completes here and now; `run` is its effect."""
        before, lanes = self.actor, self.lanes
        for issued in self.issue(touches, group):
            self._complete(issued)
        if run is not None:
            run()
        self.actor, self.lanes = before, lanes

    def _complete(self, issued: Issued) -> None:
        if not self._completions and issued.touches and _is_silent(issued.touches):
            return
        actor = issued.actor
        agent = Agent(actor.agent.cta, actor.agent.warp, issued.number)
        self.acts(Actor(agent, issued.lanes, actor.source, actor.declared))
        self.tell("complete", "operation", issued.touches, group=issued.group, declared=_engine(issued.touches))


def _engine(touches: tuple[Touch, ...]) -> Declared:
    """An operation's own space and proxy: those of what it touches first."""
    return _of_engine(touches[0].space, touches[0].proxy) if touches else _of_engine("", "async")


_of_engine = lru_cache(maxsize=64)(Declared)


def _is_silent(touches: tuple[Touch, ...]) -> bool:
    """True if an operation only reads and writes."""
    for touch in touches:  # noqa: SIM110  (it is executed for every operation)
        if touch.verb not in ("reads", "writes"):
            return False
    return True


def lanes_as_bits(lanes: Array | None, count: int) -> int:
    """Lanes as bits, lane 0 the lowest; None for all of so many."""
    if lanes is None:
        return (1 << count) - 1
    return int.from_bytes(np.packbits(lanes, bitorder="little").tobytes(), "little")
