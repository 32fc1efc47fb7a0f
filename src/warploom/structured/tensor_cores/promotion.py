"""Sums over K in registers beside the tensor core's: each K tile's product is scaled and added by its own threads."""

from __future__ import annotations

from math import gcd
from typing import Any

from warploom.hardware.fragments import wgmma_d
from warploom.hardware.mma_shapes import WGMMA_M
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.staging import first_place
from warploom.structured.tensor_cores.blockwise import ColumnFactors, RowFactors
from warploom.structured.tensor_cores.tmem import places_of
from warploom.structured.tensor_cores.wgmma import RegisterTile, Warpgroup, WgmmaOp
from warploom.trace.isa.emit import emit
from warploom.trace.language.control import loop, otherwise, when
from warploom.trace.language.fragments import Accumulator
from warploom.trace.language.operations import fma
from warploom.trace.language.values import Value, literal
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View

_WARP_ROWS, _LOWER = 16, 8


Factors = list[list[Value]]
"""Of a thread: by row, then by piece of the columns that share a factor of B."""


class Product:
    """Registers of a thread for the product of 64 rows of a K tile, and for the factors of all its rows and columns."""

    def __init__(self, accumulator: Accumulator, rows: int, blocks: int) -> None:
        """Columns come in blocks that share a factor."""
        self.accumulator = accumulator
        self.of_rows = [Variable("f32", None) for _ in range(rows)]
        self.of_blocks = [Variable("f32", None) for _ in range(blocks)]


class PromotedSums:
    """A warpgroup's part of a tile: what `core` multiplies, K tile by K tile, each with its factors.

    With two products, the next K tile is multiplied into one while the other is promoted. With one, the other
    warpgroup has the tensor core while this one promotes. Either way the first K tile of a tile is multiplied while the
    tile before it is written.
    """

    def __init__(
        self,
        config: HopperBlockwiseConfig,
        group: Warpgroup,
        core: WgmmaOp,
        rows: RowFactors,
        columns: ColumnFactors,
    ) -> None:
        self._config, self._core, self._rows, self._columns = config, core, rows, columns
        row = group.number * config.consumer_rows + group.warp * _WARP_ROWS + first_place()[0]
        self._first_row = row.to("s32")
        self._places = [subtile * WGMMA_M + row for subtile in range(config.subtiles) for row in (0, _LOWER)]
        self._sums = [Accumulator("f32", wgmma_d(config.BN), None) for _ in range(config.subtiles)]
        self._products = [Product(each, len(self._places), columns.most_blocks) for each in core.accumulators]
        self._piece = gcd(config.BN, config.scale_granularity)
        self._blocks: list[View] = []

    def begin(self, is_there: Value) -> None:
        """Multiply the first K tile of the tile ahead, if there is one."""
        with when(is_there):
            self._multiply_next(self._products[0])

    def add_up(self, tile: Any) -> None:
        """Promote all K tiles of the tile that was begun."""
        self._blocks = self._columns.blocks(tile.n * self._config.BN, tile.batch)
        for sums in self._sums:
            sums.set(0.0)
        self._read_columns(self._products[0], literal(0, "s32"))
        emit("wgmma.wait_group.sync.aligned", 0)  # ptxas counts no groups across the loop of tiles
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
            self._read_columns(product, k)
        self._promote_rows(product, tile)

    def _promote_rows(self, product: Product, tile: Any) -> None:
        """All 64s of rows of a K tile, of which the first has been multiplied, by the same product in turn."""
        factors, last = self._factors(product, tile), self._config.subtiles - 1
        for subtile in range(last + 1):
            emit("wgmma.wait_group.sync.aligned", 0)
            if subtile == last:
                self._core.give_back(1)
            self._promote(product, factors, subtile)
            if subtile < last:
                self._core.multiply(self._core.earlier(1), {subtile + 1: product.accumulator}, accumulate=False)

    def _overlapped(self, tile: Any) -> None:
        """Two K tiles in a turn of the loop, because registers cannot be chosen on the way."""
        even, odd = self._products
        last = tile.k_tiles - 1
        for k in loop(1, last, step=2):
            self._exchange(odd, k, even, tile)
            self._exchange(even, k + 1, odd, tile)
        with when((tile.k_tiles & 1) == 0):
            self._exchange(odd, last, even, tile)
            self._finish(odd, tile)
        with otherwise():
            self._finish(even, tile)

    def _exchange(self, following: Product, k: Value, product: Product, tile: Any) -> None:
        """Multiply K tile `k`, and promote the one before it meanwhile."""
        self._multiply_next(following)
        self._read_columns(following, k)
        factors = self._factors(product, tile)
        emit("wgmma.wait_group.sync.aligned", 1)
        self._core.give_back(2)
        self._promote(product, factors)

    def _finish(self, product: Product, tile: Any) -> None:
        """Promote the last K tile."""
        factors = self._factors(product, tile)
        emit("wgmma.wait_group.sync.aligned", 0)
        self._core.give_back(1)
        self._promote(product, factors)

    def _multiply_next(self, product: Product) -> None:
        """Multiply the first 64 rows of the next K tile; meanwhile read the factors of all of them.

        When the stage is given back, every lane has read what it holds.
        """
        index = self._core.next_stage()
        self._core.multiply(index, {0: product.accumulator}, accumulate=False)
        for place, of_row in zip(self._places, product.of_rows, strict=True):
            of_row.set(self._rows.read(index, self._first_row + place))
        emit("bar.warp.sync", -1)

    def _read_columns(self, product: Product, k: Value) -> None:
        """Read the factors of B for K tile `k`, while it is multiplied."""
        for of_block, loaded in zip(product.of_blocks, self._columns.load(self._blocks, k), strict=True):
            of_block.set(loaded)

    def _factors(self, product: Product, tile: Any) -> Factors:
        """What the elements of a product are worth."""
        config, of_blocks = self._config, [each.get() for each in product.of_blocks]
        starts = range(0, config.BN, self._piece)
        of_columns = [self._columns.of(of_blocks, tile.n * config.BN, start) for start in starts]
        return [[of_row * of_column for of_column in of_columns] for of_row in product.of_rows]

    def _promote(self, product: Product, factors: Factors, subtile: int = 0) -> None:
        """Add the product of 64 rows, scaled; it must be complete."""
        places = places_of(self._config.BN // 2)
        registers = zip(places, self._sums[subtile].registers, product.accumulator.registers, strict=True)
        for (row, column), sum_, value in registers:
            sum_.set(fma(value, factors[2 * subtile + row // _LOWER][column // self._piece], sum_))

    @property
    def tiles(self) -> list[RegisterTile]:
        return [RegisterTile(sums.registers, self._config.stageN) for sums in self._sums]
