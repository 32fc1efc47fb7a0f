"""Row vectors (biases) with a value per column of C, loaded while the MMAs of the tile run."""

from __future__ import annotations

from collections.abc import Sequence

from warploom.structured.config.output import EpilogueConfig
from warploom.structured.epilogue.staging import Values, first_place
from warploom.structured.epilogue.subtiles import Subtile, TileSpot
from warploom.structured.tensor_cores.wgmma import Warpgroup
from warploom.trace.language.control import when
from warploom.trace.language.packing import unpack
from warploom.trace.language.types import PAIR_OF, TYPES
from warploom.trace.language.values import Value
from warploom.trace.language.views import View, shared

_SQUARE = 8
_PAIR_BYTES = 4
_ROWS = (0, _SQUARE)
"""Rows of a thread in 16 rows."""


class RowVector:
    """A thread's part of a row vector in registers: two adjacent values in every eight columns.

    In a transposed tile C's columns are the accumulator's rows, of which a thread has few. Nothing is read outside C.
    """

    def __init__(self, source: View, epc: EpilogueConfig) -> None:
        self._source, self._epc = source, epc
        self._held: dict[object, dict[int, Value]] = {}

    def load(self, spots: Sequence[TileSpot]) -> None:
        """Load the values of the tiles at `spots`; tiles with the same columns share them."""
        self._held = {}
        for spot in spots:
            key = _key(spot)
            if key not in self._held:
                self._held[key] = self._loaded(spot)

    def _loaded(self, spot: TileSpot) -> dict[int, Value]:
        """Load the values by row or column: packed in pairs where possible, which halves the registers."""
        if spot.transposed:
            return {row: self._one(spot, row, transposed=True) for row in self._rows}
        (stride,) = self._source.strides
        dense = isinstance(stride, int) and stride == 1
        paired = dense and self._source.alignment % _PAIR_BYTES == 0 and self._source.dtype in PAIR_OF
        columns = range(0, self._epc.accumulator_columns, _SQUARE)
        if paired:
            return {column: self._two(spot, column) for column in columns}
        return {at: self._one(spot, at, transposed=False) for column in columns for at in (column, column + 1)}

    @property
    def _rows(self) -> range:
        return range(0, 4 * _SQUARE if self._epc.is_lower_frag_required else 2 * _SQUARE, _SQUARE)

    def _one(self, spot: TileSpot, at: int, *, transposed: bool) -> Value:
        position = spot.at(at, 0) if transposed else spot.at(0, at)
        return self._read(position.column, position.column_inside, self._source.dtype)

    def _two(self, spot: TileSpot, column: int) -> Value:
        """Load two adjacent values; if C ends between them, the second is zero."""
        first, second = spot.at(0, column), spot.at(0, column + 1)
        pair = self._read(first.column, second.column_inside, PAIR_OF[self._source.dtype])
        alone = self._read(first.column, first.column_inside & ~second.column_inside, self._source.dtype)
        return (pair.bits("u32") | alone.bits("u16").to("u32")).bits(pair.type)

    def _read(self, column: Value, inside: Value, type_: str) -> Value:
        """Load the value at a column, zero outside C."""
        return self._source.load_where(inside, column, dtype=type_)

    def values(self, subtile: Subtile) -> Values:
        """Return the values to add to a subtile."""
        held, transposed = self._held[_key(subtile.spot)], subtile.spot.transposed
        found = dict[tuple[int, int], Value]()
        for row in self._rows:
            for column in range(0, self._epc.stageN, _SQUARE):
                first = held[row if transposed else subtile.column + column]
                if TYPES[first.type].kind == "pair":
                    pair = unpack(first)
                else:
                    pair = (first, first if transposed else held[subtile.column + column + 1])
                found[row, column], found[row, column + 1] = pair
        return found


class SharedVector:
    """A tile's part of a row vector in shared memory, per warpgroup: for tiles whose accumulators fill the registers.

    The caller synchronises the warpgroup between `load` and `values`, and between `values` and the next tile's `load`.
    """

    def __init__(self, source: View, epc: EpilogueConfig, group: Warpgroup, groups: int) -> None:
        self._source, self._columns, self._width, self._group = source, epc.accumulator_columns, epc.stageN, group
        self._held = shared(source.dtype, (groups, self._columns), name="row", align=_PAIR_BYTES)[group.number]

    def load(self, spots: Sequence[TileSpot]) -> None:
        """Load the values of the tiles at `spots`, which have the same columns; zero outside C."""
        spot = spots[0]
        for start in range(0, self._columns, self._group.threads):
            at = self._group.thread.to("s32") + start
            column = spot.column + at
            value = self._source.load_where((column < spot.columns_end) & (at < self._columns), column)
            with when(at < self._columns):
                self._held.store([value], at)

    def values(self, subtile: Subtile) -> Values:
        """Return the values to add to a subtile."""
        _, along = first_place()
        found = dict[tuple[int, int], Value]()
        for column in range(0, self._width, _SQUARE):
            pair = self._held.load(along.to("s32") + (subtile.column + column), count=2)
            found |= {(row, column + number): value for row in _ROWS for number, value in enumerate(pair)}
        return found


def _key(spot: TileSpot) -> object:
    """Return a key of the columns of C at a spot: equal expressions have the same register."""
    return (spot.row if spot.transposed else spot.column).operand
