"""The stream-K scheduler: the partly filled last wave of tiles is divided by K tiles among all CTAs.

One full wave, if there is one, is divided with it, so that a CTA has at least the work of one tile and a tile at most
two CTAs. The other tiles are handed out whole in full waves, as by the static scheduler.

The K tiles of the streamed tiles are numbered consecutively, and each CTA has an even share. It processes its share
backwards, so that the part of a tile that it leaves to another CTA comes first; the CTA with a tile's last K tiles
writes it. A CTA therefore waits only for the first thing that other CTAs do, and only for CTAs with a lower index: no
circular wait is possible. The CTAs of a cluster have the same share of adjacent tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from warploom.structured.cluster import Cluster
from warploom.structured.schedulers.base import GridScheduler, Scheduler, Tile
from warploom.structured.schedulers.static import StaticScheduler, linear_cluster, persistent_grid
from warploom.trace.language.control import While
from warploom.trace.language.operations import max_, min_
from warploom.trace.language.values import Value, literal, select, valued
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index


@dataclass(frozen=True)
class StreamTile:
    """A tile, or the part of it that this CTA has: `k_tiles` of its K tiles."""

    m: Value
    n: Value
    batch: Value
    k_tiles: Value
    k_before: Value
    """K tiles of this CTA's previous tile: the stages of the other warpgroup, with ping-pong."""
    is_partial: Value
    """True if the accumulators are a partial result for the CTA that has the tile's last K tiles."""
    partial_ctas: Value
    """The number of preceding clusters that store partial results of the tile that this CTA writes."""
    _k_start: Value
    _per_tile: Value

    def k(self, number: Value) -> Value:
        """Return the K tile to process as the `number`-th; a whole tile wraps around to its first K tile."""
        at = self._k_start + number
        return select(at < self._per_tile, at, at - self._per_tile)


class StreamScheduler(Scheduler[StreamTile]):
    """Tiles of a grid (m, n, z), for a launch with at most as many clusters as there are K tiles."""

    def __init__(self, grid: tuple[Index, Index, Index], *, cluster: Cluster, k_tiles: Index, **order: Any) -> None:
        """`order` are the options of a `StaticScheduler`, which has the same tiles."""
        super().__init__()
        self._order = StaticScheduler(grid, cluster=cluster, k_tiles=k_tiles, **order)
        self._per_tile = per_tile = valued(k_tiles, "s32").to("u32")
        number, count = linear_cluster(cluster)
        # If the last wave is partly filled, it is streamed together with one full wave; `waves` are handed out whole.
        full = self._order.total // count
        is_uneven = full * count != self._order.total
        waves = full - (is_uneven & (full > 0)).to("u32")
        streamed = self._order.total - waves * count
        # This cluster has the streamed K tiles from `start` to `stop`: parts of the tiles from `first` to `_last`.
        each, longer = _shares(streamed * per_tile, count)
        start = number * each + min_(number, longer)
        stop = start + each + (number < longer).to("u32")
        first, self._last = start // per_tile, (stop + (per_tile - 1)) // per_tile
        self._parts = self._last - first
        self.count = self._parts + waves
        """Tiles, and parts of tiles, of this CTA."""
        # Work item `index` of the whole tiles is tile `_whole + index * _step`; the parts come before them.
        self._whole, self._step = streamed + number - self._parts * count, count
        self._begin, self._end = start - first * per_tile, stop - (self._last - 1) * per_tile
        self._partial_ctas = number - _holder(first * per_tile, each, longer)

    def every(self, number: Value, of: int) -> Iterator[StreamTile]:
        """Iterate over every `of`-th tile of this CTA from its `number`-th, for ping-pong warpgroups."""
        self._check()
        return self._iterate(number, of)

    def _iterate(self, first: Value | None = None, step: int = 1) -> Iterator[StreamTile]:
        index = Variable("u32", 0 if first is None else first)
        for _ in While(lambda: index < self.count):
            at = index.get()
            yield self._at(at)
            index.set(at + step)

    def _at(self, index: Value) -> StreamTile:
        """Return this CTA's work item `index`: parts of streamed tiles, the last first, then tiles of full waves."""
        is_streamed, none = index < self._parts, literal(0, "u32")
        tile = self._tile(index)
        (start, stop), before = self._range(index), self._range(index - 1)
        is_whole = stop - start == self._per_tile
        values = (
            stop - start,
            select(index == 0, none, before[1] - before[0]),
            select(index + 1 == self._parts, self._partial_ctas, none),
            # All CTAs are at about the same K tile at the same time, so that they hit it in L2.
            select(is_whole & is_streamed, self._end, start),
            self._per_tile,
        )
        k_tiles, k_before, partial_ctas, k_start, per_tile = (value.to("s32") for value in values)
        return StreamTile(
            tile.m, tile.n, tile.batch, k_tiles, k_before, stop < self._per_tile, partial_ctas, k_start, per_tile
        )

    def in_order(self, index: Value) -> Tile:
        """Return the same work item with its K tiles in order, as a part of a tile that is split along K."""
        start, stop = self._range(index)
        k = {"k_start": start.to("s32"), "k_tiles": (stop - start).to("s32")}
        return replace(self._tile(index), **k, is_first=start == 0, is_final=stop == self._per_tile)

    def _tile(self, index: Value) -> Tile:
        number = select(index < self._parts, self._last - 1 - index, self._whole + index * self._step)
        return self._order.at(number)

    def _range(self, index: Value) -> tuple[Value, Value]:
        """Return the K range of this CTA's work item `index` inside its tile."""
        start = select(index + 1 == self._parts, self._begin, literal(0, "u32"))
        return start, select(index == 0, self._end, self._per_tile)


class StreamedTiles(GridScheduler):
    """The tiles of a `StreamScheduler` for kernels that add the parts of a tile in order, under the locks of split-K.

    The part with a tile's first K tiles waits for none, and every other for a CTA with a lower index.
    """

    def __init__(self, grid: tuple[Index, Index, Index], *, cluster: Cluster, k_tiles: Index, **order: Any) -> None:
        super().__init__(cluster=cluster, k_tiles=k_tiles, **order)
        self._stream = StreamScheduler(grid, cluster=cluster, k_tiles=k_tiles, **order)

    def _iterate(self) -> Iterator[Tile]:
        index = Variable("u32", 0)
        for _ in While(lambda: index < self._stream.count):
            at = index.get()
            yield self._stream.in_order(at)
            index.set(at + 1)


def _shares(total: Value, clusters: Value) -> tuple[Value, Value]:
    """Return the K tiles per cluster, and the number of leading clusters that have one more."""
    each = total // clusters
    return each, total - each * clusters


def _holder(k: Value, each: Value, longer: Value) -> Value:
    """Return the cluster that has K tile `k`."""
    end, none = longer * (each + 1), literal(0, "u32")
    is_longer = k < end
    size = max_(each, 1) + is_longer.to("u32")  # avoids a division by zero where there are no K tiles
    return select(is_longer, none, longer) + (k - select(is_longer, none, end)) // size


def stream_grid(
    tiles: tuple[int, int, int], cluster: tuple[int, int], k_tiles: int, multiprocessors: int
) -> tuple[int, int, int]:
    """Return a grid with as many clusters as fit on the GPU, but no more than there are K tiles."""
    return persistent_grid((tiles[0], tiles[1], tiles[2] * k_tiles), cluster, multiprocessors)
