"""Writes that other threads have observed through their location: the observation order of the PTX ISA (8.9.2).

A strong write is before a strong read that finds its value, or the value of an atomic that found it, and so it is
before everything after that read. A thread that finds a counter complete may therefore reset it by an ordinary store:
the atomics of the others come before it, although the fences before these atomics do not cover them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from warploom.checker.model.clocks import Clock, Components, G, Triple
from warploom.checker.model.shadow import Access

Place = tuple[str, Triple | None, int]
"""A location: its space, its CTA and its address."""
_Time = tuple[Triple, int, int]
"""A cluster, a component of its clocks, and a time of it."""
_MOST, _KEPT = 1 << 12, 16
"""Writes and reads of a location that are remembered, and chains; it is sound to forget some."""


@dataclass(slots=True)
class _Chain:
    """The latest strong store to a location and the atomics since, in the order of the run."""

    length: int = 0
    written: dict[_Time, int] = field(default_factory=dict)
    """The place in the chain of each write, and of the read that belongs to it."""
    found: list[tuple[_Time, int]] = field(default_factory=list)
    """Reads, each with the length of the chain that it found."""


class Observations:
    """The chains of all locations with strong accesses."""

    def __init__(self) -> None:
        self._chains: dict[Place, list[_Chain]] = {}
        """Of each location, the latest chains, the present one last."""

    def write(self, place: Place, components: Components, component: int, time: int, *, is_atomic: bool) -> None:
        """Add a strong write; one by a store, not by an atomic, begins a new chain."""
        chains = self._chains.setdefault(place, [])
        if not chains or not is_atomic or len(chains[-1].written) >= _MOST:
            chains.append(_Chain())
            del chains[:-_KEPT]
        chain = chains[-1]
        chain.written[components.place, component, time] = chain.length
        chain.length += 1

    def read(
        self, place: Place, components: Components, component: int, time: int, *, is_atomic: bool, steers: bool
    ) -> None:
        """Add a strong read; one that does not steer control may find an older value in another interleaving."""
        chain = self._chains.setdefault(place, [_Chain()])[-1]
        now = (components.place, component, time)
        if is_atomic and len(chain.written) < _MOST:
            chain.written[now] = chain.length
        if steers and len(chain.found) < _MOST:
            chain.found.append((now, chain.length))

    def is_ordered(self, places: list[Place], old: Access, clock: Clock, components: Components) -> bool:
        """True if a strong write to some of these places was found by a read that an agent of this knowledge knows."""
        if old.value is None:
            return False
        key = (old.components.place, old.component, old.value)
        chains = [chain for place in places for chain in self._chains.get(place, ()) if key in chain.written]
        return bool(chains) and all(
            any(
                length > chain.written[key] and _knows(clock, components, *read)
                for read, length in reversed(chain.found)
            )
            for chain in chains
        )

    def forget(self, ctas: set[Triple]) -> None:
        """Drop the locations of CTAs that have ended."""
        self._chains = {place: chains for place, chains in self._chains.items() if place[1] not in ctas}


def _knows(clock: Clock, components: Components, cluster: Triple, component: int, time: int) -> bool:
    if cluster == components.place:
        return clock.knows(G, component, time)
    return clock.knows_of(cluster, G, component, time)
