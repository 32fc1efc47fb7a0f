"""Shared memory of a CTA, seen by two proxies.

Ordinary loads and stores use the generic view; the copy engine and the tensor cores use the async view. Under the
eager schedule both are one array. Under every other one a generic store reaches the async view only by a
`fence.proxy.async`: the writer's own, or one by a warp that synchronised after the store (`proxy_visibility`).
Without it the async proxy reads the bytes that were there before, as hardware may. What the async proxy writes, both
see.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.core.names import symbol_at
from warploom.machine.memory.byte_memory import SHIFTS, FlatMemory, padded
from warploom.machine.memory.proxy_visibility import Knowledge

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
POISON_BYTE = 0xFF
_FEW_STORES = 1024
"""Unfenced stores that are kept before those that later ones have covered are dropped."""


class SharedMemory(FlatMemory):
    """One CTA's shared memory; `whole` and `async_whole` are indexed by offset, the reserved first bytes included.

    With `knowledge` the two views are apart. Every byte then has the number of the generic store that last wrote it, so
    that a fence publishes a store's bytes only where no later store, which the fence may not cover, lies over them.
    """

    def __init__(self, rank: int, reserved: int, size: int, knowledge: Knowledge | None = None) -> None:
        self.whole = padded(reserved + size)
        self.whole.fill(POISON_BYTE)
        self.knowledge, self.two_views = knowledge, knowledge is not None
        self.async_whole = self.whole.copy() if self.two_views else self.whole
        self._stores = np.zeros(len(self.whole) if self.two_views else 0, np.int64)
        self._unfenced: list[tuple[int, int, Array, int]] = []
        self._most = _FEW_STORES
        super().__init__(self.whole[reserved:], (rank << RANK_SHIFT) + reserved, size, "shared")
        self.reserved, self.rank = reserved, rank
        self.symbols: dict[str, int] = {}

    def describe(self, address: int) -> str:
        """Where an address lies, and in or behind which variable."""
        rank = address >> RANK_SHIFT
        if rank != self.rank:
            return f"address {address:#x} names the CTA of rank {rank} of the cluster; this one has rank {self.rank}"
        named = symbol_at(self.symbols, address - self.base)
        return super().describe(address) + (f", `{named}`" if named else "")

    def offset(self, address: int) -> int:
        """The offset of a shared::cta address in `whole`."""
        return address & OFFSET_MASK

    def write(self, address: int | Array, value: Any, width: int, mask: Array | None, what: str, warp: int) -> None:
        """A generic store by a warp of the cluster; remembered until a proxy fence where the views are apart."""
        self.store(address, value, width, mask, what)
        if self.knowledge is None:
            return
        offsets = np.atleast_1d(np.asarray(address, np.int64)) - self.base + self.reserved
        if mask is not None and len(offsets) == len(mask):
            offsets = offsets[mask]
        rows, number = offsets >> SHIFTS[width], self.knowledge.stored(warp)
        self._stores.reshape(-1, width)[rows] = number
        self._unfenced.append((number, warp, rows, width))
        if len(self._unfenced) > self._most:
            self._unfenced = [record for record in self._unfenced if self._uncovered(record).any()]
            self._most = max(_FEW_STORES, 2 * len(self._unfenced))

    def _uncovered(self, record: tuple[int, int, Array, int]) -> Array:
        """Which bytes of a store no later one has written, as [element, byte]."""
        number, _, rows, width = record
        found: Array = self._stores.reshape(-1, width)[rows] == number
        return found

    def fence_async(self, warp: int) -> None:
        """`fence.proxy.async` by a warp of the cluster: what it wrote and what it knows of reaches the async view."""
        if self.knowledge is None:
            return
        known, kept = self.knowledge.of[warp], []
        for record in self._unfenced:
            number, writer, rows, width = record
            if number > known[writer]:
                kept.append(record)
                continue
            row, byte = np.nonzero(self._uncovered(record))
            places = rows[row] * width + byte
            self.async_whole[places] = self.whole[places]
        self._unfenced = kept

    def async_write(self, offset: int, data: Bytes) -> None:
        """The async proxy wrote a run of bytes; its completion makes them visible to both."""
        self.whole[offset : offset + len(data)] = data
        if self.two_views:
            self.async_whole[offset : offset + len(data)] = data

    def async_scatter(self, index: Array, values: Array) -> None:
        """The async proxy wrote 16-byte granules."""
        self.whole.view(np.complex128)[index] = values
        if self.two_views:
            self.async_whole.view(np.complex128)[index] = values
