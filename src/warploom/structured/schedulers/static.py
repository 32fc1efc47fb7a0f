"""The static persistent scheduler: cluster i of n has the tiles i, i + n, i + 2n and so on."""

from __future__ import annotations

from collections.abc import Iterator

from warploom.structured.cluster import Cluster
from warploom.structured.schedulers.base import GridScheduler, Tile
from warploom.structured.schedulers.raster import RasterOrder, ceil_divide, linear_raster
from warploom.trace.language.control import While
from warploom.trace.language.values import Value, literal, special, valued
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import Index


class StaticScheduler(GridScheduler):
    """Tiles of a grid (m, n, z) that is known at launch, for any number of clusters."""

    def __init__(
        self,
        grid: tuple[Index, Index, Index],
        *,
        cluster: Cluster,
        k_tiles: Index,
        splits: int = 1,
        order: str = RasterOrder.ALONG_M,
        block_swizzle: int = 0,
        swizzle_size: int = 0,
    ) -> None:
        """`swizzle_size` is the height of a supergroup: rows of clusters that are visited before the next column."""
        super().__init__(cluster=cluster, k_tiles=k_tiles, splits=splits, order=order, block_swizzle=block_swizzle)
        m_tiles, n_tiles, layers = (valued(extent, "s32").to("u32") for extent in grid)
        self._clusters = (
            valued(ceil_divide(m_tiles, cluster.shape[0]), "u32"),
            valued(ceil_divide(n_tiles, cluster.shape[1]), "u32"),
        )
        self._layer = self._clusters[0] * self._clusters[1]
        self.total = self._layer * layers
        self._is_flat = layers.literal == 1
        self._first, self._step = linear_cluster(cluster)
        self._swizzle_size = swizzle_size
        self._next = self._first

    def every(self, number: Value, of: int) -> Iterator[Tile]:
        """Iterate over every `of`-th tile of this CTA from its `number`-th, for ping-pong warpgroups."""
        self._check()
        return self._iterate(self._first + number * self._step, self._step * of)

    def _iterate(self, first: Value | None = None, step: Value | None = None) -> Iterator[Tile]:
        index = Variable("u32", self._first if first is None else first)
        for _ in While(lambda: index < self.total):
            at = index.get()
            self._next = at + (self._step if step is None else step)
            yield self.at(at)
            index.set(self._next)
        self._next = self._first  # for the next role

    @property
    def has_next(self) -> Value:
        """True if this CTA has another tile: before the loop its first, in the loop the one after the current."""
        return self._next < self.total

    def at(self, index: Value) -> Tile:
        """Return this CTA's tile of cluster tile `index`."""
        z = literal(0, "u32") if self._is_flat else index // self._layer
        inside = index - z * self._layer
        m, n = linear_raster(inside, self._clusters, self._swizzle_size)
        return self._tile(valued(m, "u32"), valued(n, "u32"), z, self._clusters)


def linear_cluster(cluster: Cluster) -> tuple[Value, Value]:
    """Return the index of this cluster in the launch, and the number of clusters."""
    sizes = (*cluster.shape, 1)
    places = [special(f"ctaid.{axis}") // size for axis, size in zip("xyz", sizes, strict=True)]
    counts = [special(f"nctaid.{axis}") // size for axis, size in zip("xyz", sizes, strict=True)]
    number = (places[2] * counts[1] + places[1]) * counts[0] + places[0]
    return number, counts[0] * counts[1] * counts[2]


def persistent_grid(
    tiles: tuple[int, int, int], cluster: tuple[int, int], multiprocessors: int
) -> tuple[int, int, int]:
    """Return a grid with as many clusters as fit on the GPU, but no more than there are cluster tiles."""
    clusters = -(-tiles[0] // cluster[0]) * -(-tiles[1] // cluster[1]) * tiles[2]
    most = max(multiprocessors // (cluster[0] * cluster[1]), 1)
    return (cluster[0] * min(clusters, most), cluster[1], 1)
