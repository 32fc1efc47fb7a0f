"""Shared memory of a CTA, seen by two proxies.

Ordinary loads and stores use the generic view; the copy engine and the tensor cores use the async view. Under the
eager schedule both are one array. Under every other one a generic store reaches the async view only by a
`fence.proxy.async`: the writer's own, or one by a warp that synchronised after the store. Without it the async proxy
reads the bytes that were there before, as hardware may.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.memory import SHIFTS, FlatMemory, padded

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
POISON_BYTE = 0xFF


class SharedMemory(FlatMemory):
    """One CTA's shared memory; `whole` and `async_whole` are indexed by offset, the reserved first bytes included."""

    def __init__(self, rank: int, reserved: int, size: int, *, two_views: bool) -> None:
        self.whole = padded(reserved + size)
        self.whole.fill(POISON_BYTE)
        self.async_whole = self.whole.copy() if two_views else self.whole
        self.two_views = two_views
        self.epoch = 0
        self._unfenced: list[tuple[int, int, Array, int]] = []
        super().__init__(self.whole[reserved:], (rank << RANK_SHIFT) + reserved, size, "shared")
        self.reserved, self.rank = reserved, rank

    def offset(self, address: int) -> int:
        """The offset of a shared::cta address in `whole`."""
        return address & OFFSET_MASK

    def write(self, address: int | Array, value: Any, width: int, mask: Array | None, what: str, warp: int) -> None:
        """A generic store by a warp; remembered until a proxy fence where the views are apart."""
        self.store(address, value, width, mask, what)
        if self.two_views:
            offsets = np.atleast_1d(np.asarray(address, np.int64)) - self.base + self.reserved
            if mask is not None and len(offsets) == len(mask):
                offsets = offsets[mask]
            self._unfenced.append((warp, self.epoch, offsets, width))

    def synchronised(self) -> None:
        """Some warps have met: what was written before is now known to them."""
        self.epoch += 1

    def fence_async(self, warp: int) -> None:
        """`fence.proxy.async` by a warp: what it wrote, and what it learnt of, reaches the async view."""
        if not self.two_views:
            return
        kept = []
        for record in self._unfenced:
            writer, epoch, offsets, width = record
            if writer == warp or epoch < self.epoch:
                wide = (offsets >> SHIFTS[width]).astype(np.int64)
                dtype = self.views[width].dtype
                self.async_whole.view(dtype)[wide] = self.whole.view(dtype)[wide]
            else:
                kept.append(record)
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
