"""Tiles of a grouped GEMM on Blackwell: the rows of each operand that a tile needs, and its position in C.

Tokens are along M of the MMA, or along N if A and B are swapped. With CTA pairs, each CTA has its own rows of M.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from warploom.hardware.tmem import SCALE_CHUNK_ROWS
from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig
from warploom.structured.epilogue.quantised_store import QuantisedStore
from warploom.structured.epilogue.tile_writer import TileWriter
from warploom.structured.epilogue.writer_protocols import AccumulatorStage, RegisterAccumulator
from warploom.structured.schedulers.grouped import GroupedTile
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View

Row = Callable[[GroupedTile], Value]


def group_tile_shape(config: MatmulConfig) -> tuple[int, int]:
    """Return the rows of a group and the columns of C that a tile of the scheduler has."""
    return (config.MMA_N, config.MMA_M) if config.AB_swapped else (config.MMA_M, config.tile_columns)


@dataclass(frozen=True)
class GroupPlacement:
    """The start of a scheduler's tile in C, in the operands, and in arrays that are padded group by group."""

    config: MatmulConfig
    cluster: Cluster

    @property
    def tile_shape(self) -> tuple[int, int]:
        return group_tile_shape(self.config)

    @property
    def _own(self) -> Value:
        return self.cluster.pair_rank.to("s32") * self.config.BM

    def row(self, tile: GroupedTile) -> Value:
        """Return the first row of C, which is also that of the tokens."""
        return tile.m_abs if self.config.AB_swapped else tile.m_abs + self._own

    def column(self, tile: GroupedTile) -> Value:
        """Return the first column of C, which is also the first row of an expert's weights."""
        return tile.n_abs + self._own if self.config.AB_swapped else tile.n_abs

    def padded_row(self, tile: GroupedTile, unit: int) -> Value:
        """Return the first row in an array in which each group starts at a multiple of `unit` rows.

        Group g starts at unit ⌊start / unit⌋ + g, so that no group needs the lengths of those before it.
        """
        return self.row(tile) - tile.m_start + (tile.m_start // unit + tile.group) * unit

    def _scale_row(self, tile: GroupedTile) -> Value:
        return self.padded_row(tile, SCALE_CHUNK_ROWS)

    @property
    def operand_rows(self) -> dict[str, Row]:
        """The keywords `a_row` and `b_row` of the kernel's operands."""
        return self._in_order(self.row, self.column)

    @property
    def scale_rows(self) -> dict[str, Row]:
        """The same keywords of scale factors in chunks, those of tokens padded group by group."""
        return self._in_order(self._scale_row, self.column)

    def _in_order(self, tokens: Row, weights: Row) -> dict[str, Row]:
        first, second = (weights, tokens) if self.config.AB_swapped else (tokens, weights)
        return {"a_row": first, "b_row": second}

    def write(
        self,
        writer: TileWriter,
        accumulator: AccumulatorStage | RegisterAccumulator,
        tile: GroupedTile,
        rows: View,
        n: Index,
    ) -> None:
        """Write a tile, times the scale of its expert, up to the end of its group and to column `n`."""
        if isinstance(writer.sink, QuantisedStore):
            writer.sink.shift = self._scale_row(tile) - self.row(tile)
        start = (self.row(tile), self.column(tile), tile.m_end)
        writer.write_absolute_with_bounds_check(accumulator, *start, tile.scale, rows, n_end=n, batch=tile.expert)
