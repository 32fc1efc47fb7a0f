"""Equal clusters are judged once: the events of a cluster are kept until it ends, and compared with those before it.

The checker is a function of the events, and clusters share nothing but global memory unless threads synchronise through
it. If the events of a cluster are those of one that was judged, with its CTAs in place of the other's and each array of
global memory displaced as a whole, then every pair of accesses inside the cluster has been judged. Only its accesses to
global memory are then judged, against those of other clusters. A strong access to global memory ends this: the clusters
are then judged event by event, in the order of the run. Inside a cluster, equal passes of loops are judged once
(`equal_passes.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.checker.equal_passes import Passes
from warploom.checker.event_streams import SHAPE, Item, Shapes, Stream, Streams, events_of, global_touches
from warploom.checker.model.clocks import Triple
from warploom.checker.model.memories import GlobalTouch, Unjudged, is_strong
from warploom.checker.observer import Checker
from warploom.checker.recurrence.state import Reach
from warploom.machine.observers.events import Batch, Placed, Started, Touch, WarpEvents

Array = npt.NDArray[Any]
_MOST_KEPT = 1 << 16
"""Events that are kept for clusters that have not ended, those of warps that act together as one."""
_MOST_MODELS = 4
"""Clusters that others are compared with."""
_MOST_MISSES = 8
"""Clusters that may differ from all models before the comparison is given up."""


@dataclass
class _Model:
    """A cluster that was judged: its events, its accesses to global memory, and what it added to the report."""

    base: Triple
    table: Array
    """The numbers of its events."""
    reaching: list[Item]
    """Its events that access global memory."""
    touches: list[GlobalTouch]
    """Its accesses to global memory as they are judged."""
    events: int
    assumed: Counter[str]
    relaxed: Counter[str]
    converged: int
    polled: int

    @cached_property
    def places(self) -> list[Touch]:
        """Its accesses to global memory, as the events name them."""
        return _places(self.reaching)


class Clusters:
    """An observer that hands the events of a run to a checker, cluster by cluster where that is the same.

    With `reach`, how far back events may refer, equal passes of loops are judged once. `shapes` has those of other runs
    of the launch, by the shape of the cluster.
    """

    needs_completions = False

    def __init__(
        self, checker: Checker, reach: Reach | None = None, shapes: dict[Triple, Shapes] | None = None
    ) -> None:
        self.checker, self._reach = checker, reach
        self._shapes = {} if shapes is None else shapes
        self._streams = Streams((1, 1, 1), 0)
        self.models: list[_Model] = []
        self._misses = 0
        self.shape: Triple = (1, 1, 1)
        self._is_direct = False
        self._alone: Passes | None = None
        """The passes of the only cluster, whose events are judged as they come."""
        self.left_out = 0
        """Events of equal passes."""
        self._placed: list[Placed] = []
        self._bases: list[int] = []

    def on_start(self, started: Started) -> None:
        """Take the shape of the launch."""
        self.checker.on_start(started)
        self.shape = started.cluster
        size = self.shape[0] * self.shape[1] * self.shape[2]
        threads = size * started.block[0] * started.block[1] * started.block[2]
        self._streams = Streams(self.shape, threads, self._shapes.setdefault(self.shape, Shapes(self.shape)))
        if started.shape[0] * started.shape[1] * started.shape[2] <= size:
            self._is_direct = self._reach is None
            self._alone = self._passes((0, 0, 0))
        self._placed = sorted(started.arrays, key=lambda array: array.base)
        self._bases = [array.base for array in self._placed]

    def on_events(self, batch: Batch) -> None:
        """Keep the events of each cluster; judge those of a cluster that ends."""
        if not self._is_direct and (self._streams.kept() > _MOST_KEPT or _synchronises(batch)):
            self._give_up()
        if self._is_direct:
            for event in batch.events():
                self.checker.on_event(event)
            return
        ended = self._streams.add(batch)
        if self._alone is not None:
            self._alone.judge(*self._streams.of((0, 0, 0)).take())
            self.left_out = self._alone.left_out
            return
        for place in ended:
            if place in self._streams.by_place:  # a cluster with a finding has all others judged at once
                self._judge(self._streams.by_place.pop(place))

    def finish(self) -> None:
        """Judge the clusters that have not ended."""
        if self._alone is not None:
            self._alone.finish()
        streams = list(self._streams.by_place.values())
        self._streams.by_place.clear()
        for stream in streams:
            for item in stream.items:
                for event in events_of(item):
                    self.checker.on_event(event)

    def _give_up(self) -> None:
        """From now on, hand every event to the checker as it comes."""
        if self._alone is not None and self.left_out:
            raise Unjudged
        self._is_direct = True
        self.finish()
        self._alone = None
        self.models.clear()

    def _passes(self, base: Triple) -> Passes | None:
        if self._reach is None:
            return None
        ctas = {new for new, _ in _pairs_of_ctas(base, base, self.shape)}
        return Passes(self.checker, self._streams.shapes, ctas, self._reach)

    def _judge(self, stream: Stream) -> None:
        """Judge a cluster that has ended."""
        table = stream.table()
        reaching = np.flatnonzero(self._streams.shapes.reaching()[table[:, SHAPE]]).tolist()
        items = [stream.items[at] for at in reaching]
        equal = [model for model in self.models if np.array_equal(table, model.table)]
        places = _places(items) if equal else []
        for model in equal:
            moves = self._moves(places, model.places)
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
                stream.base,
                table,
                items,
                touches,
                checker.events - events,
                Counter(rules.assumed) - assumed,
                Counter(rules.relaxed) - relaxed,
                agents.converged - converged,
                memories.polled - polled,
            )
        )

    def _play(self, stream: Stream) -> None:
        passes = self._passes(stream.base)
        if passes is None:
            for item in stream.items:
                for event in events_of(item):
                    self.checker.on_event(event)
            return
        passes.judge(*stream.take())
        passes.finish()
        self.left_out += passes.left_out

    def _moves(self, new: list[Touch], old: list[Touch]) -> dict[int, int] | None:
        """The distance by which each array has moved; None if accesses to one have moved by different distances."""
        moves: dict[int, int] = {}
        for one, other in zip_longest(new, old):
            if one is None or other is None or len(one.addresses) != len(other.addresses):
                return None
            if not len(one.addresses):
                continue
            first, before = int(one.addresses[0]), int(other.addresses[0])
            base = self.array_of(before)
            if base < 0 or self.array_of(first) != base:
                return None
            move = moves.setdefault(base, first - before)
            if first - before != move or (one.addresses - other.addresses != move).any():
                return None
        return moves

    def _repeat(self, model: _Model, stream: Stream, moves: dict[int, int]) -> None:
        """Count a cluster that is equal to a model, and judge its accesses to global memory against other clusters."""
        checker = self.checker
        checker.events += model.events
        checker.rules.assumed.update(model.assumed)
        checker.rules.relaxed.update(model.relaxed)
        checker.agents.converged += model.converged
        checker.memories.polled += model.polled
        components = checker.agents.cluster(stream.base)
        ctas = {old: new for new, old in _pairs_of_ctas(stream.base, model.base, self.shape)}
        for access, addresses, width in model.touches:
            move = moves.get(self.array_of(int(addresses[0])), 0)
            checker.memories.repeat(access, ctas.get(access.cta, access.cta), components, addresses + move, width)
        checker.agents.forget(components.place)
        if len(checker.findings):
            self._give_up()

    def array_of(self, address: int) -> int:
        """The base of the array in global memory that an address belongs to, or -1 if it is in none."""
        at = bisect_right(self._bases, address) - 1
        if at < 0 or address >= self._placed[at].base + self._placed[at].size:
            return -1
        return self._bases[at]


def _places(reaching: list[Item]) -> list[Touch]:
    return [touch for item in reaching for touch in global_touches(item)]


def _pairs_of_ctas(new: Triple, old: Triple, shape: Triple) -> Iterator[tuple[Triple, Triple]]:
    """The CTAs of two clusters that correspond to each other."""
    for i in range(shape[0]):
        for j in range(shape[1]):
            for k in range(shape[2]):
                yield (new[0] + i, new[1] + j, new[2] + k), (old[0] + i, old[1] + j, old[2] + k)


def _synchronises(batch: Batch) -> bool:
    """True if a thread may synchronise with other clusters in these events: it accesses global memory strongly."""
    sites = [site for _, site in batch.rows.sites_in() if site.kind == "access" and site.declared.space != "shared"]
    if any(is_strong(site.declared.semantics) for site in sites):
        return True
    accesses = [each for _, each in batch.others.parts if isinstance(each, WarpEvents) and each.kind == "access"]
    return any(
        is_strong(each.declared.semantics) and any(touch.space == "global" for touch in each.touches)
        for each in accesses
    )
