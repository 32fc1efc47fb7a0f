"""Stale loads: under the schedule `weak`, an ordinary load may miss what another cluster stored since the last acquire.

A load of global memory returns what its warp could see when it last acquired: by a load, an atomic or a fence with
acquire semantics at the scope of the GPU, or through a barrier from a warp that had. It always sees the stores of its
own cluster, and words that strong loads or atomics touch are never stale, so that no warp reads one word backwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.memory.byte_memory import WIDTHS, GlobalMemory

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cluster
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
_MOST = 4096
"""Stores that are remembered; what older ones replaced is seen by all."""


@dataclass(frozen=True, slots=True, eq=False)
class _Replaced:
    """A store to global memory that was committed: its bytes, in the order of their places, and those before it."""

    number: int
    cluster: Cluster
    places: Array
    before: Array
    after: Array


@dataclass(slots=True)
class History:
    """The stores to global memory of one grid, as far as a load may miss them."""

    memory: GlobalMemory
    latest: int = 0
    _stores: list[_Replaced] = field(default_factory=list)
    _words: set[int] = field(default_factory=set)
    """Bytes of words that strong loads and atomics touch."""

    def stored(self, cluster: Cluster, addresses: Array, width: int, before: Array) -> None:
        """Remember a store that has been committed; `before` are the bytes that it replaced, as [lane, byte]."""
        self.latest += 1
        places = (addresses[:, None] + np.arange(width)).reshape(-1)
        after = self.bytes_at(addresses, width)
        order = np.argsort(places, kind="stable")
        parts = places[order], before.reshape(-1)[order], after.reshape(-1)[order]
        self._stores.append(_Replaced(self.latest, cluster, *parts))
        if len(self._stores) > _MOST:
            del self._stores[: _MOST // 2]

    def bytes_at(self, addresses: Array, width: int) -> Array:
        """The bytes at some addresses, as [lane, byte]."""
        found: Array = self.memory.load(addresses.astype(np.uint64), width, None, "a store")
        return np.ascontiguousarray(found).view(np.uint8).reshape(-1, width)

    def touched(self, address: int | Array, width: int, mask: Array | None) -> None:
        """A strong load or an atomic touches some words."""
        places = [address] if isinstance(address, int) else (address if mask is None else address[mask]).tolist()
        self._words.update(at + byte for at in set(places) for byte in range(width))

    def seen(self, g: Group, address: int | Array, width: int, value: Any) -> Any:
        """The value that an ordinary load returns: the present one, less what its warp need not see yet."""
        knowledge = g.cta.cluster.knowledge
        acquired = self.latest if knowledge is None else knowledge.acquired(g.number)
        if acquired >= self.latest or not self._stores:
            return value
        at = np.atleast_1d(np.asarray(address, np.int64))
        places = (at[:, None] + np.arange(width)).reshape(-1)
        found = np.atleast_1d(np.asarray(value, WIDTHS[width])).view(np.uint8).copy()
        final = np.zeros(len(places), np.bool_)
        for store in reversed(self._stores):
            if store.number <= acquired:
                break
            self._undo(store, g.cta.cluster, places, found, final)
        stale = found.view(WIDTHS[width])
        return int(stale[0]) if isinstance(value, int) else stale if np.ndim(value) else stale[0]

    def _undo(self, store: _Replaced, cluster: Cluster, places: Array, found: Array, final: Array) -> None:
        """Replace the bytes of a store by those before it, unless the reader's cluster or an atomic wrote later."""
        where = np.searchsorted(store.places, places)
        where[where == len(store.places)] = 0
        hit = (store.places[where] == places) & ~final
        if not hit.any():
            return
        if store.cluster is cluster:
            final |= hit
            return
        hit &= found == store.after[where]
        if self._words:
            hit &= ~np.isin(places, np.fromiter(self._words, np.int64, len(self._words)))
        found[hit] = store.before[where[hit]]


__all__ = ["History"]
