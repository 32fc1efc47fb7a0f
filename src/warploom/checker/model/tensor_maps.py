"""Tensor maps in global memory, which copies read through the tensormap proxy.

A CTA finds what was written to a map if the write was *released* to that proxy (`tensormap.cp_fenceproxy`, or
`fence.proxy.tensormap::generic.release`), a thread of the CTA that came after the release has then *acquired* the map
(`fence.proxy.tensormap::generic.acquire`), and the thread that uses the map comes after that (PTX ISA 9.7.13.4). No
other CTA can acquire it for this one, and a fence before the write is none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from warploom.checker.model.agents import Agents, Lanes, Warp
from warploom.checker.model.clocks import PM, Clock, G, Triple, X, fitted
from warploom.checker.model.memories import Memories, Unjudged
from warploom.checker.model.releases import make_ready
from warploom.checker.model.shadow import Access, Acquire
from warploom.checker.rules import Rules, covers
from warploom.hardware.tensor_maps import MAP_BYTES
from warploom.machine.observers.events import Event

_CLUSTER, _DEVICE = 1, 2
_REACH = {"cta": 0, "cluster": _CLUSTER, "gpu": _DEVICE, "sys": _DEVICE}
"""The reach of each scope."""


class TensorMaps:
    """The fences of tensor maps: each notes in the writes that it acquires where they may be used from now on."""

    def __init__(self, agents: Agents, rules: Rules, memories: Memories) -> None:
        self._agents, self._rules, self._memories = agents, rules, memories
        self._released: dict[tuple[int, Triple], npt.NDArray[np.int32]] = {}
        """By the reach of a release and a cluster, the latest action of each component that was released so far."""
        self._acquired: set[tuple[int, Triple]] = set()
        """The maps that a thread of a CTA has acquired, with or without a write in this launch."""

    def use(self, access: Access) -> None:
        """A copy reads its map: what was there before the launch is known to a CTA that has acquired it."""
        if (access.map, access.cta) not in self._acquired and None in self._memories.last_writes(access.map, MAP_BYTES):
            self._rules.assumed["tensor-maps"] += 1

    def pass_over(self, address: int, warp: Warp, lanes: int, clock: Clock) -> None:
        """A copy that is not judged, as an equal one was, reads its map: fences that the issuer knows of already must
        have acquired it, since knowledge only grows.
        """
        for write in self._memories.last_writes(address, MAP_BYTES):
            fences = () if write is None or write.acquired is None else write.acquired.get((address, warp.cta), ())
            if write is not None and not any(covers(each, warp.number, lanes, clock) for each in fences):
                raise Unjudged
        self._memories.pass_over_map(address, MAP_BYTES)

    def fence(self, event: Event, warp: Warp) -> None:
        """A fence of the tensormap proxy: an acquire of a map, a release of one, or of everything."""
        parts = self._agents.act(warp, event.lanes)
        addresses = {int(at) for touch in event.touches if touch.space == "global" for at in touch.addresses}
        if event.semantics == "acquire":
            for address in sorted(addresses):
                for part in parts:
                    self._acquire(event, warp, part, address)
        elif event.touches:
            for address in sorted(addresses):
                self._publish(event, warp, parts, address)
        else:
            for part in parts:
                part.clock.fence(PM)
                _make_ready(part, warp, event.scope)
                for place, rows in ((warp.components.place, part.clock.rows), *(part.clock.others or {}).items()):
                    self._note(event.scope, place, rows[G])

    def _publish(self, event: Event, warp: Warp, parts: list[Lanes], address: int) -> None:
        """`tensormap.cp_fenceproxy` releases what it has written and nothing else: that gets its own component."""
        component = warp.components.of(("map copy", warp.cta, warp.number))
        own = warp.cta, warp.number, event.source.number, warp.time - 1
        for write in self._memories.last_writes(address, MAP_BYTES):
            if write is not None and (write.cta, write.warp, write.source.number, write.value) == own:
                write.component, write.value = component, warp.time
        values = np.zeros(warp.components.capacity, np.int32)
        values[component] = warp.time
        for part in parts:
            part.clock.fit(warp.components)
            part.clock.set(component, warp.time, (X, G, PM))
            _make_ready(part, warp, event.scope)
        self._note(event.scope, warp.components.place, values)

    def _note(self, scope: str, place: Triple, values: npt.NDArray[np.int32]) -> None:
        """Remember how far actions of a cluster were released."""
        key = (_REACH[scope], place)
        held = self._released.get(key)
        size = max(len(values), 0 if held is None else len(held))
        found = self._released[key] = np.zeros(size, np.int32)
        for each in (values, held):
            if each is not None:
                np.maximum(found[: len(each)], each, out=found[: len(each)])

    def _acquire(self, event: Event, warp: Warp, part: Lanes, address: int) -> None:
        """A thread acquires a map for its CTA: the writes that were released and that it comes after."""
        place = address, warp.cta
        self._acquired.add(place)
        for write in self._memories.last_writes(address, MAP_BYTES):
            if write is None or not self._finds(event, warp, part, write):
                continue
            if write.acquired is None:
                write.acquired = {}
            held = write.acquired.get(place, ())
            if all(each.component != part.component for each in held):  # who knows of a later one knows of it
                fence = Acquire(part.component, warp.time, warp.number, part.mask & event.lanes)
                write.acquired[place] = (*held, fence)

    def _finds(self, event: Event, warp: Warp, part: Lanes, write: Access) -> bool:
        """True if a write was released to the proxy before an acquire, by fences whose scopes include both threads."""
        seen = (each.clock for each in part.seen if not part.mask & ~each.lanes)
        known = part.given(part.mask & event.lanes, warp.components), *seen
        if write.value is None or not any(_knows(clock, warp, write) for clock in known):
            return False
        if write.cta == warp.cta:
            return True
        needed = _CLUSTER if write.components is warp.components else _DEVICE
        reached = (self._released.get((reach, write.components.place)) for reach in range(needed, _DEVICE + 1))
        return _REACH[event.scope] >= needed and any(
            values is not None and len(values) > write.component and values[write.component] >= write.value
            for values in reached
        )

    def forget(self, ctas: set[Triple]) -> None:
        """Drop what CTAs that have ended have acquired."""
        self._acquired = {place for place in self._acquired if place[1] not in ctas}


def _knows(clock: Clock, warp: Warp, write: Access) -> bool:
    """True if a clock has a write among what was released to the proxy."""
    assert write.value is not None
    if write.components is warp.components:
        return clock.knows(PM, write.component, write.value)
    return clock.knows_of(write.components.place, PM, write.component, write.value)


def _make_ready(part: Lanes, warp: Warp, scope: str) -> None:
    """Let the next relaxed store publish what was released to the proxy."""
    given = part.given(part.mask, warp.components)
    ready = warp.components.clock()
    for each in part.fenced:  # of fences before, which a relaxed store releases too
        if each.lanes == part.mask and each.scope == scope:
            ready.join(each.clock)
    rows = ready.rows = fitted(ready.rows, given.rows.shape[1])
    np.maximum(rows[PM, : given.rows.shape[1]], given.rows[PM], out=rows[PM, : given.rows.shape[1]])
    for place, others in (given.others or {}).items():
        ready.learn_of(place, others, slice(PM, PM + 1))
    make_ready(part, warp, ready, scope)
