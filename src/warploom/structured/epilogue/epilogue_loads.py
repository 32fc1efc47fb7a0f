"""Epilogue loads: a matrix of C's shape, or one row for all rows of C, loaded by a separate role and added.

Each object serves both roles: `load` fills the stages of a tile in one role, the other writes with its `inputs`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from warploom.diagnostics import Diag
from warploom.hardware.swizzles import GRANULE
from warploom.hardware.threads import WARP_LANES
from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig
from warploom.structured.epilogue.auxiliary import (
    AuxiliaryLayout,
    AuxiliaryTiles,
    Bias,
    EpilogueInput,
    HeldInput,
    StreamedTiles,
    WholeTile,
)
from warploom.structured.epilogue.tile_writer import TileWriter
from warploom.structured.pipelines.epilogue_load_pipeline import EpiLoadPipeline
from warploom.structured.pipelines.signals import CopyAsync
from warploom.structured.pipelines.start_up import start_up
from warploom.trace import isa
from warploom.trace.builder import here
from warploom.trace.language.control import when
from warploom.trace.language.operations import clamp
from warploom.trace.language.roles import Roles
from warploom.trace.language.values import literal, select, valued
from warploom.trace.language.views import Index, View, shared
from warploom.trace.language.warps import lane
from warploom.trace.parameters import TensorMapArgument


class EpilogueLoad(Protocol):
    """A source that one role loads and another one adds; of several splits of K only the final one."""

    def load(self, tile: Any) -> None:
        """Load the source of a tile, in the epilogue-load role."""

    def inputs(self, writer: TileWriter) -> dict[str, EpilogueInput]:
        """Return the source as keywords of `TileWriter.write`, in the epilogue role."""


def epilogue_load(
    source: TensorMapArgument | View, config: MatmulConfig, roles: Roles, cluster: Cluster, *, columns: Index
) -> EpilogueLoad:
    """Create the epilogue load that a configuration selects: a row of `columns` elements, or a matrix."""
    if isinstance(source, View) != config.epilogue_is_1d:
        what = "the source must be a tensor map for a matrix, and an array where `epilogue_is_1d`"
        raise Diag.BAD_KERNEL.error(here(), what=what)
    if isinstance(source, View):
        return RowLoad(source, config, roles, cluster, columns)
    return MatrixLoad(source, config, roles, cluster)


def matrix_layout(config: MatmulConfig) -> AuxiliaryLayout:
    """Return the layout of a stage of a matrix: a subtile, or a whole tile where A and B are swapped."""
    kind = "tile" if config.AB_swapped else "subtiles"
    return AuxiliaryLayout(config.written.epilogue, config.c_type, kind, config.epi_load_swizzle)


def matrix_box(config: MatmulConfig) -> tuple[int, int]:
    """Return the box of the source's tensor map, whose swizzle is `epi_load_swizzle`."""
    return matrix_layout(config).box


def _final(splits: int, tile: Any) -> AbstractContextManager[None]:
    """Only the final split adds a source."""
    return when(tile.is_final) if splits > 1 else nullcontext()


class MatrixLoad:
    """A matrix of C's shape and type, loaded by TMA."""

    def __init__(self, source: TensorMapArgument, config: MatmulConfig, roles: Roles, cluster: Cluster) -> None:
        layout, stages = matrix_layout(config), config.num_tma_epilogue_pipeline_stages
        self._splits = config.num_split_k
        self._tiles = AuxiliaryTiles(
            source,
            layout.epc,
            layout.kind,
            stages,
            dtype=config.c_type,
            swizzle=config.epi_load_swizzle,
            role=roles.epilogue_load,
        )
        self._pipeline = EpiLoadPipeline(stages, producer=roles.epilogue_load, consumer=roles.epilogue, cluster=cluster)
        start_up().maps.append(source)

    def load(self, tile: Any) -> None:
        with _final(self._splits, tile):
            for subtile, half in self._tiles.order:
                with self._pipeline.produce() as stage:
                    self._tiles.load(stage, tile, subtile, half)

    def inputs(self, writer: TileWriter) -> dict[str, EpilogueInput]:
        tiles, layout, pipeline = self._tiles.tiles, self._tiles.layout, self._pipeline.pipeline
        if layout.kind == "subtiles":
            return {"residual": StreamedTiles(layout, tiles, pipeline, writer.part)}
        of_stage = lambda index: WholeTile(layout, tiles[index].place, writer.part)  # noqa: E731
        return {"residual": HeldInput(pipeline, writer.num_stages, of_stage)}


class RowLoad:
    """One row of C's type, loaded with 16-byte `cp.async` copies; the last copy is padded with zeros.

    The row must be contiguous and aligned to 16 bytes.
    """

    def __init__(self, source: View, config: MatmulConfig, roles: Roles, cluster: Cluster, columns: Index) -> None:
        length, stages = config.epilogue_load_elements, config.num_tma_epilogue_pipeline_stages
        self._splits = config.num_split_k
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
            *([f"its type is .{source.dtype}, C's is .{config.c_type}"] if source.dtype != config.c_type else []),
            *([] if contiguous else ["its elements are not contiguous"]),
            *([f"its alignment is {source.alignment} bytes"] if source.alignment % GRANULE else []),
        ]
        if problems:
            raise Diag.BAD_KERNEL.error(here(), what=f"no 16-byte copies of the row: {'; '.join(problems)}")

    def load(self, tile: Any) -> None:
        dimension, extent = self._tile_columns
        start = tile.coord[dimension] * extent
        batch = (tile.batch,) if len(self._source.shape) > 1 else ()
        with _final(self._splits, tile), self._pipeline.produce() as stage:
            for first in range(0, self._pieces, WARP_LANES):
                with when(lane() + first < self._pieces):
                    at = (lane() + first).to("s32") * self._width
                    left = clamp((self._columns - start - at) * self._source.element_bytes, 0, GRANULE)
                    column = select(left > 0, start + at, literal(0, "s32"))  # even for no bytes
                    target, source = self._rows.at(stage.index(), at), self._source.at(*batch, column)
                    isa.cp.async_.cg(target, source, GRANULE, left.to("u32"), space="shared")

    def inputs(self, writer: TileWriter) -> dict[str, EpilogueInput]:
        of_stage = lambda index: Bias(self._rows[index], writer.part)  # noqa: E731
        return {"bias": HeldInput(self._pipeline.pipeline, writer.num_stages, of_stage)}
