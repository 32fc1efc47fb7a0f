"""Sums over K in registers beside the tensor core's: each K tile's product is scaled and added by its own threads."""

from __future__ import annotations

from math import gcd
from typing import Any

from warploom.facts.fragments import wgmma_d
from warploom.facts.mma_shapes import WGMMA_M
from warploom.structured.blockwise import ColumnFactors, RowFactors
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig
from warploom.structured.staging import first_place
from warploom.structured.tensor_memory import places_of
from warploom.structured.warp_group_barrier import WarpGroupBarrier
from warploom.structured.wgmma import RegisterTile, Warpgroup, WgmmaOp
from warploom.trace.control import loop, otherwise, when
from warploom.trace.fragments import Accumulator
from warploom.trace.instructions import emit
from warploom.trace.memory import View
from warploom.trace.operations import fma
from warploom.trace.values import Value
from warploom.trace.variables import Variable

_WARP_ROWS, _LOWER = 16, 8


class Product:
    """Registers of a thread for the product of 64 rows of a K tile, and for what it is worth.

    Factors of A are by row, of all rows that the thread has in the K tile; what elements are worth is by row, then by
    block of columns that share a factor of B.
    """

    def __init__(self, accumulator: Accumulator, rows: int, blocks: int) -> None:
        self.accumulator = accumulator
        self.of_rows = [Variable("f32", None) for _ in range(rows)]
        self.worth = [[Variable("f32", None) for _ in range(blocks)] for _ in range(rows)]


class PromotedSums:
    """A warpgroup's part of a tile: what `core` multiplies, K tile by K tile, each with its factors.

    With one product, the other warpgroup has the tensor core while this one promotes. With two, the next K tile is
    multiplied into one while the other is promoted. Either way the first K tile of a tile is multiplied while the tile
    before it is written.
    """

    def __init__(
        self,
        config: HopperBlockwiseConfig,
        group: Warpgroup,
        core: WgmmaOp,
        rows: RowFactors,
        columns: ColumnFactors,
    ) -> None:
        self._config, self._group, self._core, self._rows, self._columns = config, group, core, rows, columns
        row = group.number * config.consumer_rows + group.warp * _WARP_ROWS + first_place()[0]
        self._first_row = row.to("s32")
        self._places = [subtile * WGMMA_M + row for subtile in range(config.subtiles) for row in (0, _LOWER)]
        self._sums = [Accumulator("f32", wgmma_d(config.BN), None) for _ in range(config.subtiles)]
        self._products = [Product(each, len(self._places), columns.most_blocks) for each in core.accumulators]
        self._piece = gcd(config.BN, config.scale_granularity)
        self._blocks: list[View] = []

    def begin_first(self, is_there: Value) -> None:
        """Begin the first tile: both warpgroups at once, or one when the other has its first product."""
        if not self._config.staggered:
            self.begin(is_there)
            return
        barrier = WarpGroupBarrier(2 * self._group.threads)
        with when(self._group.number == 1):
            barrier.wait()
        self.begin(is_there)
        emit("wgmma.wait_group.sync.aligned", 0)
        with when(self._group.number == 0):
            barrier.arrive()

    def begin(self, is_there: Value) -> None:
        """Multiply the first K tile of the tile ahead, if there is one."""
        with when(is_there):
            self._multiply_next(self._products[0])

    def add_up(self, tile: Any) -> None:
        """Promote all K tiles of the tile that was begun."""
        self._blocks = self._columns.blocks(tile.n * self._config.BN, tile.batch)
        for sums in self._sums:
            sums.set(0.0)
        emit("wgmma.wait_group.sync.aligned", 0)  # ptxas counts no groups across the loop of tiles
        self._weigh(self._products[0], 0)
        if self._config.depth:
            self._overlapped(tile)
        else:
            self._one_by_one(tile)

    def end(self) -> None:
        """Behind the last tile nothing is in flight; ptxas wants to be told."""
        emit("wgmma.wait_group.sync.aligned", 0)

    def _one_by_one(self, tile: Any) -> None:
        """Each product is promoted before the next is multiplied."""
        (product,) = self._products
        for k in loop(1, tile.k_tiles):
            self._promote_rows(product, tile)
            self._multiply_next(product)
            self._weigh(product, k)
        self._promote_rows(product, tile)

    def _promote_rows(self, product: Product, tile: Any) -> None:
        """All 64s of rows of a K tile, of which the first has been multiplied, by the same product in turn."""
        last = self._config.subtiles - 1
        for subtile in range(last + 1):
            emit("wgmma.wait_group.sync.aligned", 0)
            if subtile == last:
                self._core.give_back(1)
            self._promote(product, tile, subtile)
            if subtile < last:
                self._core.multiply(self._core.earlier(1), {subtile + 1: product.accumulator}, accumulate=False)

    def _overlapped(self, tile: Any) -> None:
        """Two K tiles in a turn of the loop, because registers cannot be chosen on the way."""
        even, odd = self._products
        last = tile.k_tiles - 1
        for k in loop(1, last, step=2):
            self._exchange(odd, k, even, tile)
            self._exchange(even, k + 1, odd, tile)
        with when(tile.k_tiles & 1 == 0):
            self._exchange(odd, last, even, tile)
            self._finish(odd, tile)
        with otherwise():
            self._finish(even, tile)

    def _exchange(self, following: Product, k: Value, product: Product, tile: Any) -> None:
        """Multiply K tile `k`, and promote the one before it meanwhile."""
        self._multiply_next(following)
        self._weigh(following, k)
        emit("wgmma.wait_group.sync.aligned", 1)
        self._core.give_back(2)
        self._promote(product, tile)

    def _finish(self, product: Product, tile: Any) -> None:
        emit("wgmma.wait_group.sync.aligned", 0)
        self._core.give_back(1)
        self._promote(product, tile)

    def _multiply_next(self, product: Product) -> None:
        """Multiply the first 64 rows of the next K tile; meanwhile read the factors of all of them.

        When the stage is given back, every lane has read what it holds.
        """
        index = self._core.next_stage()
        self._core.multiply(index, {0: product.accumulator}, accumulate=False)
        for place, of_row in zip(self._places, product.of_rows, strict=True):
            of_row.set(self._rows.read(index, self._first_row + place))
        emit("bar.warp.sync", -1)

    def _weigh(self, product: Product, k: Value | int) -> None:
        """Find what the elements of K tile `k` are worth, while they are multiplied."""
        of_blocks = self._columns.load(self._blocks, k)
        for of_row, worth in zip(product.of_rows, product.worth, strict=True):
            for of_block, each in zip(of_blocks, worth, strict=True):
                each.set(of_row * of_block)

    def _promote(self, product: Product, tile: Any, subtile: int = 0) -> None:
        """Add the product of 64 rows, scaled; it must be complete."""
        config, first = self._config, tile.n * self._config.BN
        starts = range(0, config.BN, self._piece)
        of_rows = [[each.get() for each in row] for row in product.worth[2 * subtile : 2 * subtile + 2]]
        factors = [[self._columns.of(worth, first, start) for start in starts] for worth in of_rows]
        registers = zip(self._sums[subtile].registers, product.accumulator.registers, strict=True)
        for (row, column), (sum_, value) in zip(places_of(config.BN // 2), registers, strict=True):
            sum_.set(fma(value, factors[row // _LOWER][column // self._piece], sum_))

    @property
    def tiles(self) -> list[RegisterTile]:
        return [RegisterTile(sums.registers, self._config.stageN) for sums in self._sums]
