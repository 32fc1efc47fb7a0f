"""Equal clusters are judged once: the events of a cluster are kept until it ends, and compared with those before it.

The checker is a function of the events, and clusters share nothing but global memory unless threads synchronise through
it. If the events of a cluster are those of one that was judged, with its CTAs in place of the other's and each array of
global memory displaced as a whole, then every pair of accesses inside the cluster has been judged. Only its accesses to
global memory are then judged, against those of other clusters. A strong access to global memory ends this: the clusters
are then judged event by event, in the order of the run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import STRONG, GlobalTouch
from warploom.checker.observer import Checker
from warploom.machine.core.events import Batch, Declared, Event, Placed, Rows, Started, Touch, WarpEvents

Array = npt.NDArray[Any]
_MOST_KEPT = 1 << 16
"""Rows and other events that are kept for clusters that have not ended."""
_MOST_MODELS = 4
"""Clusters that others are compared with."""
_MOST_MISSES = 8
"""Clusters that may differ from all models before the comparison is given up."""


@dataclass
class _Stream:
    """The events of a cluster: runs of rows of native code, and the other events, each after so many rows."""

    base: Triple
    """The first CTA."""
    left: int
    """Threads that have not exited."""
    rows: list[Rows] = field(default_factory=list)
    warp_events: list[tuple[int, WarpEvents]] = field(default_factory=list)
    count: int = 0
    """Rows."""

    def joined(self) -> Rows | None:
        """All rows."""
        if len(self.rows) > 1:
            self.rows = [Rows.joined(self.rows)]
        return self.rows[0] if self.rows else None

    def events(self) -> Iterator[Event]:
        """All events in order."""
        rows = self.joined()
        made = iter(()) if rows is None else rows.events()
        at = 0
        for place, warp_events in self.warp_events:
            for _ in range(place - at):
                yield next(made)
            at = place
            yield from warp_events.events()
        yield from made


@dataclass
class _Model:
    """A cluster that was judged: its events, its accesses to global memory, and what it added to the report."""

    stream: _Stream
    touches: list[GlobalTouch]
    events: int
    assumed: Counter[str]
    relaxed: Counter[str]
    converged: int
    polled: int


class Clusters:
    """An observer that hands the events of a run to a checker, cluster by cluster where that is the same."""

    needs_completions = False

    def __init__(self, checker: Checker) -> None:
        self.checker = checker
        self._streams: dict[Triple, _Stream] = {}
        self.models: list[_Model] = []
        self._kept = self._misses = 0
        self._threads = 0
        self.shape: Triple = (1, 1, 1)
        self._is_direct = False
        self._placed: list[Placed] = []
        self._bases: list[int] = []

    def on_start(self, started: Started) -> None:
        """Take the shape of the launch."""
        self.checker.on_start(started)
        self.shape = started.cluster
        size = self.shape[0] * self.shape[1] * self.shape[2]
        self._threads = size * started.block[0] * started.block[1] * started.block[2]
        self._is_direct = started.shape[0] * started.shape[1] * started.shape[2] <= size
        self._placed = sorted(started.arrays, key=lambda array: array.base)
        self._bases = [array.base for array in self._placed]

    def on_events(self, batch: Batch) -> None:
        """Keep the events of each cluster; judge those of a cluster that ends."""
        if not self._is_direct and (self._kept > _MOST_KEPT or _synchronises(batch)):
            self._give_up()
        if self._is_direct:
            for event in batch.events():
                self.checker.on_event(event)
            return
        for place in self._add(batch):
            if place in self._streams:  # a cluster with a finding has all others judged at once
                self._judge(self._streams.pop(place))

    def finish(self) -> None:
        """Judge the clusters that have not ended."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            self._play(stream)

    def _give_up(self) -> None:
        """From now on, hand every event to the checker as it comes."""
        self._is_direct = True
        self.finish()
        self.models.clear()

    def _add(self, batch: Batch) -> list[Triple]:
        """Append the events of a batch to those of their clusters; the clusters that end with it."""
        ended, starts, rows = list[Triple](), dict[Triple, list[int]](), batch.rows
        x, y, z = self.shape
        if len(rows):
            across, down, _ = rows.shape
            cta = rows.cta
            number = (cta // (across * down) // z * down + cta // across % down // y) * across + cta % across // x
            for each in np.unique(number).tolist():
                found = (number == each).nonzero()[0]
                place = each % across, each // across % down, each // (across * down)
                self._stream(place).rows.append(rows.part(found))
                starts[place] = found.tolist()
        for row, warp_events in batch.others.together:
            cta_ = warp_events.agents[0][0].cta
            place = cta_[0] // x, cta_[1] // y, cta_[2] // z
            stream = self._stream(place)
            before = bisect_left(starts[place], row) if place in starts else 0
            stream.warp_events.append((stream.count + before, warp_events))
            if warp_events.kind == "exit":
                stream.left -= sum(lanes.bit_count() for _, lanes in warp_events.agents)
                if stream.left <= 0:
                    ended.append(place)
        for place, found in starts.items():
            self._streams[place].count += len(found)
        self._kept += len(batch)
        return ended

    def _stream(self, place: Triple) -> _Stream:
        found = self._streams.get(place)
        if found is None:
            x, y, z = self.shape
            found = self._streams[place] = _Stream((place[0] * x, place[1] * y, place[2] * z), self._threads)
        return found

    def _judge(self, stream: _Stream) -> None:
        """Judge a cluster that has ended."""
        self._kept -= len(stream.warp_events) + stream.count
        for model in self.models:
            moves = _Comparison(self, stream, model.stream).moves()
            if moves is not None:
                self._repeat(model, stream, moves)
                return
        checker = self.checker
        rules, agents, memories = checker.rules, checker.agents, checker.memories
        if len(self.models) >= _MOST_MODELS:
            self._misses += 1
            self._play(stream)
            if self._misses >= _MOST_MISSES:
                self._give_up()
            return
        assumed, relaxed = Counter(rules.assumed), Counter(rules.relaxed)
        events, converged, polled = checker.events, agents.converged, memories.polled
        memories.recorded = touches = list[GlobalTouch]()
        self._play(stream)
        memories.recorded = None
        if len(checker.findings):  # each cluster then adds its own
            self._give_up()
            return
        self.models.append(
            _Model(
                stream,
                touches,
                checker.events - events,
                Counter(rules.assumed) - assumed,
                Counter(rules.relaxed) - relaxed,
                agents.converged - converged,
                memories.polled - polled,
            )
        )

    def _play(self, stream: _Stream) -> None:
        for event in stream.events():
            self.checker.on_event(event)

    def _repeat(self, model: _Model, stream: _Stream, moves: dict[int, int]) -> None:
        """Count a cluster that is equal to a model, and judge its accesses to global memory against other clusters."""
        checker = self.checker
        checker.events += model.events
        checker.rules.assumed.update(model.assumed)
        checker.rules.relaxed.update(model.relaxed)
        checker.agents.converged += model.converged
        checker.memories.polled += model.polled
        components = checker.agents.cluster(stream.base)
        ctas = {old: new for new, old in _pairs_of_ctas(stream.base, model.stream.base, self.shape)}
        for access, addresses, width in model.touches:
            move = moves.get(self.array_of(int(addresses[0])), 0)
            checker.memories.repeat(access, ctas[access.cta], components, addresses + move, width)
        checker.agents.forget(components.place)
        if len(checker.findings):
            self._give_up()

    def array_of(self, address: int) -> int:
        """The base of the array in global memory that an address belongs to, or -1 if it is in none."""
        at = bisect_right(self._bases, address) - 1
        if at < 0 or address >= self._placed[at].base + self._placed[at].size:
            return -1
        return self._bases[at]


def _pairs_of_ctas(new: Triple, old: Triple, shape: Triple) -> Iterator[tuple[Triple, Triple]]:
    """The CTAs of two clusters that correspond to each other."""
    for i in range(shape[0]):
        for j in range(shape[1]):
            for k in range(shape[2]):
                yield (new[0] + i, new[1] + j, new[2] + k), (old[0] + i, old[1] + j, old[2] + k)


class _Comparison:
    """Two streams of events, compared up to the names of CTAs and operations and the places in global memory."""

    def __init__(self, clusters: Clusters, new: _Stream, old: _Stream) -> None:
        self._clusters, self._new, self._old = clusters, new, old
        self._ctas = dict(_pairs_of_ctas(new.base, old.base, clusters.shape))
        self._moves: dict[int, int] = {}
        self._operations: dict[int, int] = {}
        self._same: set[tuple[int, int]] = set()
        """Touches that were found equal, by their identity: both streams keep them."""

    def moves(self) -> dict[int, int] | None:
        """The distance by which each array has moved in the new stream; None if the streams differ."""
        new, old = self._new, self._old
        if new.count != old.count or len(new.warp_events) != len(old.warp_events):
            return None
        for (one_place, one), (other_place, other) in zip(new.warp_events, old.warp_events, strict=True):
            if one_place != other_place or not self._is_equal(one, other):
                return None
        rows = new.joined()
        if rows is not None:
            before = old.joined()
            assert before is not None
            if not self._are_equal(rows, before):
                return None
        return self._moves

    def _is_equal(self, new: WarpEvents, old: WarpEvents) -> bool:
        """Compare two events, or the events of warps that act together."""
        (
            kind, verb, agents, source, touches, declared, barrier, phase, number, group, operation, passed, leave,
            changes,
        ) = new  # fmt: skip
        if (
            source.instruction is not old.source.instruction
            or (kind, verb, phase, number, passed, leave, changes)
            != (old.kind, old.verb, old.phase, old.number, old.passed, old.leave, old.changes)
            or (declared is not old.declared and declared != old.declared)
            or (group is not old.group and group != old.group)
            or len(agents) != len(old.agents)
            or not self._same_operation(operation, old.operation)
        ):
            return False
        ctas = self._ctas
        for (one, lanes), (other, others) in zip(agents, old.agents, strict=True):
            if lanes != others or one.warp != other.warp or ctas[one.cta] != other.cta:
                return False
            if not self._same_operation(one.operation, other.operation):
                return False
        before = old.barrier
        if barrier is not before:
            if barrier is None or before is None or barrier.kind != before.kind or barrier.name != before.name:
                return False
            if barrier.address != before.address or ctas.get(barrier.cta) != before.cta:
                return False
        return (not touches and not old.touches) or self._same_touches(touches, old.touches)

    def _same_operation(self, new: int, old: int) -> bool:
        """Operations are numbered through the whole run; 0 is none."""
        return new == old == 0 or (new != 0 != old and self._operations.setdefault(new, old) == old)

    def _same_touches(self, new: tuple[Touch, ...], old: tuple[Touch, ...]) -> bool:
        """Compare what events touch; the warps of a warpgroup, and the steps of a loop, share it."""
        pair = id(new), id(old)
        if pair in self._same:
            return True
        if len(new) != len(old) or not all(self._same_touch(*each) for each in zip(new, old, strict=True)):
            return False
        self._same.add(pair)
        return True

    def _same_touch(self, new: Touch, old: Touch) -> bool:
        if new.verb != old.verb or new.space != old.space or new.proxy != old.proxy or new.width != old.width:
            return False
        if new.space == "global":
            return self._moved(new.addresses, old.addresses)
        if new.cta is None:
            if old.cta is not None or new.space in ("shared", "tensor"):
                return False
        elif self._ctas.get(new.cta) != old.cta:
            return False
        one, other = new.addresses, old.addresses
        return one is other or (one.shape == other.shape and one.tobytes() == other.tobytes())

    def _moved(self, new: Array, old: Array) -> bool:
        """True if addresses in global memory are displaced as all others in their array."""
        if len(new) != len(old):
            return False
        if not len(new):
            return True
        base = self._clusters.array_of(int(old[0]))
        if base < 0 or self._clusters.array_of(int(new[0])) != base:
            return False
        move = self._moves.setdefault(base, int(new[0]) - int(old[0]))
        return bool((new - old == move).all())

    def _are_equal(self, new: Rows, old: Rows) -> bool:
        """Compare the rows of two streams."""
        if not (
            np.array_equal(new.site, old.site)
            and np.array_equal(new.warp, old.warp)
            and np.array_equal(new.lanes, old.lanes)
            and (~new.stores() | (new.changes == old.changes)).all()
        ):
            return False
        if any(self._ctas[one] != other for one, other in zip(new.ctas(), old.ctas(), strict=True)):
            return False
        global_rows = np.isin(new.site, [number for number, site in new.sites_in() if site.declared.space == "global"])
        live = new.live()
        if not (np.where(live, new.addresses == old.addresses, True).all(axis=1) | global_rows).all():
            return False
        for row in global_rows.nonzero()[0].tolist():
            lanes = live[row]
            if not self._moved(new.addresses[row, lanes], old.addresses[row, lanes]):
                return False
        return True


def _synchronises(batch: Batch) -> bool:
    """True if a thread may synchronise with other clusters in these events: it accesses global memory strongly."""
    sites = [site for _, site in batch.rows.sites_in() if site.kind == "access" and site.declared.space != "shared"]
    if any(_is_strong(site.declared) for site in sites):
        return True
    return any(
        warp_events.kind == "access"
        and _is_strong(warp_events.declared)
        and any(touch.space == "global" for touch in warp_events.touches)
        for _, warp_events in batch.others.together
    )


def _is_strong(declared: Declared) -> bool:
    return declared.semantics in STRONG or declared.semantics.startswith("atomic")
