"""The events of a cluster as rows of numbers, so that equal work is found by comparing arrays.

A row has the number of the event's *shape*, its phase, the number of its group, and how many events before it the
operation was issued that it belongs to. The shape is everything that the checker looks at but these and the places in
global memory: events of different clusters have equal shapes if one is the other with the CTAs of one cluster in place
of the other's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import is_strong
from warploom.machine.core.events import Batch, Event, Rows, Touch, WarpEvents

Array = npt.NDArray[Any]
Row = tuple[Rows, int]
"""An event of native code: a row, by its number."""
Item = WarpEvents | Row
SHAPE, PHASE, GROUP, OPERATION = range(4)
NONE = -1
_NUMBERED = frozenset({"wgmma", "tcgen05", "tensor load", "tensor store"})
"""Kinds of groups whose numbers the checker looks at; of the others it counts the commits."""
_MOST_TOUCHES = 1 << 12
_MOST_OPERATIONS = 1 << 9


class Shapes:
    """The numbers of shapes."""

    def __init__(self, cluster: Triple) -> None:
        self._cluster = cluster
        self._numbers: dict[Hashable, int] = {}
        self._touches: dict[int, tuple[Touch, int]] = {}
        """Those of touches, by their identity."""
        self._barred: list[bool] = []
        self._engine: list[bool] = []

    def _number(self, shape: Hashable, *, barred: bool = False, engine: bool = False) -> int:
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self._numbers)
            self._barred.append(barred)
            self._engine.append(engine)
        return number

    def barred(self) -> Array:
        """For each shape: True for events after which the state of the checker is not looked at, or that end
        something.
        """
        return np.array(self._barred, np.bool_)

    def engine(self) -> Array:
        """For each shape: True for events of an operation that completes."""
        return np.array(self._engine, np.bool_)

    def _rank(self, cta: Triple | None, base: Triple) -> int:
        """A CTA by its place in the cluster."""
        if cta == base:
            return 0
        if cta is None:
            return NONE
        across, down, _ = self._cluster
        return ((cta[2] - base[2]) * down + cta[1] - base[1]) * across + cta[0] - base[0]

    def of(self, warp_events: WarpEvents, base: Triple) -> int:
        """The shape of events of a cluster whose first CTA is `base`."""
        (
            kind, verb, agents, source, touches, declared, barrier, _, number, group, operation, passed, leave, changes,
            clash,
        ) = warp_events  # fmt: skip
        first, lanes = agents[0]
        shape: Hashable = (
            kind, verb, self._rank(first.cta, base), first.warp,
            lanes if len(agents) == 1 else tuple([(agent.warp, some) for agent, some in agents]),
            first.operation != 0, source.number, declared, number, passed, leave, changes, clash, operation != 0,
            None if group is None else group.kind,
            None if barrier is None else (barrier.kind, self._rank(barrier.cta, base), barrier.address),
            tuple([self._touch(touch, base) for touch in touches]) if touches else (),
        )  # fmt: skip
        found = self._numbers.get(shape)
        if found is not None:
            return found
        barred = kind in ("alloc", "free", "exit") or (barrier is not None and barrier.kind == "warp")
        barred |= kind == "access" and is_strong(declared.semantics)
        return self._number(shape, barred=barred, engine=kind == "complete" or first.operation != 0)

    def _touch(self, touch: Touch, base: Triple) -> Hashable:
        verb, space, cta, proxy, addresses, width = touch
        if space == "global":
            return verb, proxy, width, len(addresses) > 0
        known = self._touches.get(id(touch))
        if known is not None and known[0] is touch:
            return known[1]
        number = self._number((verb, space, self._rank(cta, base), proxy, width, len(addresses), addresses.tobytes()))
        if len(self._touches) >= _MOST_TOUCHES:
            self._touches.clear()
        self._touches[id(touch)] = touch, number
        return number

    def of_rows(self, rows: Rows, bases: list[Triple]) -> list[int]:
        """The shapes of the rows of a batch, each of a cluster whose first CTA is among `bases`."""
        sites, stores = dict(rows.sites_in()), rows.stores()
        places = np.isin(rows.site, [number for number, site in sites.items() if site.declared.space == "global"])
        places = rows.live() & ~places[:, None]
        ranks = [self._rank(cta, base) for cta, base in zip(rows.ctas(), bases, strict=True)]
        columns = (
            rows.site[:, None], np.array(ranks)[:, None], rows.warp[:, None], rows.lanes.astype(np.int64)[:, None],
            np.where(stores, rows.changes, True)[:, None], np.where(places, rows.addresses, 0),
        )  # fmt: skip
        table = np.ascontiguousarray(np.concatenate(columns, axis=1, dtype=np.int64))
        size, content = table.shape[1] * table.itemsize, table.tobytes()
        accesses = {number: site for number, site in sites.items() if site.kind == "access"}
        barred = {number for number, site in accesses.items() if is_strong(site.declared.semantics)}
        numbers, found = rows.site.tolist(), []
        for at, site in enumerate(numbers):
            shape = content[size * at : size * (at + 1)]
            number = self._numbers.get(shape)
            found.append(self._number(shape, barred=site in barred) if number is None else number)
        return found


class Stream:
    """The events of a cluster, in order."""

    def __init__(self, base: Triple, threads: int) -> None:
        self.base = base
        """The first CTA."""
        self.left = threads
        """Threads that have not exited."""
        self.items: list[Item] = []
        self._rows: list[tuple[int, int, int, int]] = []
        self._table = np.zeros((0, 4), np.int64)
        self._issued: dict[int, int] = {}
        """The places of events that issue operations."""
        self._taken = 0
        """Events that were taken out."""

    def __len__(self) -> int:
        return len(self.items)

    def add(self, warp_events: WarpEvents, shape: int) -> None:
        """Append events of warps that act together."""
        at, group, operation = self._taken + len(self.items), warp_events.group, warp_events.agents[0][0].operation
        if warp_events.kind == "issue" and warp_events.operation:
            if len(self._issued) >= _MOST_OPERATIONS:
                self._issued.clear()
            for number in range(len(warp_events.agents)):
                self._issued[warp_events.operation + number] = at
            ago = 0
        else:
            issued = self._issued.get(operation, -1)
            # One that was issued too long ago is equal to no other.
            ago = (at - issued if issued >= 0 else -operation) if operation else 0
        phase = NONE if warp_events.phase is None or warp_events.barrier is None else warp_events.phase
        numbered = NONE if group is None or group.kind not in _NUMBERED else group.number
        self._rows.append((shape, phase, numbered, ago))
        self.items.append(warp_events)

    def add_row(self, rows: Rows, number: int, shape: int) -> None:
        """Append a row."""
        self._rows.append((shape, NONE, NONE, 0))
        self.items.append((rows, number))

    def table(self) -> Array:
        """The numbers of all events."""
        if self._rows:
            self._table = np.concatenate((self._table, np.array(self._rows, np.int64)))
            self._rows = []
        return self._table

    def take(self) -> tuple[list[Item], Array]:
        """Take out all events."""
        items, table = self.items, self.table()
        self._taken += len(items)
        self.items, self._table = [], self._table[:0]
        return items, table


def events_of(item: Item) -> Iterator[Event]:
    """The events of an item."""
    if isinstance(item, WarpEvents):
        return item.events()
    rows, number = item
    return iter((rows.event(number),))


def count_of(item: Item) -> int:
    """The number of events of an item."""
    return len(item.agents) if isinstance(item, WarpEvents) else 1


def global_touches(item: Item) -> list[Touch]:
    """The places in global memory that an item accesses."""
    if isinstance(item, WarpEvents):
        return [touch for touch in item.touches if touch.space == "global" and touch.verb in ("reads", "writes")]
    rows, number = item
    if rows.sites[int(rows.site[number])].declared.space != "global":
        return []
    return list(rows.event(number).touches)


class Streams:
    """The streams of the clusters that run."""

    def __init__(self, cluster: Triple, threads: int) -> None:
        self.shapes = Shapes(cluster)
        self._cluster, self._threads = cluster, threads
        self.by_place: dict[Triple, Stream] = {}

    def add(self, batch: Batch) -> list[Triple]:
        """Append the events of a batch to those of their clusters; the clusters that end with it."""
        ended, rows, shapes = list[Triple](), batch.rows, self.shapes
        streams = self._of_rows(rows)
        numbers = shapes.of_rows(rows, [stream.base for stream in streams]) if streams else []
        at, (x, y, z) = 0, self._cluster
        for row, warp_events in batch.others.together:
            for number in range(at, row):
                streams[number].add_row(rows, number, numbers[number])
            at = row
            cta = warp_events.agents[0][0].cta
            place = (cta[0] // x, cta[1] // y, cta[2] // z)
            stream = self.of(place)
            stream.add(warp_events, shapes.of(warp_events, stream.base))
            if warp_events.kind == "exit":
                stream.left -= sum(lanes.bit_count() for _, lanes in warp_events.agents)
                if stream.left <= 0:
                    ended.append(place)
        for number in range(at, len(streams)):
            streams[number].add_row(rows, number, numbers[number])
        return ended

    def kept(self) -> int:
        """The length of all streams."""
        return sum(len(stream) for stream in self.by_place.values())

    def of(self, place: Triple) -> Stream:
        """The stream of a cluster."""
        found = self.by_place.get(place)
        if found is None:
            x, y, z = self._cluster
            found = self.by_place[place] = Stream((place[0] * x, place[1] * y, place[2] * z), self._threads)
        return found

    def _of_rows(self, rows: Rows) -> list[Stream]:
        """The stream of each row."""
        if not len(rows):
            return []
        (across, down, _), (x, y, z) = rows.shape, self._cluster
        number = (
            rows.cta // (across * down) // z * down + rows.cta // across % down // y
        ) * across + rows.cta % across // x
        found = {
            each: self.of((each % across, each // across % down, each // (across * down)))
            for each in np.unique(number).tolist()
        }
        return [found[each] for each in number.tolist()]
