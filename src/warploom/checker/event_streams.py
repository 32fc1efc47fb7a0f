"""The events of a cluster as rows of numbers, so that equal work is found by comparing arrays.

A row has the number of the event's *shape*, its phase, the number of its group, and how many events before it the
operation was issued that it belongs to. The shape is everything that the checker looks at but these and the places in
global memory: events of different clusters have equal shapes if one is the other with the CTAs of one cluster in place
of the other's. Shapes are of one *sort* if they differ in places of shared memory and TMEM only, each moved as a whole.
Tiles with a layout are moved by whole periods of the swizzles, which exchange bytes by their addresses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import is_strong
from warploom.checker.renaming import BARRIER_BYTES, OFFSET, Span
from warploom.hardware.swizzles import LARGEST_PERIOD
from warploom.hardware.threads import WARP_LANES
from warploom.machine.observers.events import Batch, Event, Rows, Several, Site, Touch, WarpEvents

Array = npt.NDArray[Any]
Row = tuple[Rows, int]
"""An event of native code: a row, by its number."""
Deferred = tuple[Several, int]
"""One of several events that are made when they are looked at, by its number."""
Item = WarpEvents | Row | Deferred
SHAPE, PHASE, GROUP, OPERATION = range(4)
_FIELDS = 4
NONE = -1
_PLACED = frozenset({"reads", "writes", "fences"})
_NUMBERED = frozenset({"wgmma", "tcgen05", "tensor load", "tensor store"})
"""Kinds of groups whose numbers the checker looks at; of the others it counts the commits."""
_MOST_TOUCHES = 1 << 12
_MOST_OPERATIONS = 1 << 9
_BARRIER, _TOUCHES = -2, -1
"""The fields of a shape with the barrier and the touches."""
_ROW_FIELDS = 5
"""Numbers of a row's shape before its addresses."""
_WORD = 4


class _Numbers(NamedTuple):
    """The rows of several events, one after the other, with phases and groups relative to those of the part."""

    rows: list[int]
    phases: list[int]
    groups: list[int]
    """The places of phases and groups among them."""

    def of(self, part: Several) -> list[int]:
        """The rows of a part."""
        rows = self.rows.copy()
        for at in self.phases:
            rows[at] += part.phase
        for at in self.groups:
            rows[at] += part.group
        return rows

    def __len__(self) -> int:
        return len(self.rows) // _FIELDS


class Shapes:
    """The numbers of shapes."""

    def __init__(self, cluster: Triple) -> None:
        self._cluster = cluster
        self._numbers: dict[Hashable, int] = {}
        self._touches: dict[int, tuple[Touch, int]] = {}
        """Those of touches, by their identity."""
        self._contents: dict[int, tuple[Array, bytes]] = {}
        """The contents of their addresses, which several may share."""
        self._several: dict[tuple[int, Hashable], tuple[object, _Numbers]] = {}
        """Those of events that follow each other, by the rank of their CTA and what they have in common."""
        self._barred: list[bool] = []
        self._engine: list[bool] = []
        self._reaching: list[bool] = []
        self._shapes: list[Hashable] = []
        """By their numbers."""
        self._sorts: dict[Hashable, int] = {}
        self._sort_of = np.zeros(0, np.int64)
        self._spans: dict[int, tuple[Span, ...]] = {}
        self._sites: dict[int, Site] = {}

    def _number(self, shape: Hashable, *, barred: bool = False, engine: bool = False, reaching: bool = False) -> int:
        number = self._numbers.get(shape)
        if number is None:
            number = self._numbers[shape] = len(self._numbers)
            self._shapes.append(shape)
            self._barred.append(barred)
            self._engine.append(engine)
            self._reaching.append(reaching)
        return number

    def barred(self) -> Array:
        """For each shape: True for events after which the state of the checker is not looked at, or that end
        something.
        """
        return np.array(self._barred, np.bool_)

    def engine(self) -> Array:
        """For each shape: True for events of an operation that completes."""
        return np.array(self._engine, np.bool_)

    def reaching(self) -> Array:
        """For each shape: True for events that access global memory."""
        return np.array(self._reaching, np.bool_)

    def sorts(self, numbers: Array) -> Array:
        """The sorts of shapes."""
        if len(self._sort_of) < len(self._shapes):
            more = np.full(len(self._shapes) - len(self._sort_of), NONE, np.int64)
            self._sort_of = np.concatenate((self._sort_of, more))
        found = self._sort_of[numbers]
        missing = found == NONE
        if missing.any():
            for number in np.unique(numbers[missing]).tolist():
                sort, self._spans[number] = self._described(self._shapes[number])
                self._sort_of[number] = self._sorts.setdefault(sort, len(self._sorts))
            found = self._sort_of[numbers]
        return found

    def spans(self, number: int) -> tuple[Span, ...]:
        """The places in shared memory and TMEM of a shape whose sort was asked for."""
        return self._spans[number]

    def barrier(self, number: int) -> tuple[str, int, int] | None:
        """The kind of a shape's barrier, the rank of its CTA, and its address."""
        shape = self._shapes[number]
        found: tuple[str, int, int] | None = shape[_BARRIER] if isinstance(shape, tuple) else None
        return found

    def _described(self, shape: Any) -> tuple[Hashable, tuple[Span, ...]]:
        """A shape but for its places in shared memory and TMEM, and these places."""
        if isinstance(shape, bytes):
            return self._of_row(shape)
        *others, barrier, touches = shape
        spans, sorts = list[Span](), list[Hashable]()
        if barrier is not None and barrier[0] == "mbarrier":
            kind, rank, address = barrier
            low = address & OFFSET
            spans.append(Span(("shared", rank), low, low + BARRIER_BYTES, low))
            barrier = kind, rank
        for touch in touches:
            given: Any = self._shapes[touch] if isinstance(touch, int) else None
            if given is None or given[1] not in ("shared", "tensor") or not given[5]:
                sorts.append(touch)
                continue
            verb, space, rank, proxy, width, count, layout, content = given
            addresses = np.frombuffer(content, f"<i{len(content) // count}").astype(np.int64)
            spans.append(_span(space, rank, addresses, width))
            first = int(addresses[0])
            row = first >> 16 if space == "tensor" else first & ~OFFSET
            line = None if layout is None else (layout, first % LARGEST_PERIOD)
            sorts.append((verb, space, rank, proxy, width, row, line, (addresses - first).tobytes()))
        return (*others, barrier, tuple(sorts)), tuple(spans)

    def _of_row(self, shape: bytes) -> tuple[Hashable, tuple[Span, ...]]:
        """The same of a row."""
        numbers = np.frombuffer(shape, np.int64)
        lanes, site = int(numbers[3]), self._sites[int(numbers[0])]
        if site.declared.space != "shared" or not site.width:
            return shape, ()
        lanes = lanes & -lanes if site.one_address else lanes
        live = [_ROW_FIELDS + lane for lane in range(WARP_LANES) if lanes >> lane & 1]
        addresses = numbers[live]
        first = int(addresses[0])
        sort = numbers[:_ROW_FIELDS].tobytes(), first & ~OFFSET, (addresses - first).tobytes()
        return sort, (_span("shared", int(numbers[1]), addresses, site.width),)

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
        (cta, warp, engine), lanes = agents[0]
        shape: Hashable = (
            kind, verb, 0 if cta == base else self._rank(cta, base), warp,
            lanes if len(agents) == 1 else tuple([(agent.warp, some) for agent, some in agents]),
            engine != 0, source.number, declared, number, passed, leave, changes, clash, operation != 0,
            None if group is None else group.kind,
            None if barrier is None else (barrier.kind, self._rank(barrier.cta, base), barrier.address),
            tuple([self._touch(touch, base) for touch in touches]) if touches else (),
        )  # fmt: skip
        found = self._numbers.get(shape)
        if found is not None:
            return found
        barred = kind in ("alloc", "free", "exit") or (barrier is not None and barrier.kind == "warp")
        barred |= kind == "access" and is_strong(declared.semantics)
        reaching = any(touch.space == "global" for touch in touches)
        return self._number(shape, barred=barred, engine=kind == "complete" or engine != 0, reaching=reaching)

    def of_several(self, part: Several, base: Triple) -> _Numbers | None:
        """The numbers of the events of a part, None if one of them belongs to an operation that was issued before."""
        key, same = part.likeness
        rank = 0 if part.cta == base else self._rank(part.cta, base)
        known = self._several.get((rank, key))
        if known is not None and known[0] is same:
            return known[1]
        found = _Numbers([], [], [])
        issued: dict[int, int] = {}
        for at, each in enumerate(part.events()):
            ago = 0
            if each.kind == "issue" and each.operation:
                issued[each.operation] = at
            elif operation := each.agents[0][0].operation:
                if operation not in issued:
                    return None
                ago = at - issued[operation]
            phase = group = NONE
            if each.phase is not None and each.barrier is not None:
                phase = each.phase - part.phase
                found.phases.append(len(found.rows) + PHASE)
            if each.group is not None and each.group.kind in _NUMBERED:
                group = each.group.number - part.group
                found.groups.append(len(found.rows) + GROUP)
            found.rows.extend((self.of(each, base), phase, group, ago))
        if len(self._several) >= _MOST_TOUCHES:
            self._several.clear()
        self._several[rank, key] = same, found
        return found

    def _touch(self, touch: Touch, base: Triple) -> Hashable:
        verb, space, cta, proxy, addresses, width, layout = touch
        if space == "global":
            return verb, proxy, width, len(addresses) > 0
        known = self._touches.get(id(touch))
        if known is not None and known[0] is touch:
            return known[1]
        content = self._contents.get(id(addresses))
        if content is None or content[0] is not addresses:
            if len(self._contents) >= _MOST_TOUCHES:
                self._contents.clear()
            content = self._contents[id(addresses)] = addresses, addresses.tobytes()
        number = self._number((verb, space, self._rank(cta, base), proxy, width, len(addresses), layout, content[1]))
        if len(self._touches) >= _MOST_TOUCHES:
            self._touches.clear()
        self._touches[id(touch)] = touch, number
        return number

    def of_rows(self, rows: Rows, bases: list[Triple]) -> list[int]:
        """The shapes of the rows of a batch, each of a cluster whose first CTA is among `bases`."""
        sites, stores = dict(rows.sites_in()), rows.stores()
        reaching = {number for number, site in sites.items() if site.declared.space == "global"}
        places = rows.live()
        for number in reaching:
            places &= (rows.site != number)[:, None]
        ranks = [self._rank(cta, base) for cta, base in zip(rows.ctas(), bases, strict=True)]
        columns = (
            rows.site[:, None], np.array(ranks)[:, None], rows.warp[:, None], rows.lanes.astype(np.int64)[:, None],
            np.where(stores, rows.changes, True)[:, None], np.where(places, rows.addresses, 0),
        )  # fmt: skip
        table = np.ascontiguousarray(np.concatenate(columns, axis=1, dtype=np.int64))
        size, content = table.shape[1] * table.itemsize, table.tobytes()
        accesses = {number: site for number, site in sites.items() if site.kind == "access"}
        barred = {number for number, site in accesses.items() if is_strong(site.declared.semantics)}
        self._sites |= sites
        numbers, found = rows.site.tolist(), []
        for at, site in enumerate(numbers):
            shape = content[size * at : size * (at + 1)]
            known = self._numbers.get(shape)
            if known is None:
                known = self._number(shape, barred=site in barred, reaching=site in reaching)
            found.append(known)
        return found


def _span(space: str, rank: int, addresses: Array, width: int) -> Span:
    """The bytes, or columns, of an access."""
    if space == "tensor":
        places, width = (addresses & 0xFFFF).tolist(), (width + _WORD - 1) // _WORD
    else:
        places = (addresses & OFFSET).tolist()
    return Span((space, rank), min(places), max(places) + width, places[0])


class Stream:
    """The events of a cluster, in order."""

    def __init__(self, base: Triple, threads: int) -> None:
        self.base = base
        """The first CTA."""
        self.left = threads
        """Threads that have not exited."""
        self.items: list[Item] = []
        self._rows: list[int] = []
        """Their numbers, row after row, as far as they are not in the table."""
        self._table = np.zeros((0, _FIELDS), np.int64)
        self._issued: dict[int, int] = {}
        """The places of events that issue operations."""
        self._taken = 0
        """Events that were taken out."""

    def __len__(self) -> int:
        return len(self.items)

    def add(self, warp_events: WarpEvents, shape: int) -> None:
        """Append events of warps that act together."""
        kind, _, agents, _, _, _, barrier, now, _, group, issued, *_ = warp_events
        ago = 0
        if kind == "issue" and issued:
            if len(self._issued) >= _MOST_OPERATIONS:
                self._issued.clear()
            at = self._taken + len(self.items)
            for number in range(len(agents)):
                self._issued[issued + number] = at
        elif operation := agents[0][0][2]:
            before = self._issued.get(operation, -1)
            # One that was issued too long ago is equal to no other.
            ago = self._taken + len(self.items) - before if before >= 0 else -operation
        phase = NONE if now is None or barrier is None else now
        numbered = NONE if group is None or group.kind not in _NUMBERED else group.number
        self._rows += (shape, phase, numbered, ago)
        self.items.append(warp_events)

    def add_several(self, part: Several, numbers: _Numbers) -> None:
        """Append events that follow each other."""
        self._rows += numbers.of(part)
        self.items += zip(repeat(part), range(len(numbers)), strict=False)

    def add_rows(self, rows: Rows, first: int, numbers: list[int]) -> None:
        """Append rows that follow each other, from the number of the first one on, with the numbers of their shapes."""
        for shape in numbers:
            self._rows += (shape, NONE, NONE, 0)
        self.items += zip(repeat(rows), range(first, first + len(numbers)), strict=False)

    def table(self) -> Array:
        """The numbers of all events."""
        if self._rows:
            more = np.array(self._rows, np.int64).reshape(-1, _FIELDS)
            self._table = np.concatenate((self._table, more)) if len(self._table) else more
            self._rows = []
        return self._table

    def take(self) -> tuple[list[Item], Array]:
        """Take out all events."""
        items, table = self.items, self.table()
        self._taken += len(items)
        self.items, self._table = [], self._table[:0]
        return items, table


def made(item: Item) -> WarpEvents | Row:
    """An item whose events are there."""
    if isinstance(item, WarpEvents):
        return item
    part, number = item
    return (part, number) if isinstance(part, Rows) else part.events()[number]


def events_of(item: Item) -> Iterator[Event]:
    """The events of an item."""
    if isinstance(item, WarpEvents):
        return item.events()
    rows, number = item
    return iter((rows.event(number),)) if isinstance(rows, Rows) else rows.events()[number].events()


def global_touches(item: Item) -> list[Touch]:
    """The places in global memory that an item accesses."""
    if isinstance(item, WarpEvents):
        return [touch for touch in item.touches if touch.space == "global" and touch.verb in _PLACED]
    rows, number = item
    if not isinstance(rows, Rows):
        return rows.in_global(number)
    if rows.sites[int(rows.site[number])].declared.space != "global":
        return []
    return list(rows.event(number).touches)


class Streams:
    """The streams of the clusters that run."""

    def __init__(self, cluster: Triple, threads: int, shapes: Shapes | None = None) -> None:
        self.shapes = Shapes(cluster) if shapes is None else shapes
        self._cluster, self._threads = cluster, threads
        self.by_place: dict[Triple, Stream] = {}

    def add(self, batch: Batch) -> list[Triple]:
        """Append the events of a batch to those of their clusters; the clusters that end with it."""
        ended, rows, shapes = list[Triple](), batch.rows, self.shapes
        streams = self._of_rows(rows)
        numbers = shapes.of_rows(rows, [stream.base for stream in streams]) if streams else []
        at, (x, y, z) = 0, self._cluster
        by_cta: dict[Triple, tuple[Triple, Stream]] = {}
        for row, part in batch.others.parts:
            while at < row:
                at = self._add_rows(rows, streams, numbers, at, row)
            cta = part.agents[0][0].cta if isinstance(part, WarpEvents) else part.cta
            found = by_cta.get(cta)
            if found is None:
                place = (cta[0] // x, cta[1] // y, cta[2] // z)
                found = by_cta[cta] = place, self.of(place)
            place, stream = found
            if not isinstance(part, WarpEvents):
                several = shapes.of_several(part, stream.base)
                if several is not None:
                    stream.add_several(part, several)
                    continue
                for each in part.events():
                    stream.add(each, shapes.of(each, stream.base))
                continue
            stream.add(part, shapes.of(part, stream.base))
            if part.kind == "exit":
                stream.left -= sum(lanes.bit_count() for _, lanes in part.agents)
                if stream.left <= 0:
                    ended.append(place)
        while at < len(streams):
            at = self._add_rows(rows, streams, numbers, at, len(streams))
        return ended

    @staticmethod
    def _add_rows(rows: Rows, streams: list[Stream], numbers: list[int], first: int, end: int) -> int:
        """Append the first of some rows, and those that follow it in its stream; the place after them."""
        stream, at = streams[first], first + 1
        while at < end and streams[at] is stream:
            at += 1
        stream.add_rows(rows, first, numbers[first:at])
        return at

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
