"""Stores of staged subtiles to C: TMA boxes, and a copy by threads where a bound ends inside a tile."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.swizzles import GRANULE
from warploom.structured.config.output import EpilogueConfig
from warploom.structured.epilogue.staging import SharedLayout
from warploom.structured.epilogue.subtiles import Subtile, TileSpot
from warploom.trace import isa
from warploom.trace.isa.emit import At
from warploom.trace.language.control import loop, otherwise, when
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View
from warploom.trace.parameters import TensorMapArgument


@dataclass(frozen=True)
class Box:
    """One box of a subtile: its byte offset in the subtile, and its row and column in the tile."""

    offset: int
    row: int
    column: int


def boxes_of(layout: SharedLayout, box: tuple[int, int], epc: EpilogueConfig, start: int) -> list[Box]:
    """Return the boxes of a subtile that starts at a column; staged, the halves of a folded tile are stacked."""
    found = []
    for column in range(0, layout.columns, box[1]):
        for row in range(0, layout.rows, box[0]):
            down, along = layout.of_accumulator(row, column)
            offset = layout.offset(row, column)
            assert isinstance(down, int)
            assert isinstance(along, int)
            assert isinstance(offset, int)
            group, inside = divmod(down, epc.BM)
            found.append(Box(offset, inside, group * epc.accumulator_columns + start + along))
    return found


def box_place(tensor: TensorMapArgument, spot: TileSpot, box: Box) -> At:
    """Return the coordinates of a box in C."""
    row, column = spot.row + box.row, spot.column + box.column
    batch = (spot.batch,) if len(tensor.geometry.box) > 2 else ()
    return tensor.at(*batch, *((column, row) if spot.transposed else (row, column)))


def store_box(source: At, target: At) -> None:
    """Issue a TMA store of a box, in the bulk group of the issuing thread."""
    isa.cp.async_bulk_tensor_store(target, source)


def load_box(target: At, source: At, barrier: At) -> None:
    """Issue a TMA load of a box into this CTA's shared memory; its bytes complete on a barrier."""
    isa.cp.async_bulk_tensor_load(target, source, barrier)


@dataclass(frozen=True)
class MaskedCopy:
    """Copies a staged subtile to C with threads: 16 bytes each if C's rows are aligned, single elements at C's end.

    The subtile's first column in C must be a multiple of 16 bytes, as for TMA.
    """

    layout: SharedLayout
    epc: EpilogueConfig
    target: View
    threads: int

    @property
    def _width(self) -> int:
        """Elements that move with one instruction."""
        contiguous = isinstance(self.target.strides[-1], int) and self.target.strides[-1] == 1
        return GRANULE // self.layout.element_bytes if contiguous and self.target.alignment % GRANULE == 0 else 1

    def run(self, tile: At, thread: Value, subtile: Subtile) -> None:
        """Copy a staged subtile; every thread of the role takes part."""
        width, staged = self._width, self.layout.view(tile)
        in_row = self.layout.columns // width
        moves = self.layout.rows * in_row
        for turn in loop(-(-moves // self.threads)):
            number = turn.to("u32") * self.threads + thread
            with when(number < moves):
                row, column = number // in_row, number % in_row * width
                self._move(staged, row, column, subtile)

    def _move(self, staged: View, row: Value, column: Value, subtile: Subtile) -> None:
        spot = subtile.spot
        block, within = (column // self.layout.width, column % self.layout.width)
        values = staged.load(block, row, within, count=self._width) if self._width > 1 else [staged[block, row, within]]
        down, along = self.layout.of_accumulator(row, column)
        assert isinstance(down, Value)
        assert isinstance(along, Value)
        along = along + subtile.column
        if self.epc.is_folded:
            along, down = along + down // self.epc.BM * self.epc.accumulator_columns, down % self.epc.BM
        place = (spot.row + down.to("s32"), spot.column + along.to("s32"))
        ends = (spot.rows_end, spot.columns_end)
        if spot.transposed:
            place, ends = (place[1], place[0]), (ends[1], ends[0])
        batch = (spot.batch,) if len(self.target.shape) > 2 else ()
        with when(place[0] < ends[0]):
            self._store(values, (*batch, *place), ends[1])

    def _store(self, values: list[Value], index: tuple[Index, ...], end: Value) -> None:
        """Store adjacent elements of one row, up to its end."""
        column = index[-1]
        assert isinstance(column, Value)
        with when(column + len(values) <= end):
            self.target.store(values, *index)
        if len(values) > 1:
            with otherwise():
                for number, value in enumerate(values):
                    store_inside(self.target, (*index[:-1], column + number), value, column + number < end)


def store_inside(target: View, index: tuple[Index, ...], value: Value, inside: Value) -> None:
    """Store an element under a predicate."""
    isa.st(target.at(*index), value, space=target.space, type=TYPES[target.dtype].memory, guard=inside)
