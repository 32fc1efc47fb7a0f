"""Epilogue inputs in shared memory: their layout, the copies that fill them, and the loads that read them.

One object describes both sides, so that producer and consumer agree on the order and on every byte. A `residual` has
one stage per subtile, in the layout in which C is staged; `subtiles` have one per subtile and half of a folded
accumulator; a `tile` is whole. A `Bias` is one row of C, also with transposed tiles, where it runs along the
accumulator's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from warploom.hardware.swizzles import SWIZZLES
from warploom.structured.config.output import EpilogueConfig
from warploom.structured.epilogue.staging import SharedLayout, SubtileStore, Values, block_width, first_place
from warploom.structured.epilogue.subtiles import Subtile, WarpPart
from warploom.structured.epilogue.tile_store import Box, boxes_of, load_box
from warploom.structured.pipelines.pipeline import ProducerConsumerPipeline
from warploom.structured.pipelines.stages import ProducerStage
from warploom.trace.isa.emit import At
from warploom.trace.language.control import when
from warploom.trace.language.roles import Role
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.views import View, shared
from warploom.trace.parameters import TensorMapArgument


class EpilogueInput(Protocol):
    """A source of the values that the epilogue adds to a subtile."""

    def values(self, subtile: Subtile) -> Values:
        """Return the values in the layout in which the thread holds the subtile."""
        ...


@dataclass(frozen=True)
class AuxiliaryLayout:
    """The layout of an epilogue input in shared memory, by its kind."""

    epc: EpilogueConfig
    dtype: str
    kind: str
    swizzle: str

    @cached_property
    def layout(self) -> SharedLayout:
        """The layout of one stage."""
        epc = self.epc
        rows = epc.BM * (epc.num_col_warp_groups if self.kind == "residual" else 1)
        columns = epc.MMA_N if self.kind == "tile" else epc.stageN
        shape = (columns, rows) if epc.transpose_c else (rows, columns)
        width = block_width(self.dtype, self.swizzle, epc.BM if epc.transpose_c else columns)
        return SharedLayout(self.dtype, *shape, width, SWIZZLES[self.swizzle], epc.transpose_c)

    @property
    def bytes(self) -> int:
        """Bytes of one stage."""
        return self.layout.bytes

    @property
    def box(self) -> tuple[int, int]:
        """The box of the tensor map that fills it."""
        epc = self.epc
        return (self.layout.rows, self.layout.width) if epc.transpose_c else (epc.BM, self.layout.width)

    @property
    def order(self) -> Iterator[tuple[int, int]]:
        """The subtile and the half of each stage of a tile, in the order in which they are produced and consumed."""
        subtiles = 1 if self.kind == "tile" else self.epc.num_stages
        groups = self.epc.num_col_warp_groups if self.kind == "subtiles" else 1
        return ((subtile, group) for subtile in range(subtiles) for group in range(groups))

    @property
    def subtiles(self) -> SubtileStore:
        return SubtileStore(self.layout, self.epc.stageN, self.epc.is_lower_frag_required)

    def boxes(self, subtile: int, group: int) -> list[Box]:
        """Return the boxes of one stage."""
        start = subtile * self.epc.stageN + group * self.epc.accumulator_columns
        return boxes_of(self.layout, self.box, self.epc, start)


class AuxiliaryTiles:
    """The tiles of an epilogue input: a ring in shared memory, filled from a tensor map."""

    def __init__(
        self,
        source: TensorMapArgument,
        epc: EpilogueConfig,
        kind: str,
        stages: int,
        *,
        dtype: str,
        swizzle: str,
        role: Role,
        name: str = "epilogue_tiles",
    ) -> None:
        self.source, self.role = source, role
        self.layout = AuxiliaryLayout(epc, dtype, kind, swizzle)
        layout = self.layout.layout
        align = max(128, layout.swizzle.alignment)
        self.tiles = shared(dtype, (stages, layout.rows, layout.columns), name=name, align=align)

    @property
    def order(self) -> Iterator[tuple[int, int]]:
        """The subtile and the half of each stage of a tile: `for subtile, half in tiles.order:`."""
        return self.layout.order

    def load(self, stage: ProducerStage, tile: Any, subtile: int = 0, group: int = 0) -> None:
        """Fill a stage with its part of a tile; the role's elected lane expects the bytes and issues the copies."""
        epc = self.layout.epc
        barrier, place = stage.mbar().at, self.tiles[stage.index()].place
        m, n, batch = tile.coord
        with when(self.role.elected):
            stage.expect_bytes(self.layout.bytes)
            for box in self.layout.boxes(subtile, group):
                row, column = m * epc.BM + box.row, n * epc.MMA_N + box.column
                where = (column, row) if epc.transpose_c else (row, column)
                batches = (batch,) if len(self.source.geometry.box) > 2 else ()
                load_box(place + box.offset, self.source.at(*batches, *where), barrier)


@dataclass(frozen=True)
class StreamedTiles:
    """An epilogue input that comes through a pipeline: a stage for each subtile, or for each half of it."""

    layout: AuxiliaryLayout
    tiles: View
    pipeline: ProducerConsumerPipeline
    part: WarpPart

    def values(self, subtile: Subtile) -> Values:
        """Wait for each stage, read it with all threads and release it; a warp keeps the values of its half."""
        groups = self.part.epc.num_col_warp_groups if self.layout.kind == "subtiles" else 1
        row = self.part.row if self.layout.kind == "subtiles" else self.part.staged_row
        found: list[Values] = []
        for _ in range(groups):
            with self.pipeline.consume() as stage:
                tile: View = self.tiles[stage.index()]
                store = self.layout.subtiles
                found.append(store.load(store.place_to_load(tile.place, row, literal(0, "u32"))))
        if groups == 1:
            return found[0]
        is_right = self.part.group == 1
        return {where: select(is_right, found[1][where], value) for where, value in found[0].items()}


@dataclass(frozen=True)
class WholeTile:
    """An epilogue input that is in shared memory as a whole tile; the caller waits for it and releases it."""

    layout: AuxiliaryLayout
    tile: At
    part: WarpPart

    def values(self, subtile: Subtile) -> Values:
        store = self.layout.subtiles
        return store.load(store.place_to_load(self.tile, self.part.row, self.part.column + subtile.column))


@dataclass(frozen=True)
class HeldInput:
    """An epilogue input in one stage of a pipeline: the first subtile of a tile waits for it, the last one releases it.

    Subtiles may be in device branches of their own, as those of the final split are.
    """

    pipeline: ProducerConsumerPipeline
    subtiles: int
    of_stage: Callable[[Value], EpilogueInput]
    """The input in the stage with some index."""

    def values(self, subtile: Subtile) -> Values:
        pipeline, index = self.pipeline, self.pipeline.consumer_stage()
        if subtile.index == 0:
            pipeline.wait_producer()
        found = self.of_stage(index).values(subtile)
        if subtile.index == self.subtiles - 1:
            pipeline.consumer_side.signal(index)
            pipeline.consumer_step()
        return found


@dataclass(frozen=True)
class Bias:
    """A bias in shared memory: one value per column of C, starting at the tile's first column."""

    vector: View
    part: WarpPart

    def values(self, subtile: Subtile) -> Values:
        """Load the bias of each element of a thread in a subtile."""
        down, along = first_place()
        epc = self.part.epc
        rows = (0, 8, 16, 24)[: 4 if epc.is_lower_frag_required else 2]
        columns = range(0, epc.stageN, 8)
        if subtile.spot.transposed:
            of_row = {row: self.vector[(self.part.row + down).to("s32") + row] for row in rows}
            return {(row, column + p): of_row[row] for row in rows for column in columns for p in (0, 1)}
        first = (self.part.column + along).to("s32") + subtile.column
        pairs = {column: self.vector.load(first + column, count=2) for column in columns}
        return {(row, column + p): pairs[column][p] for row in rows for column in columns for p in (0, 1)}
