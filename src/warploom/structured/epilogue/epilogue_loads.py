"""What the epilogue-load role brings and the epilogue adds: a matrix of C's shape, or one row for all rows of C.

Each object speaks for both roles: `load` fills the stages of a tile in one, `write` consumes them in the other.
"""

from __future__ import annotations

from typing import Any, Protocol

from warploom.diagnostics import Diag
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.threads import WARP_LANES
from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig
from warploom.structured.epilogue.auxiliary import AuxiliaryLayout, AuxiliaryTiles
from warploom.structured.epilogue.tile_writer import Shape, TileWriter
from warploom.structured.epilogue.writer_protocols import AccumulatorStage
from warploom.structured.pipelines.epilogue_load_pipeline import EpiLoadPipeline
from warploom.structured.pipelines.signals import CopyAsync
from warploom.structured.pipelines.start_up import start_up
from warploom.trace.builder import here
from warploom.trace.isa.emit import emit
from warploom.trace.language.control import when
from warploom.trace.language.operations import clamp
from warploom.trace.language.roles import Roles
from warploom.trace.language.values import literal, select, valued
from warploom.trace.language.views import Index, View, shared
from warploom.trace.language.warps import lane
from warploom.trace.parameters import TensorMapArgument


class EpilogueLoad(Protocol):
    """A source that one role loads and another adds."""

    def load(self, tile: Any) -> None:
        """Load what a tile needs, in the epilogue-load role."""

    def write(self, writer: TileWriter, acc: AccumulatorStage, tile: Any, shape: Shape) -> None:
        """Write an accumulator with it added, in the epilogue."""


def epilogue_load(
    source: TensorMapArgument | View, config: MatmulConfig, roles: Roles, cluster: Cluster, *, columns: Index
) -> EpilogueLoad:
    """The source that a configuration names: a row of `columns` elements, or a matrix."""
    if isinstance(source, View) != config.epilogue_is_1d:
        what = "a matrix that the copy engine loads is a tensor map, and a row that threads load is an array"
        raise Diag.BAD_KERNEL.error(here(), what=what)
    if isinstance(source, View):
        return RowLoad(source, config, roles, cluster, columns)
    return MatrixLoad(source, config, roles, cluster)


def matrix_layout(config: MatmulConfig) -> AuxiliaryLayout:
    """How a stage of a matrix lies in shared memory: a strip of a tile, or all of it where A and B are swapped."""
    kind = "tile" if config.AB_swapped else "subtiles"
    return AuxiliaryLayout(config.epilogue, config.c_type, kind, config.epi_load_swizzle)


def matrix_box(config: MatmulConfig) -> tuple[int, int]:
    """The box of the source's tensor map, whose swizzle is `epi_load_swizzle`."""
    return matrix_layout(config).box


class MatrixLoad:
    """A matrix of C's shape and type, by the copy engine."""

    def __init__(self, source: TensorMapArgument, config: MatmulConfig, roles: Roles, cluster: Cluster) -> None:
        layout, stages = matrix_layout(config), config.num_tma_epilogue_pipeline_stages
        self._tiles = AuxiliaryTiles(
            source,
            config.epilogue,
            layout.kind,
            stages,
            dtype=config.c_type,
            swizzle=config.epi_load_swizzle,
            role=roles.epilogue_load,
        )
        self._pipeline = EpiLoadPipeline(stages, producer=roles.epilogue_load, consumer=roles.epilogue, cluster=cluster)
        start_up().maps.append(source)

    def load(self, tile: Any) -> None:
        for subtile, half in self._tiles.order:
            with self._pipeline.produce() as stage:
                self._tiles.load(stage, tile, subtile, half)

    def write(self, writer: TileWriter, acc: AccumulatorStage, tile: Any, shape: Shape) -> None:
        tiles = self._tiles.tiles
        if self._tiles.layout.kind == "subtiles":
            pipeline = self._pipeline.pipeline
            writer.write_batched_with_tma_epilogue_load_strips(acc, pipeline, tiles, None, tile, shape)
            return
        with self._pipeline.consume() as stage:
            writer.write_batched_with_tma_epilogue_load(acc, tiles[stage.index()], tile, shape)


class RowLoad:
    """One row of C's type, by 16 bytes of each lane; a piece that the row's end cuts is filled up with zeros.

    The row must lie contiguous and begin at a multiple of 16 bytes.
    """

    def __init__(self, source: View, config: MatmulConfig, roles: Roles, cluster: Cluster, columns: Index) -> None:
        length, stages = config.epilogue_load_elements, config.num_tma_epilogue_pipeline_stages
        self._source, self._columns = source, valued(columns, "s32")
        self._tile_columns = (0, config.BM) if config.AB_swapped else (1, config.MMA_N)
        self._width = GRANULE // source.element_bytes
        self._pieces = length // self._width
        self._rows = shared(config.c_type, (stages, length), name="epilogue_tiles")
        signal = CopyAsync(roles.epilogue_load, first=min(self._pieces, WARP_LANES))
        self._pipeline = EpiLoadPipeline(
            stages, producer=roles.epilogue_load, consumer=roles.epilogue, signal=signal, cluster=cluster
        )
        contiguous = isinstance(source.strides[-1], int) and source.strides[-1] == 1
        problems = [
            *([f"it is of .{source.dtype}, not of .{config.c_type}"] if source.dtype != config.c_type else []),
            *([] if contiguous else ["its elements are not contiguous"]),
            *([f"rows begin at multiples of {source.alignment} bytes"] if source.alignment % GRANULE else []),
        ]
        if problems:
            raise Diag.BAD_KERNEL.error(here(), what=f"a row cannot be loaded by 16 bytes: {'; '.join(problems)}")

    def load(self, tile: Any) -> None:
        dimension, extent = self._tile_columns
        start = tile.coord[dimension] * extent
        batch = (tile.batch,) if len(self._source.shape) > 1 else ()
        with self._pipeline.produce() as stage:
            for first in range(0, self._pieces, WARP_LANES):
                with when(lane() + first < self._pieces):
                    at = (lane() + first).to("s32") * self._width
                    left = clamp((self._columns - start - at) * self._source.element_bytes, 0, GRANULE)
                    column = select(left > 0, start + at, literal(0, "s32"))  # nothing is read there, but it must exist
                    target, source = self._rows.at(stage.index(), at), self._source.at(*batch, column)
                    emit("cp.async.cg.shared.global", target, source, GRANULE, left.to("u32"))

    def write(self, writer: TileWriter, acc: AccumulatorStage, tile: Any, shape: Shape) -> None:
        with self._pipeline.consume() as stage:
            writer.write_batched_with_1d_bias(acc, self._rows[stage.index()], tile, shape)
