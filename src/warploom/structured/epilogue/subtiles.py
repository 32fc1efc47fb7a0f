"""Subtiles of an accumulator: the rows and columns of C that a thread holds, and the bounds of C."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from warploom.hardware.tmem import LANE_ALIGNMENT
from warploom.structured.config.output import EpilogueConfig
from warploom.structured.epilogue.staging import first_place
from warploom.trace.language.values import Value, literal, valued
from warploom.trace.language.views import Index


class RowMajor(NamedTuple):
    """Rows of contiguous columns."""

    rows: int
    columns: int


@dataclass(frozen=True)
class WarpPart:
    """The part of a CTA's tile that a warp of the epilogue holds: its position in the tile and in the staged subtile.

    A folded accumulator (TMEM layout B) has its right half in the upper lanes: warps 2 and 3 hold the same rows as
    warps 0 and 1. In shared memory the two halves are stacked vertically.
    """

    epc: EpilogueConfig
    warp: Value

    @property
    def rows(self) -> int:
        """Rows of one warp."""
        return 2 * LANE_ALIGNMENT if self.epc.is_lower_frag_required else LANE_ALIGNMENT

    @property
    def row(self) -> Value:
        """The first row in the CTA's tile."""
        return (self.warp % 2 if self.epc.is_folded else self.warp) * self.rows

    @property
    def column(self) -> Value:
        """The first column in the CTA's tile."""
        return self.group * self.epc.accumulator_columns

    @property
    def group(self) -> Value:
        """The half of a folded accumulator."""
        return self.warp // 2 if self.epc.is_folded else literal(0, "u32")

    @property
    def staged_row(self) -> Value:
        """The first row in a subtile in shared memory."""
        return self.warp * self.rows


@dataclass(frozen=True)
class TileSpot:
    """The position of a tile in C, and the bounds of C, in rows and columns of the accumulator.

    `first_row` and `first_column` are those of this thread's first element.
    """

    row: Value
    column: Value
    batch: Value
    first_row: Value
    first_column: Value
    rows_end: Value
    columns_end: Value
    transposed: bool

    @classmethod
    def of(
        cls, part: WarpPart, start: tuple[Index, Index], batch: Index, ends: tuple[Index, Index], *, transposed: bool
    ) -> TileSpot:
        """Return the tile that starts at a row and column of the accumulator's space, with the bounds of that space."""
        row, column, batch_, rows_end, columns_end = (valued(each, "s32").to("s32") for each in (*start, batch, *ends))
        down, along = first_place()
        first_row = row + (part.row + down).to("s32")
        first_column = column + (part.column + along).to("s32")
        return cls(row, column, batch_, first_row, first_column, rows_end, columns_end, transposed)

    def moved(self, rows: Value, columns: Value) -> TileSpot:
        """Return the spot with the thread's first element moved by rows and columns."""
        return replace(self, first_row=self.first_row + rows, first_column=self.first_column + columns)

    def at(self, row: int, column: int) -> Position:
        """Return the position of an element relative to the thread's first."""
        return Position(self, self.first_row + row, self.first_column + column)


@dataclass(frozen=True)
class Subtile:
    """All rows and some columns of a tile: the unit in which the epilogue loads, computes and stores."""

    index: int
    column: int
    spot: TileSpot

    def at(self, row: int, column: int) -> Position:
        """Return the position of an element relative to the thread's first."""
        return self.spot.at(row, self.column + column)


@dataclass(frozen=True)
class Position:
    """The position of an element in C: `row`, `column` and `batch`, also if the kernel computes C transposed."""

    spot: TileSpot
    _down: Value
    _along: Value

    @property
    def row(self) -> Value:
        return self._along if self.spot.transposed else self._down

    @property
    def column(self) -> Value:
        return self._down if self.spot.transposed else self._along

    @property
    def batch(self) -> Value:
        return self.spot.batch

    @property
    def row_inside(self) -> Value:
        """True if the row is inside C."""
        return self.row < (self.spot.columns_end if self.spot.transposed else self.spot.rows_end)

    @property
    def column_inside(self) -> Value:
        """True if the column is inside C."""
        return self.column < (self.spot.rows_end if self.spot.transposed else self.spot.columns_end)

    @property
    def inside(self) -> Value:
        """True if the element is inside C."""
        return self.row_inside & self.column_inside
