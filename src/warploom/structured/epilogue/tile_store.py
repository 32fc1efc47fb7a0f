"""From strips in shared memory to C: the boxes of the copy engine, and a copy by threads where a bound cuts a tile."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.hardware.swizzles import GRANULE
from warploom.structured.config.output import EpilogueConfig
from warploom.structured.epilogue.staging import SharedLayout
from warploom.structured.epilogue.subtiles import Subtile, TileSpot
from warploom.trace.isa.emit import At, emit
from warploom.trace.language.control import loop, otherwise, when
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View
from warploom.trace.parameters import TensorMapArgument


@dataclass(frozen=True)
class Box:
    """One box of a strip: its bytes from the strip's first, and its rows and columns from the tile's first."""

    offset: int
    row: int
    column: int


def boxes_of(layout: SharedLayout, box: tuple[int, int], epc: EpilogueConfig, start: int) -> list[Box]:
    """The boxes of a strip that starts at a column: staged, the halves of a folded tile lie one below the other."""
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
    """Where a box belongs in C."""
    row, column = spot.row + box.row, spot.column + box.column
    batch = (spot.batch,) if len(tensor.geometry.box) > 2 else ()
    return tensor.at(*batch, *((column, row) if spot.transposed else (row, column)))


def store_box(source: At, target: At) -> None:
    """Let the copy engine store a box; the issuing thread's group counts it."""
    assert target.coordinates is not None
    emit(f"cp.async.bulk.tensor.{len(target.coordinates)}d.global.shared::cta.bulk_group", target, source)


def load_box(target: At, source: At, barrier: At) -> None:
    """Let the copy engine load a box into this CTA's shared memory; its bytes count at a barrier."""
    assert source.coordinates is not None
    rank = f"{len(source.coordinates)}d"
    emit(f"cp.async.bulk.tensor.{rank}.shared::cluster.global.mbarrier::complete_tx::bytes", target, source, barrier)


@dataclass(frozen=True)
class MaskedCopy:
    """Copies a staged strip to C by threads: 16 bytes each where C's rows are aligned, element by element where C ends.

    The strip's first column in C must be a multiple of 16 bytes, as for the copy engine.
    """

    layout: SharedLayout
    epc: EpilogueConfig
    target: View
    threads: int

    @property
    def _width(self) -> int:
        """Elements that move together."""
        contiguous = isinstance(self.target.strides[-1], int) and self.target.strides[-1] == 1
        return GRANULE // self.layout.element_bytes if contiguous and self.target.alignment % GRANULE == 0 else 1

    def run(self, tile: At, thread: Value, subtile: Subtile) -> None:
        """Copy a staged strip; every thread of the role takes part."""
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
        """Neighbours of one row, as far as the row goes."""
        column = index[-1]
        assert isinstance(column, Value)
        with when(column + len(values) <= end):
            self.target.store(values, *index)
        if len(values) > 1:
            with otherwise():
                for number, value in enumerate(values):
                    store_inside(self.target, (*index[:-1], column + number), value, column + number < end)


def store_inside(target: View, index: tuple[Index, ...], value: Value, inside: Value) -> None:
    """Store an element if it is there."""
    emit(f"st.{target.space}.{TYPES[target.dtype].memory}", target.at(*index), value, guard=inside)
