"""The shared-memory epilogue: fragments are exchanged so that each lane has adjacent elements of one row of C.

The copy is in float32 and private to a warp, sixteen rows at a time: nothing is rounded, and warps need not synchronise
with each other. Functions return the same results as on fragments, but load their operands in contiguous runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from warploom.hardware.swizzles import GRANULE, SWIZZLES
from warploom.hardware.threads import WARP_LANES
from warploom.hardware.tmem import LANE_ALIGNMENT
from warploom.structured.config.output import EpilogueConfig
from warploom.structured.epilogue.staging import SharedLayout, SubtileStore, Values
from warploom.structured.epilogue.subtiles import Position, Subtile, WarpPart
from warploom.trace import isa
from warploom.trace.isa.emit import At
from warploom.trace.language.values import Value, literal
from warploom.trace.language.views import Index, View, shared
from warploom.trace.language.warps import lane

_WIDEST = 8
"""Adjacent elements of a lane."""


@dataclass(frozen=True)
class Run:
    """Adjacent elements of one row of C; `row` and `column` are the first one's in the warp's part of the subtile."""

    row: Value
    column: Value
    length: int
    transposed: bool

    def place(self, number: int) -> tuple[Value, Value]:
        """Return the accumulator's row and column of an element, in the warp's part of the subtile."""
        return (self.row + number, self.column) if self.transposed else (self.row, self.column + number)


def scratch_layout(epc: EpilogueConfig) -> SharedLayout:
    """Return the layout of one warp's sixteen rows of a subtile."""
    shape = (epc.stageN, LANE_ALIGNMENT) if epc.transpose_c else (LANE_ALIGNMENT, epc.stageN)
    width = min(shape[1], SWIZZLES["128B"].span // 4)
    return SharedLayout("f32", *shape, width, SWIZZLES[f"{width * 4}B"], epc.transpose_c)


class WarpExchange:
    """Scratch memory of each warp, through which its fragments become runs of a row."""

    def __init__(self, part: WarpPart, warps: int, name: str = "epilogue_scratch") -> None:
        self.part, self.layout = part, scratch_layout(part.epc)
        align = self.layout.swizzle.alignment
        self._scratch = shared("f32", (warps, self.layout.rows, self.layout.columns), name=name, align=align)
        self._store = SubtileStore(self.layout, part.epc.stageN, lower=False)

    @staticmethod
    def bytes(epc: EpilogueConfig, warps: int = 4) -> int:
        """Return the bytes of shared memory that it needs."""
        return warps * scratch_layout(epc).bytes

    @property
    def length(self) -> int:
        """Elements of a run."""
        return min(_WIDEST, self.layout.rows * self.layout.columns // WARP_LANES)

    @cached_property
    def halves(self) -> tuple[int, ...]:
        """The first rows of the warp's blocks of sixteen rows."""
        return (0, LANE_ALIGNMENT) if self.part.epc.is_lower_frag_required else (0,)

    def runs(self, values: Values) -> Iterator[tuple[Run, list[Value]]]:
        """Yield a subtile's fragment as runs; all lanes of the warp take part."""
        piece_of_warp: View = self._scratch[self.part.warp]
        place = piece_of_warp.place
        zero = literal(0, "u32")
        for half in self.halves:
            isa.bar.warp_sync(-1)  # waits for lanes that still read the previous block
            piece = {
                (row - half, column): value
                for (row, column), value in values.items()
                if 0 <= row - half < LANE_ALIGNMENT
            }
            self._store.store(self._store.place_to_store(place, zero, zero), piece)
            isa.bar.warp_sync(-1)
            yield from self._read(self.layout.view(place), half)

    def _read(self, view: View, half: int) -> Iterator[tuple[Run, list[Value]]]:
        in_row = self.layout.columns // self.length
        rows = WARP_LANES // in_row
        for first in range(0, self.layout.rows, rows):
            row, column = lane() // in_row + first, lane() % in_row * self.length
            found: list[Value] = []
            for at in range(0, self.length, 4):
                block, within = (column + at) // self.layout.width, (column + at) % self.layout.width
                found += view.load(block, row, within, count=4)
            down, along = self.layout.of_accumulator(row, column)
            assert isinstance(down, Value)
            assert isinstance(along, Value)
            yield Run(down + half, along, self.length, self.layout.transposed), found

    def position(self, subtile: Subtile, run: Run, number: int) -> Position:
        """Return the position of a run's element in C."""
        spot, (down, along) = subtile.spot, run.place(number)
        row = spot.row + (self.part.row + down).to("s32")
        column = spot.column + (self.part.column + along).to("s32") + subtile.column
        return Position(spot, row, column)

    def stage(self, layout: SharedLayout, tile: At, run: Run, values: list[Value]) -> None:
        """Round a run and write it to the buffer in which C is staged."""
        down, along = run.place(0)
        row, column = layout.of_accumulator(self.part.staged_row + down, along)
        assert isinstance(column, Value)
        view, together = layout.view(tile), min(len(values), GRANULE // layout.element_bytes)
        for at in range(0, len(values), together):
            index: tuple[Index, ...] = ((column + at) // layout.width, row, (column + at) % layout.width)
            view.store([value.to(layout.dtype) for value in values[at : at + together]], *index)
