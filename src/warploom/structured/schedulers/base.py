"""The base of all tile schedulers: `for tile in tiles:` is a device loop, once in each role that needs the tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from warploom.diagnostics import Diag, Loc
from warploom.structured.cluster import Cluster
from warploom.structured.schedulers.raster import RasterOrder, raster
from warploom.structured.split_k.workspace import split_range
from warploom.trace.builder import current, here
from warploom.trace.language.operations import max_
from warploom.trace.language.values import Value, select, valued
from warploom.trace.language.views import Index, View

Work = TypeVar("Work")


@dataclass(frozen=True)
class Tile:
    """One output tile of one CTA: `m` counts tiles of `BM` rows, `n` tiles of `MMA_N` columns.

    `k_start` and `k_tiles` are its K range in k-groups: all of K unless K is split. `number` counts the tiles of all
    batches and is the same in every split: an index into a workspace.
    """

    m: Value
    n: Value
    batch: Value
    k_start: Value
    k_tiles: Value
    split: Value
    is_first: Value
    is_final: Value
    number: Value

    @property
    def coord(self) -> tuple[Value, Value, Value]:
        return (self.m, self.n, self.batch)


WorkInfo = Tile
"""The page's name of a scheduler's tile."""


class Scheduler(ABC, Generic[Work]):
    """Hands out tiles, the same to every role; each role iterates over them once."""

    all_threads = False
    """True if all threads of a role must execute the loop, because barriers count them."""

    def __init__(self) -> None:
        self.visited: dict[str, Loc] = {}
        current("A scheduler")

    def __iter__(self) -> Iterator[Work]:
        self._check()
        return self._iterate()

    @abstractmethod
    def _iterate(self) -> Iterator[Work]:
        """Emit the loop of the role being traced."""

    def _check(self) -> None:
        region = current("A scheduler").region
        if not region.role:
            raise Diag.BAD_TILE_LOOP.error(here(), what="no role is open")
        if region.role in self.visited:
            what = f"role `{region.role}` has already iterated over them at {self.visited[region.role]}"
            raise Diag.BAD_TILE_LOOP.error(here(), what=what)
        if self.all_threads and region.kind != "role":
            what = f"the loop is in a device {region.kind} (opened at {region.loc}), but every thread must take part"
            raise Diag.BAD_TILE_LOOP.error(here(), what=what)
        self.visited[region.role] = here()


class GridScheduler(Scheduler[Tile]):
    """Tiles of a grid m × n × z, where z counts batches times the splits of K."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        k_tiles: Index,
        splits: int = 1,
        order: str = RasterOrder.ALONG_M,
        block_swizzle: int = 0,
    ) -> None:
        super().__init__()
        self.locks: View | None = None
        """A lock (s32) per tile, at `Tile.number`, where K is split: `TileWriter.write_splitk` waits for them."""
        self.cluster, self.splits = cluster, splits
        self.order, self.block_swizzle = RasterOrder(order), block_swizzle
        self._k_tiles = valued(k_tiles, "s32").to("u32")
        self._starts: View | None = None

    def with_k_ranges(self, starts: View | None) -> Self:
        """Give each batch its own K range: the K tiles from `starts[batch]` to `starts[batch + 1]`.

        An empty range becomes the K tile after the last, which TMA fills with zeros: no role sees an empty loop.
        """
        self._starts = starts
        return self

    def _tile(self, m: Value, n: Value, z: Value, clusters: tuple[Value, Value]) -> Tile:
        """Return this CTA's tile of cluster (m, n, z)."""
        place = raster(m, n, clusters, self.order, self.block_swizzle)
        ranks = (self.cluster.rank_m, self.cluster.rank_n)
        m, n = (
            valued(at, "u32") * size + rank for at, size, rank in zip(place, self.cluster.shape, ranks, strict=True)
        )
        m_tiles, n_tiles = (count * size for count, size in zip(clusters, self.cluster.shape, strict=True))
        batch, split = z // self.splits, z % self.splits
        start, count = split_range(self._k_tiles, self.splits, split)
        if self._starts is not None:
            first = self._starts[batch].bits("u32")
            count = self._starts[batch + 1].bits("u32") - first
            start, count = select(count == 0, self._k_tiles, first), max_(count, 1)
        return Tile(
            m.to("s32"),
            n.to("s32"),
            batch.to("s32"),
            valued(start, "u32").to("s32"),
            valued(count, "u32").to("s32"),
            split.to("s32"),
            is_first=split == 0,
            is_final=split == self.splits - 1,
            number=((batch * m_tiles + m) * n_tiles + n).to("s32"),
        )
