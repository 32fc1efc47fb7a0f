"""The stream-K scheduler: what would be the last wave of tiles, partly filled, is divided by K tiles among all CTAs.

With it goes one whole wave, where there is one, so that a CTA has at least a tile's work and a tile at most two CTAs;
all others are handed out whole, as by the static scheduler, in full waves.

The K tiles of the streamed tiles stand in a row, of which each CTA has an even share. It walks its share backwards, so
that the part of a tile that it leaves to another comes first; who has a tile's last K tiles writes it. So a CTA waits
only for the first thing that others do, and only for CTAs that were launched before it. The CTAs of a cluster have the
same share of tiles side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from warploom.structured.cluster import Cluster
from warploom.structured.schedulers.base import Scheduler
from warploom.structured.schedulers.static import StaticScheduler, linear_cluster, persistent_grid
from warploom.trace.language.control import While
from warploom.trace.language.operations import max_, min_
from warploom.trace.language.values import Value, literal, select, valued
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index


@dataclass(frozen=True)
class StreamTile:
    """A tile, or those of its K tiles that this CTA has: `k_tiles` of them."""

    m: Value
    n: Value
    batch: Value
    k_tiles: Value
    k_before: Value
    """K tiles of what this CTA had before: stages that another warpgroup has, if they take turns."""
    is_partial: Value
    """Whether the sums are for a CTA that has the tile's last K tiles."""
    partial_ctas: Value
    """How many clusters, those in front of this one, park sums of the tile that this CTA writes."""
    _k_start: Value
    _depth: Value

    def k(self, number: Value) -> Value:
        """Which K tile comes as the number-th; behind the last of a whole tile is its first."""
        at = self._k_start + number
        return select(at < self._depth, at, at - self._depth)


class StreamScheduler(Scheduler[StreamTile]):
    """Tiles of a grid (m, n, z), for a launch of no more clusters than these have K tiles."""

    def __init__(self, grid: tuple[Index, Index, Index], *, cluster: Cluster, k_tiles: Index, band: int = 0) -> None:
        """`band` rows of clusters are walked together before the next column of them."""
        super().__init__()
        self._order = StaticScheduler(grid, cluster=cluster, k_tiles=k_tiles, band=band)
        self._depth = depth = valued(k_tiles, "s32").to("u32")
        number, count = linear_cluster(cluster)
        full = self._order.total // count
        is_uneven = full * count != self._order.total
        waves = full - (is_uneven & (full > 0)).to("u32")
        streamed = self._order.total - waves * count
        each, longer = _shares(streamed * depth, count)
        start = number * each + min_(number, longer)
        stop = start + each + (number < longer).to("u32")
        first, self._last = start // depth, (stop + (depth - 1)) // depth
        self._parts = self._last - first
        self._count = self._parts + waves
        self._whole, self._step = streamed + number - self._parts * count, count
        self._begin, self._end = start - first * depth, stop - (self._last - 1) * depth
        self._partial_ctas = number - _holder(first * depth, each, longer)

    def every(self, number: Value, of: int) -> Iterator[StreamTile]:
        """Every so many tiles of this CTA, from its `number`-th on: for warpgroups of a role that take turns."""
        self._check()
        return self._iterate(number, of)

    def _iterate(self, first: Value | None = None, step: int = 1) -> Iterator[StreamTile]:
        index = Variable("u32", 0 if first is None else first)
        for _ in While(lambda: index < self._count):
            at = index.get()
            yield self._at(at)
            index.set(at + step)

    def _at(self, index: Value) -> StreamTile:
        """What this CTA has at a place in its order: parts of tiles, the last first, then tiles of full waves."""
        is_streamed, none = index < self._parts, literal(0, "u32")
        number = select(is_streamed, self._last - 1 - index, self._whole + index * self._step)
        tile = self._order.at(number)
        (start, stop), before = self._range(index), self._range(index - 1)
        is_whole = stop - start == self._depth
        values = (
            stop - start,
            select(index == 0, none, before[1] - before[0]),
            select(index + 1 == self._parts, self._partial_ctas, none),
            # All CTAs are at about the same K tile at the same time, so that they find it in L2.
            select(is_whole & is_streamed, self._end, start),
            self._depth,
        )
        k_tiles, k_before, partial_ctas, k_start, depth = (value.to("s32") for value in values)
        return StreamTile(
            tile.m, tile.n, tile.batch, k_tiles, k_before, stop < self._depth, partial_ctas, k_start, depth
        )

    def _range(self, index: Value) -> tuple[Value, Value]:
        """From which to which K tile of its tile this CTA has what is at a place in its order."""
        start = select(index + 1 == self._parts, self._begin, literal(0, "u32"))
        return start, select(index == 0, self._end, self._depth)


def _shares(total: Value, clusters: Value) -> tuple[Value, Value]:
    """How many K tiles each cluster has, and how many clusters have one more: the first."""
    each = total // clusters
    return each, total - each * clusters


def _holder(k: Value, each: Value, longer: Value) -> Value:
    """Which cluster has a K tile."""
    end, none = longer * (each + 1), literal(0, "u32")
    is_longer = k < end
    size = max_(each, 1) + is_longer.to("u32")  # where there are no K tiles nobody has one
    return select(is_longer, none, longer) + (k - select(is_longer, none, end)) // size


def stream_grid(
    tiles: tuple[int, int, int], cluster: tuple[int, int], k_tiles: int, multiprocessors: int
) -> tuple[int, int, int]:
    """A launch with a cluster for each place on the GPU, or for each K tile where these are fewer."""
    return persistent_grid((tiles[0], tiles[1], tiles[2] * k_tiles), cluster, multiprocessors)
