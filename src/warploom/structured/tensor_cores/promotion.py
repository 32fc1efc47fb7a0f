"""Blockwise FP8 on Hopper: the tensor core accumulates one K tile, which is then scaled and added in registers."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from warploom.hardware.fragments import wgmma_d
from warploom.hardware.mma_shapes import WGMMA_M
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig
from warploom.structured.epilogue.staging import first_place
from warploom.structured.tensor_cores.blockwise import ColumnScales, RowScales
from warploom.structured.tensor_cores.tmem import places_of
from warploom.structured.tensor_cores.wgmma import RegisterTile, Warpgroup, WgmmaOp
from warploom.trace import isa
from warploom.trace.language.control import loop, otherwise, when
from warploom.trace.language.fragments import Accumulator
from warploom.trace.language.operations import fma
from warploom.trace.language.values import Value, literal
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View

_WARP_ROWS, _LOWER = 16, 8


Scales = list[list[Value]]
"""The scales of a thread: by row, then by run of columns that share a scale of B."""


class KTileAccumulator:
    """Registers of a thread for the accumulator of 64 rows of a K tile, and for the scales of its rows and columns."""

    def __init__(self, accumulator: Accumulator, rows: int, blocks: int) -> None:
        """`blocks` is the number of scale blocks that the columns touch."""
        self.accumulator = accumulator
        self.row_scales = [Variable("f32", None) for _ in range(rows)]
        self.block_scales = [Variable("f32", None) for _ in range(blocks)]


class PromotedAccumulators:
    """A warpgroup's float32 accumulators of a tile; `core` computes the K tiles, which are scaled and added one by one.

    With two accumulators for K tiles, the MMAs of the next K tile run while the other one is promoted. With one, the
    other warpgroup uses the tensor core while this one promotes. In both cases the MMAs of the first K tile of a tile
    run while the previous tile is written.
    """

    def __init__(
        self,
        config: HopperBlockwiseConfig,
        group: Warpgroup,
        core: WgmmaOp,
        rows: RowScales,
        columns: ColumnScales,
        column: Callable[[Any], Value] | None = None,
    ) -> None:
        """`column` maps a tile of work to its first column of C."""
        self._config, self._core, self._rows, self._columns = config, core, rows, columns
        self._column = column or (lambda tile: tile.n * config.BN)
        row = group.number * config.consumer_rows + group.warp * _WARP_ROWS + first_place()[0]
        self._first_row = row.to("s32")
        self._places = [block * WGMMA_M + row for block in range(config.subtiles) for row in (0, _LOWER)]
        self._accumulators = [Accumulator("f32", wgmma_d(config.BN), None) for _ in range(config.subtiles)]
        self._partials = [KTileAccumulator(each, len(self._places), columns.most_blocks) for each in core.accumulators]
        self._piece = gcd(config.BN, config.scale_granularity)
        self._blocks: list[View] = []

    def begin(self, has_next: Value) -> None:
        """Issue the MMAs of the first K tile of the next tile, if there is one."""
        with when(has_next):
            self._issue_next(self._partials[0])

    def accumulate(self, tile: Any) -> None:
        """Promote all K tiles of the tile that was begun."""
        self._blocks = self._columns.blocks(self._column(tile), tile.batch)
        for accumulator in self._accumulators:
            accumulator.set(0.0)
        self._read_columns(self._partials[0], literal(0, "s32"))
        isa.wgmma.wait_group(0)  # ptxas does not count wgmma groups across the tile loop
        if self._config.mmas_in_flight:
            self._overlapped(tile)
        else:
            self._one_by_one(tile)

    def end(self) -> None:
        """Wait after the last tile; nothing is in flight, but ptxas requires it."""
        isa.wgmma.wait_group(0)

    def _one_by_one(self, tile: Any) -> None:
        """Promote each K tile before the MMAs of the next are issued."""
        (partial,) = self._partials
        for k in loop(1, tile.k_tiles):
            self._promote_rows(partial, tile)
            self._issue_next(partial)
            self._read_columns(partial, k)
        self._promote_rows(partial, tile)

    def _promote_rows(self, partial: KTileAccumulator, tile: Any) -> None:
        """Promote all blocks of 64 rows of a K tile through one accumulator; the MMAs of the first have been issued."""
        scales, last = self._scales(partial, tile), self._config.subtiles - 1
        for block in range(last + 1):
            isa.wgmma.wait_group(0)
            if block == last:
                self._core.release_earlier(1)
            self._promote(partial, scales, block)
            if block < last:
                self._core.issue(self._core.earlier(1), {block + 1: partial.accumulator}, accumulate=False)

    def _overlapped(self, tile: Any) -> None:
        """Overlap promotion and MMAs; unrolled by two, because registers cannot be indexed dynamically."""
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
        """Issue the MMAs of K tile `k`, and promote the previous one while they run."""
        self._issue_next(upcoming)
        self._read_columns(upcoming, k)
        scales = self._scales(partial, tile)
        isa.wgmma.wait_group(1)
        self._core.release_earlier(2)
        self._promote(partial, scales)

    def _finish(self, partial: KTileAccumulator, tile: Any) -> None:
        """Promote the last K tile."""
        scales = self._scales(partial, tile)
        isa.wgmma.wait_group(0)
        self._core.release_earlier(1)
        self._promote(partial, scales)

    def _issue_next(self, partial: KTileAccumulator) -> None:
        """Issue the MMAs of the first 64 rows of the next K tile, and read the scales of all rows while they run.

        The warp synchronises at the end, so that every lane has read the stage before it is released; the fence orders
        these loads before the copy that refills the stage.
        """
        index = self._core.next_stage()
        self._core.issue(index, {0: partial.accumulator}, accumulate=False)
        for place, row_scale in zip(self._places, partial.row_scales, strict=True):
            row_scale.set(self._rows.read(index, self._first_row + place))
        isa.fence.proxy_async(space="shared::cta")
        isa.bar.warp_sync(-1)

    def _read_columns(self, partial: KTileAccumulator, k: Value) -> None:
        """Read the scales of B for K tile `k`, while its MMAs run."""
        for block_scale, loaded in zip(partial.block_scales, self._columns.load(self._blocks, k), strict=True):
            block_scale.set(loaded)

    def _scales(self, partial: KTileAccumulator, tile: Any) -> Scales:
        """Return the products of row and column scales."""
        config, block_scales = self._config, [each.get() for each in partial.block_scales]
        starts = range(0, config.BN, self._piece)
        column_scales = [self._columns.of(block_scales, self._column(tile), start) for start in starts]
        return [[row_scale * column_scale for column_scale in column_scales] for row_scale in partial.row_scales]

    def _promote(self, partial: KTileAccumulator, scales: Scales, block: int = 0) -> None:
        """Scale the accumulator of 64 rows and add it; its MMAs must be complete."""
        places = places_of(self._config.BN // 2)
        registers = zip(places, self._accumulators[block].registers, partial.accumulator.registers, strict=True)
        for (row, column), register, value in registers:
            register.set(fma(value, scales[2 * block + row // _LOWER][column // self._piece], register))

    @property
    def tiles(self) -> list[RegisterTile]:
        return [RegisterTile(accumulator.registers, self._config.stageN) for accumulator in self._accumulators]
