"""Sums over K in registers beside the tensor core's: each K tile's product is scaled and added by its own threads."""

from __future__ import annotations

from math import gcd
from typing import Any

from warploom.hardware.fragments import wgmma_d
from warploom.hardware.mma_shapes import WGMMA_M
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.staging import first_place
from warploom.structured.tensor_cores.blockwise import ColumnScales, RowScales
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


Scales = list[list[Value]]
"""Of a thread: by row, then by piece of the columns that share a factor of B."""


class KTileAccumulator:
    """Registers of a thread for the product of 64 rows of a K tile, and for the factors of all its rows and columns."""

    def __init__(self, accumulator: Accumulator, rows: int, blocks: int) -> None:
        """Columns come in blocks that share a factor."""
        self.accumulator = accumulator
        self.row_scales = [Variable("f32", None) for _ in range(rows)]
        self.block_scales = [Variable("f32", None) for _ in range(blocks)]


class PromotedAccumulators:
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
        rows: RowScales,
        columns: ColumnScales,
    ) -> None:
        self._config, self._core, self._rows, self._columns = config, core, rows, columns
        row = group.number * config.consumer_rows + group.warp * _WARP_ROWS + first_place()[0]
        self._first_row = row.to("s32")
        self._places = [block * WGMMA_M + row for block in range(config.subtiles) for row in (0, _LOWER)]
        self._accumulators = [Accumulator("f32", wgmma_d(config.BN), None) for _ in range(config.subtiles)]
        self._partials = [KTileAccumulator(each, len(self._places), columns.most_blocks) for each in core.accumulators]
        self._piece = gcd(config.BN, config.scale_granularity)
        self._blocks: list[View] = []

    def begin(self, has_next: Value) -> None:
        """Multiply the first K tile of the tile ahead, if there is one."""
        with when(has_next):
            self._issue_next(self._partials[0])

    def accumulate(self, tile: Any) -> None:
        """Promote all K tiles of the tile that was begun."""
        self._blocks = self._columns.blocks(tile.n * self._config.BN, tile.batch)
        for accumulator in self._accumulators:
            accumulator.set(0.0)
        self._read_columns(self._partials[0], literal(0, "s32"))
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
        (partial,) = self._partials
        for k in loop(1, tile.k_tiles):
            self._promote_rows(partial, tile)
            self._issue_next(partial)
            self._read_columns(partial, k)
        self._promote_rows(partial, tile)

    def _promote_rows(self, partial: KTileAccumulator, tile: Any) -> None:
        """All 64s of rows of a K tile, of which the first has been multiplied, by the same product in turn."""
        scales, last = self._scales(partial, tile), self._config.subtiles - 1
        for block in range(last + 1):
            emit("wgmma.wait_group.sync.aligned", 0)
            if block == last:
                self._core.release_earlier(1)
            self._promote(partial, scales, block)
            if block < last:
                self._core.issue(self._core.earlier(1), {block + 1: partial.accumulator}, accumulate=False)

    def _overlapped(self, tile: Any) -> None:
        """Two K tiles in a turn of the loop, because registers cannot be chosen on the way."""
        even, odd = self._partials
        last = tile.k_tiles - 1
        for k in loop(1, last, step=2):
            self._exchange(odd, k, even, tile)
            self._exchange(even, k + 1, odd, tile)
        with when((tile.k_tiles & 1) == 0):
            self._exchange(odd, last, even, tile)
            self._finish(odd, tile)
        with otherwise():
            self._finish(even, tile)

    def _exchange(self, upcoming: KTileAccumulator, k: Value, partial: KTileAccumulator, tile: Any) -> None:
        """Multiply K tile `k`, and promote the one before it meanwhile."""
        self._issue_next(upcoming)
        self._read_columns(upcoming, k)
        scales = self._scales(partial, tile)
        emit("wgmma.wait_group.sync.aligned", 1)
        self._core.release_earlier(2)
        self._promote(partial, scales)

    def _finish(self, partial: KTileAccumulator, tile: Any) -> None:
        """Promote the last K tile."""
        scales = self._scales(partial, tile)
        emit("wgmma.wait_group.sync.aligned", 0)
        self._core.release_earlier(1)
        self._promote(partial, scales)

    def _issue_next(self, partial: KTileAccumulator) -> None:
        """Multiply the first 64 rows of the next K tile; meanwhile read the factors of all of them.

        When the stage is given back, every lane has read what it holds.
        """
        index = self._core.next_stage()
        self._core.issue(index, {0: partial.accumulator}, accumulate=False)
        for place, row_scale in zip(self._places, partial.row_scales, strict=True):
            row_scale.set(self._rows.read(index, self._first_row + place))
        emit("bar.warp.sync", -1)

    def _read_columns(self, partial: KTileAccumulator, k: Value) -> None:
        """Read the factors of B for K tile `k`, while it is multiplied."""
        for block_scale, loaded in zip(partial.block_scales, self._columns.load(self._blocks, k), strict=True):
            block_scale.set(loaded)

    def _scales(self, partial: KTileAccumulator, tile: Any) -> Scales:
        """What the elements of a product are worth."""
        config, block_scales = self._config, [each.get() for each in partial.block_scales]
        starts = range(0, config.BN, self._piece)
        column_scales = [self._columns.of(block_scales, tile.n * config.BN, start) for start in starts]
        return [[row_scale * column_scale for column_scale in column_scales] for row_scale in partial.row_scales]

    def _promote(self, partial: KTileAccumulator, scales: Scales, block: int = 0) -> None:
        """Add the product of 64 rows, scaled; it must be complete."""
        places = places_of(self._config.BN // 2)
        registers = zip(places, self._accumulators[block].registers, partial.accumulator.registers, strict=True)
        for (row, column), register, value in registers:
            register.set(fma(value, scales[2 * block + row // _LOWER][column // self._piece], register))

    @property
    def tiles(self) -> list[RegisterTile]:
        return [RegisterTile(accumulator.registers, self._config.stageN) for accumulator in self._accumulators]
