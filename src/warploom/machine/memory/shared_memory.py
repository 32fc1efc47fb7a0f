"""Shared memory of a CTA, seen by two proxies.

Ordinary loads and stores use the generic view; TMA and the tensor cores use the async view. Under the
eager schedule both are one array. Under every other one a generic store reaches the async view only by a
`fence.proxy.async`: the writer's own, or one by a warp that synchronised after the store (`proxy_visibility`).
Without it the async proxy reads the bytes that were there before, as hardware may. An operation in flight sees what was
stored before its issue only if its issuer knew of the fence; what is stored after its issue it sees as soon as that is
published. Both views contain what the async proxy writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.core.names import symbol_at
from warploom.machine.memory.byte_memory import SHIFTS, FlatMemory, padded
from warploom.machine.memory.proxy_visibility import Knowledge, Sight

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
POISON_BYTE = 0xFF
_FEW_STORES = 1024
"""Unfenced stores that are kept before those that later ones have covered are dropped."""
_FEW_FENCES = 16
"""Publications that are kept before those of which no byte is left are dropped."""


@dataclass(slots=True, eq=False)
class _Publication:
    """Bytes of one warp's stores that a fence made visible to the async proxy, and what was seen there before.

    `fences` are that fence and later ones that cover the same stores, by warps that knew of them: (warp, number of the
    fence, latest store of the writer that it covers).
    """

    number: int
    writer: int
    places: Array
    stores: Array
    before: Bytes
    first: int
    end: int
    fences: list[tuple[int, int, int]]

    newest: int
    """The latest of the stores."""

    def covered(self, row: list[int]) -> int:
        """The latest store that is visible to a warp, by the fences that it knows of."""
        found = 0
        for warp, number, latest in self.fences:
            if latest > found and number <= row[warp]:
                found = latest
        return found


class SharedMemory(FlatMemory):
    """One CTA's shared memory; `whole` and `async_whole` are indexed by offset, the reserved first bytes included.

    With `knowledge` the two views are apart. Every byte then has the number of the generic store that last wrote it, so
    that a fence publishes a store's bytes only where no later store, which the fence may not cover, lies over them.
    """

    def __init__(self, rank: int, reserved: int, size: int, knowledge: Knowledge | None = None) -> None:
        self.whole = padded(reserved + size)
        super().__init__(self.whole[reserved:], (rank << RANK_SHIFT) + reserved, size, "shared")
        self.reserved, self.rank = reserved, rank
        self.symbols: dict[str, int] = {}
        self.begin(knowledge)

    def begin(self, knowledge: Knowledge | None = None, *, apart: bool = False) -> None:
        """Begin as the memory of another CTA: nothing may be read before it is written.

        The two views are `apart` without knowledge where every fence publishes all generic stores.
        """
        self.whole.fill(POISON_BYTE)
        self.knowledge, self.two_views = knowledge, apart or knowledge is not None
        if not self.two_views:
            self.async_whole = self.whole
            return
        self.async_whole = self.whole.copy()
        if knowledge is None:
            return
        self._stores = np.zeros(len(self.whole), np.int64)
        self._unfenced: list[tuple[int, int, Array, int]] = []
        self._most = _FEW_STORES
        self._published = np.zeros(len(self.whole), np.int64)
        self._publications: list[_Publication] = []
        self._most_published = _FEW_FENCES
        self._count = 0

    def describe(self, address: int) -> str:
        """Describe an address: the variable that it is in or after."""
        rank = address >> RANK_SHIFT
        if rank != self.rank:
            return f"address {address:#x} names the CTA of rank {rank} of the cluster; this one has rank {self.rank}"
        named = symbol_at(self.symbols, address - self.base)
        return super().describe(address) + (f", `{named}`" if named else "")

    def offset(self, address: int) -> int:
        """The offset of a shared::cta address in `whole`."""
        return address & OFFSET_MASK

    def write(
        self, address: int | Array, value: Any, width: int, mask: Array | None, what: str, warp: int,
        number: int | None = None,
    ) -> None:  # fmt: skip
        """A generic store by a warp of the cluster; remembered until a proxy fence where the views are apart.

        `number` is that of a store which was executed earlier.
        """
        if self.knowledge is None or mask is not None or isinstance(address, int) or self.reserved % width:
            self.store(address, value, width, mask, what)
            self.wrote(address, width, mask, warp, number)
            return
        index = self.index(address, width, what)
        self.views[width][index] = value
        self._note(index.astype(np.int64) + self.reserved // width, width, warp, number)

    def wrote(self, address: int | Array, width: int, mask: Array | None, warp: int, number: int | None = None) -> None:
        """Remember a generic store that a warp has made to valid addresses."""
        if self.knowledge is None:
            return
        offsets = np.atleast_1d(np.asarray(address, np.int64)) - (self.base - self.reserved)
        if mask is not None and len(offsets) == len(mask):
            offsets = offsets[mask]
        self._note(offsets >> SHIFTS[width], width, warp, number)

    def _note(self, rows: Array, width: int, warp: int, number: int | None) -> None:
        """Remember a generic store by its elements of so many bytes."""
        assert self.knowledge is not None
        number = self.knowledge.stored(warp) if number is None else number
        self._stores.reshape(-1, width)[rows] = number
        self._unfenced.append((number, warp, rows, width))
        if len(self._unfenced) > self._most:
            self._unfenced = [record for record in self._unfenced if self._uncovered(record).any()]
            self._most = max(_FEW_STORES, 2 * len(self._unfenced))

    def _uncovered(self, record: tuple[int, int, Array, int]) -> Array:
        """The bytes of a store that no later one has written, as [element, byte]."""
        number, _, rows, width = record
        found: Array = self._stores.reshape(-1, width)[rows] == number
        return found

    def fence_async(self, warp: int) -> None:
        """`fence.proxy.async` by a warp of the cluster: what it wrote and what it knows of reaches the async view."""
        if self.knowledge is None:
            if self.two_views:
                np.copyto(self.async_whole, self.whole)
            return
        if not (self._unfenced or self._publications):
            return
        known, kept, stored = self.knowledge.of[warp].tolist(), [], dict[tuple[int, int], list[tuple[int, Array]]]()
        for record in self._unfenced:
            number, writer, rows, width = record
            if number > known[writer]:
                kept.append(record)
            else:
                stored.setdefault((writer, width), []).append((number, rows))
        self._unfenced = kept
        published = dict[int, list[tuple[Array, int]]]()
        for (writer, width), stores in stored.items():
            rows = np.concatenate([each for _, each in stores])
            numbers = np.repeat([number for number, _ in stores], [len(each) for _, each in stores])
            uncovered = self._stores.reshape(-1, width)[rows] == numbers[:, None]
            if uncovered.all():
                published.setdefault(writer, []).append((rows, width))
            elif uncovered.any():
                places = (rows[:, None] * width + np.arange(width))[uncovered]
                published.setdefault(writer, []).append((places, 1))
        fence = self.knowledge.stored(warp)
        for each in self._publications:
            # A warp that knows a fence of all these stores passes that on: a second one adds nothing.
            latest, covered = known[each.writer], each.covered(known)
            if each.newest > covered < latest:
                each.fences.append((warp, fence, latest))
        for writer, runs in published.items():
            self._publish(fence, warp, writer, *_joined(runs))
        if len(self._publications) > self._most_published:
            kept_ = [each for each in self._publications if (self._published[each.places] == each.number).any()]
            self._publications, self._most_published = kept_, max(_FEW_FENCES, 2 * len(kept_))

    def _publish(self, fence: int, warp: int, writer: int, rows: Array, width: int) -> None:
        """Make stored elements of so many bytes visible to the async proxy, and remember what it saw before."""
        assert self.knowledge is not None
        self._count += 1
        latest, bounds = int(self.knowledge.of[warp, writer]), (int(rows.min()) * width, (int(rows.max()) + 1) * width)
        seen = self.async_whole.reshape(-1, width)
        stores, before = self._stores.reshape(-1, width)[rows].reshape(-1), seen[rows].reshape(-1)
        fences, newest = [(warp, fence, latest)], int(stores.max())
        places = rows if width == 1 else (rows[:, None] * width + np.arange(width)).reshape(-1)
        self._publications.append(_Publication(self._count, writer, places, stores, before, *bounds, fences, newest))
        self._published.reshape(-1, width)[rows] = self._count
        seen[rows] = self.whole.reshape(-1, width)[rows]

    def seen_by(self, sight: Sight | None, first: int, end: int) -> Bytes:
        """The async view of an operation, of which it reads the bytes from `first` up to `end`."""
        if sight is None or not self.two_views:
            return self.async_whole
        view = self.async_whole
        for each in self._publications:
            if each.first >= end or each.end <= first:
                continue
            covered = min(each.covered(row) for row in sight.rows)
            if covered >= each.newest:
                continue
            hidden = (each.stores > covered) & (each.stores <= sight.latest)
            if hidden.any():
                hidden &= self._published[each.places] == each.number
                if view is self.async_whole:
                    view = view.copy()
                view[each.places[hidden]] = each.before[hidden]
        return view

    def overwritten(self, offset: int, size: int) -> None:
        """Forget what was published where the async proxy has written since."""
        if self.knowledge is not None:
            self._published[offset : offset + size] = 0

    def async_write(self, offset: int, data: Bytes) -> None:
        """The async proxy wrote a run of bytes; its completion makes them visible to both."""
        self.whole[offset : offset + len(data)] = data
        if self.two_views:
            self.async_whole[offset : offset + len(data)] = data
            self.overwritten(offset, len(data))

    def async_scatter(self, index: Array, values: Array) -> None:
        """The async proxy wrote 16-byte granules."""
        self.whole.view(np.complex128)[index] = values
        if self.two_views:
            self.async_whole.view(np.complex128)[index] = values
        if self.knowledge is not None:
            self._published.reshape(-1, 16)[index] = 0


def _joined(runs: list[tuple[Array, int]]) -> tuple[Array, int]:
    """Elements with their bytes, as elements of one size."""
    if len(runs) == 1:
        return runs[0]
    return np.concatenate([(rows[:, None] * width + np.arange(width)).reshape(-1) for rows, width in runs]), 1
