"""Events for observers: one for each effect of an instruction or operation on memory or a barrier.

`observers/reporting.py` makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Loc
from warploom.hardware.threads import WARP_LANES
from warploom.machine.engine.access_log import AGENT, CHANGES, LANES, SITE, STEP, addresses_of, agent_parts
from warploom.machine.observers.layouts import Layout
from warploom.ptx.syntax.model import Instruction

Array = npt.NDArray[Any]
Triple = tuple[int, int, int]
_new = tuple.__new__  # the constructor of a named tuple takes twice as long


class Touch(NamedTuple):
    """Equal runs of bytes that something reads or writes: `width` bytes from each of `addresses`.

    A lane's access, the rows of a box, the granules of an operand and a plain range all have this form. `cta` owns the
    memory (None: global). Shared addresses are those of the cluster: rank << 24 | offset. In TMEM an address
    is lane << 16 | column and a run goes along the columns, four bytes each. In registers it is the row of the register
    file. An access of a warp has one address for each lane of its event, or one for all of them. A tensor copy and a
    matrix descriptor say the `layout` of what they touch in shared memory. A tensor copy reads its map in global memory
    through the proxy `tensormap`.
    """

    verb: str
    space: str
    cta: Triple | None
    proxy: str
    addresses: Array
    width: int
    layout: Layout | None = None

    @property
    def bytes(self) -> int:
        """The number of bytes; those that several lanes touch count once for each address."""
        return len(self.addresses) * self.width

    def key(self) -> tuple[object, ...]:
        """Everything but the addresses."""
        return self.verb, self.space, self.cta, self.proxy, self.width, self.layout

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Touch):
            return NotImplemented
        return self.key() == other.key() and np.array_equal(self.addresses, other.addresses)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.key(), self.addresses.tobytes()))


Touches = Callable[[], Sequence[Touch]]
"""Returns what an operation will touch; called only in a run with observers."""
WORD = (1 << WARP_LANES) - 1
"""All lanes of a warp as bits."""


def run_of_bytes(verb: str, space: str, cta: Triple | None, address: int, size: int, proxy: str = "async") -> Touch:
    """One plain range."""
    return Touch(verb, space, cta, proxy, np.array([address], np.int64), size)


class Agent(NamedTuple):
    """A warp of a CTA, or (with an operation) the engine that works on that operation for it."""

    cta: Triple
    warp: int
    operation: int = 0


agent_of = lru_cache(maxsize=1 << 12)(Agent)


@lru_cache(maxsize=1 << 12)
def warps_of(agent: Agent, lanes: int) -> tuple[tuple[Agent, int], ...]:
    """The warps whose lanes act, from an agent's on, each as an agent with its own 32 lanes."""
    parts = [lanes >> first & WORD for first in range(0, lanes.bit_length(), WARP_LANES)]
    return tuple(
        (agent_of(agent.cta, agent.warp + number, agent.operation), part) for number, part in enumerate(parts) if part
    )


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


class BarrierName(NamedTuple):
    """The name of a barrier: `kind` is mbarrier, named, cluster or warp; `address` its shared address, number or
    warp.
    """

    kind: str
    cta: Triple
    address: int
    name: str


class CommitGroup(NamedTuple):
    """Operations of one thread (of one warp for wgmma and TMEM) between two commits, counted from 0.

    `kind` is cp.async, bulk, wgmma, tensor load, tensor store, or tcgen05, where every operation is its own group and
    groups complete in order. An operation belongs to the group, a commit closes it, and a wait knows that all groups
    *below* the number are complete.
    """

    kind: str
    number: int


class Clash(NamedTuple):
    """Two lanes of a warp that store different values to one address with one instruction, or one lane twice; `rounds`
    if all such values of the warp are numbers that agree in the leading half of their significant bits, and `across` if
    they agree so with those that earlier warps store with it.
    """

    one: int
    other: int
    rounds: bool = False
    across: bool = False


class Event(NamedTuple):
    """One thing that happened.

    `kind` is issue, complete, access, arrive, wait, fence, alloc, free or exit, and `verb` the effect of the
    instruction's row after it; `operation` where an operation is issued or completes, `phase` where a barrier's phase
    does. `lanes` are the lanes of the agent's warp as bits. `count` is what a barrier counts: arrivals, bytes (expects,
    completes) or threads; of a `setmaxnreg` it is the registers that each thread then has. A fence with `touches` is
    about these bytes alone. `phase` is the one that an arrival belongs to or that a wait has passed; a wait that has
    not `passed` names the phase it asked for. `operation` is the number that joins an issue, its complete, and what its
    completion does. A wait for groups may `leave` so many of the latest incomplete. A store `changes` memory unless
    every byte had the stored value before; with a `clash`, its lanes store different values to one address.
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
    clash: Clash | None = None

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


class Declared(NamedTuple):
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
    """Events of warps that act together, from the fields that they share: made when an observer looks at them.

    Where they issue an operation, or it completes, `operation` is the number of the first one's part; those of the
    others follow.
    """

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
    clash: Clash | None = None

    def events(self) -> Iterator[Event]:
        (
            kind, verb, agents, source, touches, declared, barrier, phase, number, group, operation, passed, leave,
            changes, clash,
        ) = self  # fmt: skip
        space, proxy, scope, semantics = declared
        if len(agents) == 1:
            ((agent, lanes),) = agents
            yield _new(
                Event,
                (
                    kind, verb, agent, lanes, source, touches, space, proxy, scope, semantics, barrier, phase, number,
                    group, operation, passed, leave, changes, clash,
                ),
            )  # fmt: skip
            return
        whole = barrier is not None and barrier.kind == "named"
        total = 1 if whole or not number else sum(lanes.bit_count() for _, lanes in agents)
        step = 1 if verb == "operation" and operation else 0
        for agent, lanes in agents:
            # A named barrier counts whole warps, every other one the lanes that arrive.
            share = number // len(agents) if whole else number * lanes.bit_count() // total
            yield _new(
                Event,
                (
                    kind, verb, agent, lanes, source, touches, space, proxy, scope, semantics, barrier, phase, share,
                    group, operation, passed, leave, changes, clash,
                ),
            )  # fmt: skip
            operation += step


class Several(Protocol):
    """Events that follow each other, made when an observer looks at them."""

    @property
    def cta(self) -> Triple:
        """The CTA of the warps that act."""
        ...

    @property
    def phase(self) -> int:
        """A phase from which those of the events differ by constants."""
        ...

    @property
    def group(self) -> int:
        """A group's number from which those of the events differ by constants."""
        ...

    @property
    def likeness(self) -> tuple[Hashable, object]:
        """A key, and an object: where keys are equal and the objects the same, the events differ only in the CTA,
        phases, groups, the numbers of operations, and places in global memory.
        """
        ...

    def events(self) -> Sequence[WarpEvents]:
        """The events, in order."""
        ...

    def in_global(self, number: int) -> list[Touch]:
        """The places in global memory that an event accesses."""
        ...


class Sites(dict[int, Site]):
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

    def __init__(self, count: int, parts: Callable[[], Iterable[tuple[int, WarpEvents | Several]]]) -> None:
        self._count, self._placed = count, parts

    @cached_property
    def parts(self) -> list[tuple[int, WarpEvents | Several]]:
        """The same with the events of warps that act together as one, and those that follow each other as one part."""
        return list(self._placed())

    @cached_property
    def together(self) -> list[tuple[int, WarpEvents]]:
        """The same with the events of warps that act together as one."""
        found: list[tuple[int, WarpEvents]] = []
        for row, part in self.parts:
            if isinstance(part, WarpEvents):
                found.append((row, part))
            else:
                found += [(row, each) for each in part.events()]
        return found

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

    @cached_property
    def _sites_in(self) -> list[tuple[int, Site]]:
        return [(number, self.sites[number]) for number in sorted(set(self.site.tolist()))]

    def sites_in(self) -> list[tuple[int, Site]]:
        """The instructions of the rows, with their numbers."""
        return self._sites_in

    def _of_sites(self, chosen: Callable[[Site], object]) -> Array:
        """The rows of some instructions."""
        found = np.zeros(len(self.site), np.bool_)
        for number, site in self._sites_in:
            if chosen(site):
                found |= self.site == number
        return found

    def ctas(self) -> list[Triple]:
        """The CTA of each row."""
        across, down, _ = self.shape
        return [(each % across, each // across % down, each // (across * down)) for each in self.cta.tolist()]

    def live(self) -> Array:
        """The lanes of each row that give an address, as a truth value for each of 32."""
        lanes = self.lanes.astype("<u4")
        none, first = self._of_sites(lambda site: not site.width), self._of_sites(lambda site: site.one_address)
        lanes = np.where(none, 0, np.where(first, lanes & -lanes, lanes)).astype("<u4")
        return np.unpackbits(lanes.view(np.uint8).reshape(-1, 4), axis=1, bitorder="little").view(np.bool_)

    def stores(self) -> Array:
        """The rows that write, for which alone `changes` is set."""
        return self._of_sites(lambda site: site.verb == "writes")

    def events(self) -> Iterator[Event]:
        """The rows as events."""
        rows = zip(
            self.site.tolist(), self.ctas(), self.warp.tolist(), self.lanes.tolist(), self.changes.tolist(),
            self.addresses, strict=True,
        )  # fmt: skip
        for row in rows:
            yield self._event(*row)

    def event(self, row: int) -> Event:
        """One row as an event."""
        across, down, _ = self.shape
        cta = int(self.cta[row])
        index = cta % across, cta // across % down, cta // (across * down)
        return self._event(
            int(self.site[row]), index, int(self.warp[row]), int(self.lanes[row]), bool(self.changes[row]),
            self.addresses[row],
        )  # fmt: skip

    def _event(self, number: int, index: Triple, warp: int, lanes: int, changes: bool, addresses: Array) -> Event:
        site = self.sites[number]
        said, touches = site.declared, tuple[Touch, ...]()
        if site.width:
            if site.one_address:
                given = addresses[(lanes & -lanes).bit_length() - 1 :][:1]
            else:
                given = addresses if lanes == WORD else addresses[_lanes(lanes)]
            owner = None if said.space in ("global", "const", "param") else index
            touches = (_new(Touch, (site.verb, said.space, owner, said.proxy, given.copy(), site.width, None)),)
        event: Event = _new(
            Event,
            (
                site.kind, site.verb, agent_of(index, warp), lanes, site.source, touches, *said, None, None, 0, None, 0,
                True, 0, changes, None,
            ),
        )  # fmt: skip
        return event


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
    _addresses: Array
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
        return Rows(
            self.sites,
            self.shape,
            entries[at, SITE].astype(np.int64),
            ctas,
            warps + part,
            np.ascontiguousarray(entries[:, LANES:CHANGES]).view("<u4")[at, part],
            np.ascontiguousarray(entries[:, CHANGES:STEP]).view("<u4")[at, part] != 0,
            addresses_of(entries, self._addresses, at, part),
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


@runtime_checkable
class BatchObserver(Protocol):
    """An observer that gets its events in batches."""

    def on_events(self, batch: Batch) -> None: ...


AnyObserver = Observer | BatchObserver


def lanes_as_bits(lanes: Array | None, count: int) -> int:
    """Lanes as bits, lane 0 the lowest; None for all of so many."""
    return (1 << count) - 1 if lanes is None else _as_bits(lanes.tobytes())


@lru_cache(maxsize=1 << 10)
def _as_bits(lanes: bytes) -> int:
    return sum(1 << lane for lane, takes_part in enumerate(lanes) if takes_part)
