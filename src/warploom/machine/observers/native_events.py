"""Events of barriers, copies and waits that native code has executed, made from the entries of its log.

An entry stands for all events of its instruction: an arrival and the end of the phase, or the issue of a copy, its
completion, and the bytes that a barrier counts. They are made when an observer looks at them; their number is known
before that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from warploom.machine.engine.access_log import (
    ADDRESS,
    AGENT,
    CHANGES,
    COPY_COORDINATES,
    COPY_MAP,
    COPY_TARGET,
    LANES,
    SITE,
    agent_parts,
)
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.deferred import PLAIN, Agents, engine_in
from warploom.machine.observers.events import (
    WORD,
    Agent,
    BarrierName,
    CommitGroup,
    Declared,
    Several,
    Source,
    Touch,
    Triple,
    WarpEvents,
    agent_of,
    warps_of,
)

Array = npt.NDArray[Any]


class LoadTouches(Protocol):
    """The touches of tensor loads."""

    def __call__(
        self, map_: int, target: int, coords: tuple[int, ...], barrier: int, cta: Triple, counts: Triple
    ) -> tuple[Touch, ...]:
        """All touches, from the map, target, coordinates and barrier, and the CTAs of target and barrier."""
        ...

    def source(self, map_: int, coords: tuple[int, ...]) -> Touch:
        """The part of the tensor that is read."""
        ...


_new = tuple.__new__  # the constructor of a named tuple takes twice as long
_UNDECLARED = Declared()
_COORDINATES = 5
_KEPT = COPY_MAP, COPY_TARGET
_SIGN, _RANGE = 1 << 31, 1 << 32
_EVENTS = {"syncs": 2, "waits": 1, "arrives": 1, "expects": 2, "loads": 3, "drains": 1}
"""The events of each warp by what an instruction does: the arrival and the wait of a `bar.sync`, those of mbarriers,
the issue, completion and bytes of a tensor load, and a wait for groups of wgmmas."""
_ENDING = frozenset({"arrives", "loads"})
"""Those after which the phase may end, which is a further event."""


@dataclass(frozen=True, slots=True)
class NativeSite:
    """An instruction whose entries stand for several events, and the effects that its row declares."""

    does: str
    source: Source
    declared: Mapping[str, Declared]
    index: int = 0
    """The number of a named barrier, or of groups that a wait leaves."""


class Entry:
    """An entry whose events are made when an observer looks at them."""

    __slots__ = ("_events", "_native", "_number", "_some", "_source", "cta", "group", "likeness", "phase")

    def __init__(
        self, native: NativeEvents, some: _Some, number: int, cta: Triple, phase: int, group: int, key: bytes
    ) -> None:
        self._native, self._some, self._number = native, some, number
        self.cta, self.phase, self.group = cta, phase, group
        self.likeness: tuple[Hashable, object] = key, None
        self._events: list[WarpEvents] | None = None
        self._source: Touch | None = None

    def events(self) -> list[WarpEvents]:
        if self._events is None:
            self._events = self._native.events(*self._some.lists[self._number])
        return self._events

    def in_global(self, number: int) -> list[Touch]:
        if self._source is None:
            self._source = self._native.source(self._some.lists[self._number][1])
        return [self._source]


@dataclass(frozen=True, eq=False)
class _Some:
    """Some entries, and what the rows of their addresses hold for copies."""

    entries: Array
    copied: Array

    @cached_property
    def lists(self) -> list[tuple[list[int], list[int]]]:
        """The same as lists of numbers."""
        return list(zip(self.entries.tolist(), self.copied.tolist(), strict=True))


class NativeEvents:
    """Makes the events of a launch's entries."""

    def __init__(
        self, shape: Triple, cluster: Triple, sites: Callable[[], Mapping[int, NativeSite]], loads: LoadTouches
    ) -> None:
        self._shape, self._find_sites, self._loads = shape, sites, loads
        self.names: dict[int, str] = {}
        """The names of mbarriers by their offset in shared memory."""
        self._agents = lru_cache(maxsize=1 << 12)(partial(_agents_of, shape))
        self._label = lru_cache(maxsize=1 << 12)(partial(_label_of, cluster, self.names))

    @cached_property
    def _sites(self) -> Mapping[int, NativeSite]:
        return self._find_sites()

    @cached_property
    def _numbers(self) -> tuple[Array, Array]:
        """By the number of an instruction: the events of each warp, and 1 where a phase may end. The last is for all
        later ones.
        """
        each, ending = np.zeros((2, max(self._sites, default=-1) + 2), np.int64)
        for number, site in self._sites.items():
            each[number], ending[number] = _EVENTS[site.does], site.does in _ENDING
        return each, ending

    def places(self, entries: Array) -> tuple[Array, int]:
        """The entries that stand for several events, and the number of these."""
        if not self._sites or not len(entries):
            return np.zeros(0, np.intp), 0
        each, ending = self._numbers
        sites = np.minimum(entries[:, SITE], np.uint64(len(each) - 1)).astype(np.intp)
        found = each[sites].nonzero()[0]
        some, sites = entries[found], sites[found]
        warps = np.count_nonzero(np.ascontiguousarray(some[:, LANES:CHANGES]).view("<u4"), axis=1)
        ends = (some[:, CHANGES + 1] & np.uint64(1)).astype(np.int64)
        return found, int((each[sites] * warps + ending[sites] * ends).sum(dtype=np.int64))

    def of(
        self, entries: Array, rows: Array, places: Array, *, deferred: bool
    ) -> Sequence[tuple[int, WarpEvents | Several]]:
        """The events of some entries, each with the place of its entry; `rows` are those of the entries' addresses."""
        if not len(places):
            return []
        some = _Some(entries[places], rows[places, : COPY_COORDINATES + _COORDINATES])
        if not deferred:
            each_of = zip(places.tolist(), some.lists, strict=True)
            return [(place, event) for place, lists in each_of for event in self.events(*lists)]
        words = some.entries
        sites = words[:, SITE]
        syncs, loads, drains = (
            np.isin(sites, [number for number, site in self._sites.items() if site.does == does])
            for does in ("syncs", "loads", "drains")
        )
        counts = syncs | drains  # the address of their entries is a number
        ctas, warps = agent_parts(words[:, AGENT])
        # What the events of an entry depend on, but for the CTA, the phase and the number of the operation.
        columns = (
            sites, warps, words[:, LANES], words[:, LANES + 1], np.where(counts, 0, words[:, CHANGES + 1]),
            np.where(counts, 0, words[:, ADDRESS]), *(np.where(loads, some.copied[:, each], 0) for each in _KEPT),
        )  # fmt: skip
        table = np.ascontiguousarray(np.stack(columns, axis=1))
        size, content = table.shape[1] * table.itemsize, table.tobytes()
        phases = np.where(syncs, words[:, ADDRESS], words[:, CHANGES]).tolist()
        groups = [0] * len(phases)
        for at in drains.nonzero()[0].tolist():
            groups[at] = _group_below(self._sites[int(sites[at])], int(words[at, ADDRESS]))
        indices = {each: _index(self._shape, each) for each in np.unique(ctas).tolist()}
        each = zip(places.tolist(), ctas.tolist(), phases, groups, strict=True)
        return [
            (place, Entry(self, some, at, indices[cta], phase, group, content[size * at : size * (at + 1)]))
            for at, (place, cta, phase, group) in enumerate(each)
        ]

    def source(self, row: list[int]) -> Touch:
        """The global memory that a load reads."""
        return self._loads.source(row[COPY_MAP], _coordinates(row))

    def events(self, words: list[int], row: list[int]) -> list[WarpEvents]:
        """The events of an entry."""
        number, agent, low, high, phase, detail, operation, address = words
        site = self._sites[number]
        does, lanes = site.does, low | high << 64
        cta, agents = self._agents(agent, lanes)
        if does == "syncs":
            return _passed(site, cta, agents, address)
        if does == "drains":
            return [_drained(site, agents, address)]
        barrier = self._label(cta, address)
        if does == "waits":
            return [_at_barrier(site, "wait", "waits", agents, barrier, phase - 1)]
        if does == "expects":
            return [
                _at_barrier(site, "arrive", "expects", agents, barrier, phase, detail >> 1),
                _at_barrier(site, "arrive", "arrives", agents, barrier, phase, 1),
            ]
        found: list[WarpEvents] = []
        if does == "arrives":
            verb, count = "arrives", lanes.bit_count()
        else:
            verb, count = "completes", detail >> 1
            copy, agents = self._copy(site, cta, agents, row, operation, barrier)
            found += copy
        found.append(_at_barrier(site, "arrive", verb, agents, barrier, phase, count, operation))
        if detail & 1:
            found.append(_at_barrier(site, "complete", "phase", agents[-1:], barrier, phase))
        return found

    def _copy(
        self, site: NativeSite, cta: Triple, agents: Agents, row: list[int], number: int, barrier: BarrierName
    ) -> tuple[tuple[WarpEvents, WarpEvents], Agents]:
        """The issue and the completion of a copy, and its engine."""
        ((agent, lanes),) = agents
        touches = self._loads(row[COPY_MAP], row[COPY_TARGET], _coordinates(row), barrier.address, cta, barrier.cta)
        engine = ((_new(Agent, (agent.cta, agent.warp, number)), lanes),)
        rest = site.source, touches, engine_in(touches), None, None, 0, None, number, *PLAIN
        issue = _new(WarpEvents, ("issue", "operation", agents, *rest))
        return (issue, _new(WarpEvents, ("complete", "operation", engine, *rest))), engine


def _index(shape: Triple, cta: int) -> Triple:
    """A CTA by its number in the grid."""
    across, down, _ = shape
    return cta % across, cta // across % down, cta // (across * down)


def _agents_of(shape: Triple, number: int, lanes: int) -> tuple[Triple, Agents]:
    """The CTA of an entry, and its warps."""
    cta, warp = agent_parts(number)
    index = _index(shape, cta)
    first = agent_of(index, warp)
    return index, ((first, lanes),) if lanes <= WORD else warps_of(first, lanes)


def _owner(cluster: Triple, cta: Triple, address: int) -> Triple:
    """The CTA that a shared address of a cluster belongs to."""
    (x, y, z), rank = cluster, address >> RANK_SHIFT
    i, j, k = cta
    return i - i % x + rank % x, j - j % y + rank // x % y, k - k % z + rank // (x * y)


def _label_of(cluster: Triple, names: Mapping[int, str], cta: Triple, address: int) -> BarrierName:
    return BarrierName("mbarrier", _owner(cluster, cta, address), address, names[address & OFFSET_MASK])


def _coordinates(row: list[int]) -> tuple[int, ...]:
    """The coordinates of a copy."""
    return tuple([(each + _SIGN & _RANGE - 1) - _SIGN for each in row[COPY_COORDINATES:]])


def _passed(site: NativeSite, cta: Triple, agents: Agents, phase: int) -> list[WarpEvents]:
    """The arrival and the wait of a CTA whose threads all passed a named barrier."""
    name = BarrierName("named", cta, site.index, f"barrier {site.index}")
    threads = sum(bits.bit_count() for _, bits in agents)
    declared = site.declared["syncs"]
    return [
        WarpEvents(kind, "syncs", agents, site.source, (), declared, name, phase, count, None, 0, *PLAIN)
        for kind, count in (("arrive", threads), ("wait", 0))
    ]


def _group_below(site: NativeSite, commits: int) -> int:
    """The number below which all groups are complete after a wait, by threads that have committed so many."""
    return max(commits - site.index, 0)


def _drained(site: NativeSite, agents: Agents, commits: int) -> WarpEvents:
    """A wait for groups of wgmmas."""
    group, declared = CommitGroup("wgmma", _group_below(site, commits)), site.declared.get("drains", _UNDECLARED)
    return _new(
        WarpEvents,
        ("wait", "drains", agents, site.source, (), declared, None, None, 0, group, 0, True, site.index, True, None),
    )


def _at_barrier(
    site: NativeSite,
    kind: str,
    verb: str,
    agents: Agents,
    barrier: BarrierName,
    phase: int,
    count: int = 0,
    operation: int = 0,
) -> WarpEvents:
    """An event at an mbarrier."""
    return _new(
        WarpEvents,
        (
            kind, verb, agents, site.source, (), site.declared.get(verb, _UNDECLARED), barrier, phase, count, None,
            operation, *PLAIN,
        ),
    )  # fmt: skip
