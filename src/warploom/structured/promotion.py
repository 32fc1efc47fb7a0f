"""Sums over K in registers beside the tensor core's: each K tile's product is scaled and added by its own threads."""

from __future__ import annotations

from math import gcd
from typing import Any

from warploom.facts.fragments import wgmma_d
from warploom.facts.mma_shapes import WGMMA_M
from warploom.structured.blockwise import ColumnFactors, RowFactors
from warploom.structured.config.hopper_blockwise import HopperBlockwiseConfig
from warploom.structured.input_pipeline import InputConsumerStage
from warploom.structured.staging import first_place
from warploom.structured.tensor_memory import places_of
from warploom.structured.wgmma import RegisterTile, Warpgroup, WgmmaOp
from warploom.trace.fragments import Accumulator
from warploom.trace.instructions import emit
from warploom.trace.memory import View
from warploom.trace.operations import fma
from warploom.trace.values import Value

_WARP_ROWS, _LOWER = 16, 8

Factors = list[list[Value]]
"""Of a thread: by row, then by piece of the columns that share a factor of B."""


class PromotedSums:
    """A warpgroup's part of a tile: what `core` has multiplied, K tile by K tile, each with its factors."""

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
        self._sums = [Accumulator("f32", wgmma_d(config.BN), None) for _ in range(config.subtiles)]
        self._piece = gcd(config.BN, config.scale_granularity)
        self._blocks: list[View] = []

    def begin(self, tile: Any) -> None:
        """A new tile."""
        self._blocks = self._columns.blocks(tile.n * self._config.BN, tile.batch)
        for sums in self._sums:
            sums.set(0.0)

    def factors(self, stage: InputConsumerStage, tile: Any, k: Value) -> Factors:
        """What a thread's products of a K tile are worth, read while they are multiplied.

        When the stage is given back, every lane has read what it holds.
        """
        config = self._config
        rows = [subtile * WGMMA_M + row for subtile in range(config.subtiles) for row in (0, _LOWER)]
        of_rows = [self._rows.read(stage.index(), self._first_row + row) for row in rows]
        emit("bar.warp.sync", -1)
        loaded, first = self._columns.load(self._blocks, k), tile.n * config.BN
        of_columns = [self._columns.of(loaded, first, start) for start in range(0, config.BN, self._piece)]
        return [[of_row * of_column for of_column in of_columns] for of_row in of_rows]

    def promote(self, factors: Factors) -> None:
        """Add the product of a K tile, scaled; it must be complete."""
        places = places_of(self._config.BN // 2)
        for subtile, (sums, product) in enumerate(zip(self._sums, self._core.accumulators, strict=True)):
            for (row, column), sum_, value in zip(places, sums.registers, product.registers, strict=True):
                sum_.set(fma(value, factors[2 * subtile + row // _LOWER][column // self._piece], sum_))

    @property
    def tiles(self) -> list[RegisterTile]:
        return [RegisterTile(sums.registers, self._config.stageN) for sums in self._sums]
