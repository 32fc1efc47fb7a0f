"""Blockwise FP8: the epilogue scales the result of each K tile and accumulates it in float32 registers.

Each K tile has its own accumulator in TMEM, so that the tensor core computes the next one while this one is promoted.
A's scales, one per row, come with the operands; B's, one for many columns, are read from global memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, Protocol

from warploom.diagnostics import Diag
from warploom.hardware.fragments import tensor_move
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.hardware.tmem import LANE_ALIGNMENT
from warploom.structured.cluster import Cluster
from warploom.structured.config import BlockwiseFP8MatmulConfig
from warploom.structured.epilogue.staging import first_place
from warploom.structured.epilogue.subtiles import WarpPart
from warploom.structured.pipelines.operand_tiles import copy_box
from warploom.structured.pipelines.output_pipeline import EpilogueKStage
from warploom.structured.tensor_cores.tmem import (
    MOVE,
    TmemAddress,
    TmemAllocation,
    TmemArrayType,
    TmemFragments,
    places_of,
)
from warploom.trace.builder import here
from warploom.trace.isa.emit import At
from warploom.trace.language.fragments import Accumulator, Fragment
from warploom.trace.language.operations import fma, min_
from warploom.trace.language.roles import Role
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument


class BlockwiseShape(Protocol):
    """The parts of a blockwise configuration, of Hopper or Blackwell, that are needed here."""

    @property
    def scaled_rows(self) -> int: ...

    @property
    def num_pipeline_stages(self) -> int: ...

    @property
    def AB_swapped(self) -> bool: ...

    @property
    def scale_type(self) -> str: ...

    @property
    def scale_granularity(self) -> int: ...

    @property
    def warp_extent(self) -> int: ...


class RowScales:
    """The scales of the caller's A in the input stages: for one K tile and the rows of this CTA's tile."""

    local = True

    def __init__(
        self, source: TensorMapArgument, config: BlockwiseShape, row: Callable[[Any], Value] | None = None
    ) -> None:
        """The source has shape (K tiles, rows); `row` maps a tile of work to its first row."""
        self.source, self._rows = source, config.scaled_rows
        self._row = row or (lambda tile: (tile.n if config.AB_swapped else tile.m) * config.scaled_rows)
        line = SHARED_ALIGNMENT // TYPES[config.scale_type].bytes
        shape = (config.num_pipeline_stages, -(-config.scaled_rows // line) * line)
        self.storage: View = shared(config.scale_type, shape, name="a_scales", align=SHARED_ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self._rows * TYPES[self.storage.dtype].bytes

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        """Issue the copy of the scales of K tile `k`; rows outside A are filled with zeros."""
        batch = (tile.batch,) if len(self.source.geometry.box) > 2 else ()
        place = self.storage[index].window((0,), (self._rows,)).place
        copy_box(place, self.source.at(*batch, k, self._row(tile)), barrier, cluster)

    def read(self, index: Value, row: Value) -> Value:
        """Load the scale of a row of the CTA's tile."""
        value: Value = self.storage[index, row]
        return value.to("f32")


def scale_blocks(start: int, width: int, granularity: int) -> int:
    """Return the number of scale blocks that the `width` columns from `start` touch."""
    return (start + width - 1) // granularity - start // granularity + 1


@dataclass(frozen=True)
class ColumnScales:
    """The scales of the caller's B in global memory: one for `scale_granularity` columns of C and a K tile.

    A warp holds `warp_extent` columns of C: of its accumulator, or rows of it if A and B are swapped.
    """

    source: View
    config: BlockwiseShape
    columns: Value
    """The number of columns of C; after them there are no scales."""

    @property
    def _starts(self) -> range:
        """The offsets inside a scale block at which the columns of a warp may start."""
        config = self.config
        return range(0, config.scale_granularity, gcd(config.warp_extent, config.scale_granularity))

    @property
    def most_blocks(self) -> int:
        """The maximum number of scale blocks that the columns of a warp touch."""
        config = self.config
        return max(scale_blocks(at, config.warp_extent, config.scale_granularity) for at in self._starts)

    def blocks(self, first_column: Value, batch: Value) -> list[View]:
        """Return views along K of the scales of all blocks that a warp's columns can touch."""
        granularity, source = self.config.scale_granularity, self.source
        first, last = first_column // granularity, (self.columns - 1) // granularity
        batches = (batch,) if len(source.shape) > 2 else ()
        places = [(*batches, min_(first + block, last), 0) for block in range(self.most_blocks)]
        return [source.window(place, (*(1 for _ in batches), 1, source.shape[-1])) for place in places]

    def load(self, blocks: list[View], k: Value) -> list[Value]:
        """Load the scales of K tile `k`."""
        found: list[Value] = [block[(*(0,) * (len(block.shape) - 1), k)] for block in blocks]
        return [scale.to("f32") for scale in found]

    def of(self, column_scales: list[Value], first_column: Value, column: int) -> Value:
        """Select the scale of the column `column` after the warp's first, from the scales of its blocks."""
        granularity = self.config.scale_granularity
        possible = [(at + column) // granularity for at in self._starts]
        chosen, inside = column_scales[min(possible)], first_column % granularity + column
        for block in range(min(possible) + 1, max(possible) + 1):
            chosen = select(inside >= block * granularity, column_scales[block], chosen)
        return chosen


class PromotedAccumulator:
    """A warp's float32 accumulator of a tile, which a `TileWriter` reads subtile by subtile.

    It is in registers, or in TMEM if the tile is too large for them.
    """

    def __init__(
        self,
        config: BlockwiseFP8MatmulConfig,
        role: Role,
        rows: RowScales,
        columns: ColumnScales,
        column: Callable[[Any], Value] | None = None,
        *,
        tmem: TmemAllocation | None = None,
    ) -> None:
        """`column` maps a tile of work to its first column of C; `tmem` is where sums that do not fit registers are."""
        self.config, self._role, self.rows, self.columns = config, role, rows, columns
        self._column = column or (lambda tile: tile.m * config.BM if config.AB_swapped else tile.n * config.MMA_N)
        self.part = WarpPart(config.epilogue, role.warp)
        if config.accumulates_in_tmem and tmem is None:
            what = f"the sums of a tile of {config.BM} x {config.MMA_N} are in TMEM: pass `tmem=outputs.tmem`"
            raise Diag.BAD_KERNEL.error(here(), what=what)
        if tmem is None or not config.accumulates_in_tmem:
            self._totals: _RegisterTotals | _TmemTotals = _RegisterTotals(config)
        else:
            self._totals = _TmemTotals(config, role, tmem)

    def clear(self) -> None:
        """Set the accumulator to zero, for a new tile."""
        self._totals.clear()

    def first_column(self, tile: Any) -> Value:
        """Return the warp's first column of a tile in C."""
        inside = self.part.row if self.config.AB_swapped else self.part.column
        return self._column(tile) + inside.to("s32")

    def column_scales(self, tile: Any, k: Value) -> list[Value]:
        """Load B's scales of a K tile; called before the wait for the accumulator, to hide the latency."""
        return self.columns.load(self.columns.blocks(self.first_column(tile), tile.batch), k)

    def promote(self, stage: EpilogueKStage, tile: Any, column_scales: list[Value]) -> None:
        """Scale the result of a K tile and add it; the input stage is released as soon as A's scales have been read."""
        config, width = self.config, self.config.promoted_columns
        scales = (_SwappedScales if config.AB_swapped else _PlainScales)(self, stage, tile, column_scales)
        pieces = config.accumulator_columns // width
        array = TmemArrayType("f32", (config.BM, width), pieces, config.cta_group)
        partials = array.at(stage.tmem.address(self._role.warp))
        upcoming = partials[0].load_fragments(width // MOVE.columns)
        self._totals.fetch(0)
        for piece in range(pieces):
            TmemAddress.wait_load()
            partial = upcoming
            held, scale = self._totals.fetched(), scales.of(piece * width, is_last=piece + 1 == pieces)
            if piece + 1 < pieces:
                upcoming = partials[piece + 1].load_fragments(width // MOVE.columns)
                self._totals.fetch(piece + 1)
            else:
                stage.release()
            self._totals.add(piece, held, partial, scale)
        self._totals.end()

    def subtile(self, index: int) -> TmemFragments:
        """Return the accumulators of one subtile."""
        return self._totals.subtile(index)


Scale = Callable[[int, int], Value]
"""The scale of a thread's element, by its row and column in a piece from the thread's first."""


class _PlainScales:
    """Scales of A along the rows of the accumulator, of B along its columns."""

    def __init__(self, owner: PromotedAccumulator, stage: EpilogueKStage, tile: Any, held: list[Value]) -> None:
        self._columns, self._held, self._first = owner.columns, held, owner.first_column(tile)
        down, _ = first_place()
        first = owner.part.row + down
        rows = range(0, owner.part.rows, MOVE.lanes // 2)
        self._rows = {row: owner.rows.read(stage.input_stage_index, first + row) for row in rows}
        stage.arrive_input()

    def of(self, column: int, *, is_last: bool) -> Scale:
        column_scale = self._columns.of(self._held, self._first, column)
        scales = {row: scale * column_scale for row, scale in self._rows.items()}
        return lambda row, _: scales[row]


class _SwappedScales:
    """Scales of A along the columns of the accumulator, of B along its rows.

    A thread has many columns: the scales are read piece by piece, and the input stage is released with the last.
    """

    def __init__(self, owner: PromotedAccumulator, stage: EpilogueKStage, tile: Any, held: list[Value]) -> None:
        self._stage, self._scales, self._part = stage, owner.rows, owner.part
        first, rows = owner.first_column(tile), range(0, owner.part.rows, MOVE.lanes // 2)
        self._rows = {row: owner.columns.of(held, first, row) for row in rows}  # eight rows share a scale
        self._width = owner.config.promoted_columns

    def of(self, column: int, *, is_last: bool) -> Scale:
        first = self._part.column + first_place()[1] + column
        places = [each + pair for each in range(0, self._width, MOVE.columns) for pair in (0, 1)]
        found = {at: self._scales.read(self._stage.input_stage_index, first + at) for at in places}
        if is_last:
            self._stage.arrive_input()
        return lambda row, at: self._rows[row] * found[at]


class _RegisterTotals:
    """The accumulators of a thread, in registers."""

    def __init__(self, config: BlockwiseFP8MatmulConfig) -> None:
        self._config = config
        pieces = config.accumulator_columns // config.promoted_columns
        layout = tensor_move(MOVE.name, config.promoted_columns // MOVE.columns)
        halves = 2 if config.epilogue.is_lower_frag_required else 1
        self._pieces = [[Accumulator("f32", layout) for _ in range(halves)] for _ in range(pieces)]

    def clear(self) -> None:
        for halves in self._pieces:
            for half in halves:
                half.set(0.0)

    def fetch(self, piece: int) -> None:
        """Do nothing: registers are at hand."""

    def fetched(self) -> TmemFragments | None:
        return None

    def add(self, piece: int, held: TmemFragments | None, partial: TmemFragments, scale: Scale) -> None:
        for half, accumulator in enumerate(self._pieces[piece]):
            loaded = partial.lower if half else partial.upper
            assert loaded is not None
            places = places_of(len(loaded.values))
            for register, value, (row, column) in zip(accumulator.registers, loaded.values, places, strict=True):
                register.set(fma(value, scale(row + half * LANE_ALIGNMENT, column), register))

    def end(self) -> None:
        """Do nothing: registers are written at once."""

    def subtile(self, index: int) -> TmemFragments:
        config = self._config
        count = config.stageN // config.promoted_columns
        halves = zip(*self._pieces[index * count : (index + 1) * count], strict=True)
        layout = tensor_move(MOVE.name, config.epilogue.rep)
        joined = (tuple(value for piece in half for value in piece.read().values) for half in halves)
        return TmemFragments(*(Fragment(values, layout) for values in joined))


class _TmemTotals:
    """The sums of a tile in TMEM, after the accumulators: every K tile is added to what is loaded, and stored."""

    def __init__(self, config: BlockwiseFP8MatmulConfig, role: Role, tmem: TmemAllocation) -> None:
        self._config = config
        self._place = TmemAddress(tmem.addr + config.sums_column).of_warp(role.warp)
        self._sums = self._array(config.promoted_columns)
        self._next: TmemFragments | None = None

    def _array(self, width: int) -> TmemArrayType:
        config = self._config
        count = config.accumulator_columns // width
        return TmemArrayType("f32", (config.BM, width), count, config.cta_group).at(self._place)

    def clear(self) -> None:
        repeats = self._config.promoted_columns // MOVE.columns
        zeros = Fragment((literal(0.0, "f32"),) * (repeats * MOVE.registers), tensor_move(MOVE.name, repeats))
        lower = zeros if self._config.epilogue.is_lower_frag_required else None
        for piece in range(len(self._sums)):
            self._sums[piece].store_fragments(TmemFragments(zeros, lower))
        self.end()

    def fetch(self, piece: int) -> None:
        self._next = self._sums[piece].load_fragments(self._config.promoted_columns // MOVE.columns)

    def fetched(self) -> TmemFragments | None:
        return self._next

    def add(self, piece: int, held: TmemFragments | None, partial: TmemFragments, scale: Scale) -> None:
        assert held is not None
        upper = self._added(held.upper, partial.upper, scale, 0)
        lower = None
        if held.lower is not None and partial.lower is not None:
            lower = self._added(held.lower, partial.lower, scale, LANE_ALIGNMENT)
        self._sums[piece].store_fragments(TmemFragments(upper, lower))

    def _added(self, held: Fragment, partial: Fragment, scale: Scale, down: int) -> Fragment:
        each = zip(partial.values, held.values, places_of(len(held.values)), strict=True)
        return Fragment(tuple(fma(x, scale(row + down, column), old) for x, old, (row, column) in each), held.layout)

    def end(self) -> None:
        """Wait for the stores, before the next K tile loads what they wrote."""
        TmemAddress.wait_store()

    def subtile(self, index: int) -> TmemFragments:
        config = self._config
        loaded = self._array(config.stageN)[index].load_fragments(config.epilogue.rep)
        TmemAddress.wait_load()
        return loaded
