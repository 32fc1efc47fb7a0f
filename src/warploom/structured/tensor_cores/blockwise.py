"""Blockwise FP8: the epilogue scales the result of each K tile and accumulates it in float32 registers.

Each K tile has its own accumulator in TMEM, so that the tensor core computes the next one while this one is promoted.
A's scales, one per row, come with the operands; B's, one for many columns, are read from global memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Any, Protocol

from warploom.hardware.fragments import tensor_move
from warploom.hardware.tensor_maps import SHARED_ALIGNMENT
from warploom.hardware.tmem import LANE_ALIGNMENT
from warploom.structured.cluster import Cluster
from warploom.structured.config import BlockwiseFP8MatmulConfig
from warploom.structured.epilogue.staging import first_place
from warploom.structured.epilogue.subtiles import WarpPart
from warploom.structured.pipelines.operand_tiles import copy_box
from warploom.structured.pipelines.output_pipeline import EpilogueKStage
from warploom.structured.tensor_cores.tmem import MOVE, TmemAddress, TmemArrayType, TmemFragments, places_of
from warploom.trace.isa.emit import At
from warploom.trace.language.fragments import Accumulator, Fragment
from warploom.trace.language.operations import fma, min_
from warploom.trace.language.roles import Role
from warploom.trace.language.types import TYPES
from warploom.trace.language.values import Value, select
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument


class BlockwiseShape(Protocol):
    """The parts of a blockwise configuration, of Hopper or Blackwell, that are needed here."""

    @property
    def BM(self) -> int: ...

    @property
    def num_pipeline_stages(self) -> int: ...

    @property
    def scale_type(self) -> str: ...

    @property
    def scale_granularity(self) -> int: ...

    @property
    def accumulator_columns(self) -> int: ...


class RowScales:
    """The scales of A's rows in the input stages: for one K tile and the rows of this CTA."""

    local = True

    def __init__(
        self, source: TensorMapArgument, config: BlockwiseShape, row: Callable[[Any], Value] | None = None
    ) -> None:
        """The source has shape (K tiles, rows); `row` maps a tile of work to its first row."""
        self.source, self._rows = source, config.BM
        self._row = row or (lambda tile: tile.m * config.BM)
        shape = (config.num_pipeline_stages, config.BM)
        self.storage: View = shared(config.scale_type, shape, name="a_scales", align=SHARED_ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self._rows * TYPES[self.storage.dtype].bytes

    def load(self, index: Value, tile: Any, k: Value, barrier: At, cluster: Cluster) -> None:
        """Issue the copy of the scales of K tile `k`; rows outside A are filled with zeros."""
        batch = (tile.batch,) if len(self.source.geometry.box) > 2 else ()
        copy_box(self.storage[index].place, self.source.at(*batch, k, self._row(tile)), barrier, cluster)

    def read(self, index: Value, row: Value) -> Value:
        """Load the scale of a row of the CTA's tile."""
        value: Value = self.storage[index, row]
        return value.to("f32")


def scale_blocks(start: int, width: int, granularity: int) -> int:
    """Return the number of scale blocks that the `width` columns from `start` touch."""
    return (start + width - 1) // granularity - start // granularity + 1


@dataclass(frozen=True)
class ColumnScales:
    """The scales of B in global memory: one for every `scale_granularity` columns of C and every K tile."""

    source: View
    config: BlockwiseShape
    columns: Value
    """The number of columns of C; after them there are no scales."""

    @property
    def _starts(self) -> range:
        """The offsets inside a scale block at which the columns of a warp may start."""
        config = self.config
        return range(0, config.scale_granularity, gcd(config.accumulator_columns, config.scale_granularity))

    @property
    def most_blocks(self) -> int:
        """The maximum number of scale blocks that the columns of a warp touch."""
        config = self.config
        return max(scale_blocks(at, config.accumulator_columns, config.scale_granularity) for at in self._starts)

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
    """A warp's float32 accumulator of a tile in registers, which a `TileWriter` reads subtile by subtile."""

    def __init__(
        self,
        config: BlockwiseFP8MatmulConfig,
        role: Role,
        rows: RowScales,
        columns: ColumnScales,
        column: Callable[[Any], Value] | None = None,
    ) -> None:
        """`column` maps a tile of work to its first column of C."""
        self._config, self._role, self._rows, self._columns = config, role, rows, columns
        self._column = column or (lambda tile: tile.n * config.MMA_N)
        self._part = WarpPart(config.epilogue, role.warp)
        pieces = config.accumulator_columns // config.promoted_columns
        layout = tensor_move(MOVE.name, config.promoted_columns // MOVE.columns)
        halves = 2 if config.epilogue.is_lower_frag_required else 1
        self._pieces = [[Accumulator("f32", layout) for _ in range(halves)] for _ in range(pieces)]

    def clear(self) -> None:
        """Set the accumulator to zero, for a new tile."""
        for halves in self._pieces:
            for half in halves:
                half.set(0.0)

    def first_column(self, tile: Any) -> Value:
        """Return the warp's first column of a tile in C."""
        return self._column(tile) + self._part.column.to("s32")

    def column_scales(self, tile: Any, k: Value) -> list[Value]:
        """Load B's scales of a K tile; called before the wait for the accumulator, to hide the latency."""
        return self._columns.load(self._columns.blocks(self.first_column(tile), tile.batch), k)

    def promote(self, stage: EpilogueKStage, tile: Any, column_scales: list[Value]) -> None:
        """Scale the result of a K tile and add it; the input stage is released as soon as A's scales have been read."""
        row_scales = self._row_scales(stage)
        stage.arrive_input()
        config, first = self._config, self.first_column(tile)
        shape, width = (config.BM, config.promoted_columns), config.promoted_columns
        array = TmemArrayType("f32", shape, len(self._pieces), config.cta_group)
        partials = array.at(stage.tmem.address(self._role.warp))
        upcoming = partials[0].load_fragments(width // MOVE.columns)
        for piece, halves in enumerate(self._pieces):
            TmemAddress.wait_load()
            partial = upcoming
            if piece + 1 < len(self._pieces):
                upcoming = partials[piece + 1].load_fragments(width // MOVE.columns)
            else:
                stage.release()
            column_scale = self._columns.of(column_scales, first, piece * width)
            scales = {row: scale * column_scale for row, scale in row_scales.items()}
            for half, accumulator in enumerate(halves):
                loaded = partial.lower if half else partial.upper
                assert loaded is not None
                _add(accumulator, loaded, scales, half * LANE_ALIGNMENT)

    def _row_scales(self, stage: EpilogueKStage) -> dict[int, Value]:
        """Load A's scales of the rows that a thread has, by their distance from its first row."""
        down, _ = first_place()
        first = self._part.row + down
        rows = range(0, self._part.rows, MOVE.lanes // 2)
        return {row: self._rows.read(stage.input_stage_index, first + row) for row in rows}

    def subtile(self, index: int) -> TmemFragments:
        """Return the accumulators of one subtile."""
        config = self._config
        count = config.stageN // config.promoted_columns
        halves = zip(*self._pieces[index * count : (index + 1) * count], strict=True)
        layout = tensor_move(MOVE.name, config.epilogue.rep)
        joined = (tuple(value for piece in half for value in piece.read().values) for half in halves)
        return TmemFragments(*(Fragment(values, layout) for values in joined))


def _add(accumulator: Accumulator, partial: Fragment, scales: dict[int, Value], down: int) -> None:
    """Add partial·scale with one FMA per element; `down` is the fragment's first row."""
    rows = [row for row, _ in places_of(len(partial.values))]
    for register, value, row in zip(accumulator.registers, partial.values, rows, strict=True):
        register.set(fma(value, scales[down + row], register))
