"""Writers from a configuration: the epilogue role of Blackwell kernels, consumer warpgroups of Hopper kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from warploom.hardware.mma_shapes import WGMMA_M
from warploom.structured.config import HopperConfig, MatmulConfig
from warploom.structured.epilogue.epilogue import Epilogue, Operand
from warploom.structured.epilogue.epilogue_loads import EpilogueLoad
from warploom.structured.epilogue.in_place_residual import InPlaceResidual
from warploom.structured.epilogue.row_vector import RowVector, SharedVector
from warploom.structured.epilogue.sinks import TmaStore
from warploom.structured.epilogue.staging import Values
from warploom.structured.epilogue.subtiles import TileSpot
from warploom.structured.epilogue.tile_writer import Output
from warploom.structured.epilogue.writer_geometry import StagedOutput
from warploom.structured.epilogue.writer_protocols import AccumulatorStage
from warploom.structured.named_barriers import OwnBarrier, WarpgroupBarriers
from warploom.structured.pages.tile_writer import TileWriter
from warploom.structured.schedulers.grouped import GroupedTile
from warploom.structured.split_k.exchange import unit_places, unit_start
from warploom.structured.tensor_cores.wgmma import RegisterTile, Warpgroup
from warploom.trace.language.control import when
from warploom.trace.language.roles import Roles
from warploom.trace.language.values import Value
from warploom.trace.language.views import Index, View, shared
from warploom.trace.parameters import TensorMapArgument

_MAX_ACCUMULATORS_WITH_BIAS = 160
"""Accumulators of a thread up to which its part of a bias is kept in registers without spilling."""


def epilogue_writer(
    d: Any,
    config: MatmulConfig,
    roles: Roles,
    epilogue: Epilogue,
    auxiliary: Mapping[str, Any] | None = None,
    arrays: Mapping[str, View] | None = None,
) -> TileWriter:
    """Create the writer of the epilogue role of a Blackwell kernel.

    `auxiliary` are the destinations of the epilogue's auxiliary outputs. In grouped GEMMs `arrays` are the same outputs
    as arrays, for tiles that end inside a box and are stored by threads.
    """
    outputs: dict[str, Output] = dict(auxiliary or {})
    if config.output_types:
        given, held = zip((auxiliary or {}).items(), config.output_types, strict=True), arrays or {}
        outputs = {name: StagedOutput(target, dtype, array=held.get(name)) for (name, target), dtype in given}
    return TileWriter(d, config.written, role=roles.epilogue, epilogue=epilogue, outputs=outputs)


def write_tile(
    writer: TileWriter,
    acc: AccumulatorStage,
    tile: Any,
    shape: tuple[Index, Index],
    *,
    source: EpilogueLoad | None = None,
    workspace: View | None = None,
    locks: View | None = None,
) -> None:
    """Write an accumulator to C, with an epilogue load added and, if there is a workspace, over all splits of K."""
    inputs: dict[str, Any] = {} if source is None else dict(source.inputs(writer))
    if workspace is None:
        writer.write(acc, tile.coord, shape, **inputs)
    else:
        writer.write_splitk(acc, None, workspace, tile, shape, locks=locks, **inputs)


def _vector_of(bias: Operand | None) -> View | None:
    """Return the source of a bias, if it is one row for all rows and batches."""
    if bias is None or bias.kind != "row" or not isinstance(bias.source, View) or len(bias.source.shape) != 1:
        return None
    return bias.source


class ConsumerWriter:
    """Writes the tile of a consumer warpgroup on Hopper, 64 rows at a time, with its own buffers and barrier."""

    def __init__(
        self,
        d: Any,
        config: HopperConfig,
        group: Warpgroup,
        epilogue: Epilogue,
        residual: TensorMapArgument | None = None,
        *,
        early: bool = True,
        outputs: Mapping[str, Any] | None = None,
        arrays: Mapping[str, View] | None = None,
    ) -> None:
        """Load a `residual` with TMA into the buffers of C, and, if `early`, a bias into registers, while the MMAs run.

        `outputs` are the destinations of auxiliary outputs; for `write_group`, `arrays` are the same as arrays.
        """
        self._config, self._group = config, group
        config = config.sliced
        found = {name: _vector_of(getattr(epilogue, name)) for name in ("bias", "up_bias")}
        vectors = {name: each for name, each in found.items() if each is not None and early and not config.splits_units}
        left: dict[str, Any] = dict.fromkeys(vectors)
        epilogue = replace(epilogue, **left)
        self._barrier = OwnBarrier(WarpgroupBarriers(group.threads, config.consumers), lambda: group.number)
        tiles = None
        if isinstance(d, TensorMapArgument):
            shape = (config.consumers, config.num_output_stages, *config.output_tile_shape)
            tiles = shared(config.c_type, shape, name="c_tiles", align=1024)[group.number]
        self._writer = TileWriter(
            d,
            config,
            role=group,
            epilogue=epilogue,
            c_tiles=tiles,
            barrier=self._barrier,
            outputs=self._staged(outputs or {}, arrays or {}, config),
        )
        self._vectors: dict[str, Any] = {name: self._vector(each) for name, each in vectors.items()}
        self._spots: list[TileSpot] = []
        self._is_written: Value | bool = True
        self._residual: InPlaceResidual | None = None
        if residual is not None:
            sink = self._writer.sink
            assert isinstance(sink, TmaStore)
            self._residual = InPlaceResidual(residual, sink.ring, group, config.consumers)

    def _vector(self, source: View) -> RowVector | SharedVector:
        """Keep a bias in registers if there are enough, else in shared memory; transposed tiles need few registers."""
        config, epc = self._config, self._writer.epc
        if config.AB_swapped or config.accumulators <= _MAX_ACCUMULATORS_WITH_BIAS:
            return RowVector(source, epc)
        return SharedVector(source, epc, self._group, config.consumers)

    def _staged(
        self, outputs: Mapping[str, Any], arrays: Mapping[str, View], config: HopperConfig
    ) -> dict[str, Output]:
        """Return the auxiliary outputs, with buffers if they are staged in shared memory."""
        if not config.output_types:
            return dict(outputs)
        made = dict[str, Output]()
        for (name, target), dtype in zip(outputs.items(), config.output_types, strict=True):
            shape = (config.consumers, config.auxiliary_buffers, *config.output_tile_shape)
            tiles = shared(dtype, shape, name=f"{name}_tiles", align=1024)[self._group.number]
            made[name] = StagedOutput(target, dtype, tiles, arrays.get(name))
        return made

    def begin(
        self, tile: Any, shape: tuple[Index, Index], slice_: Index = 0, *, is_written: Value | bool = True
    ) -> None:
        """Load the bias of a tile, or of a slice of it, before its MMAs.

        `is_written` is false for partial tiles, which have no residual in the buffers of C.
        """
        self._spots = [self._writer.spot(coord, shape) for coord in self._coords(tile, slice_)]
        self._is_written = is_written
        if self._config.splits_units:
            self._spots = [self._spots[0].moved(*unit_start(self._config, tile.split))]
            self._writer.read_early(unit_places(self._config), self._spots[0])
        for vector in self._vectors.values():
            vector.load(self._spots)

    def load_residual(self, k: Value, k_tiles: Value) -> None:
        """Load the residual halfway through the K tiles: at first, operands need the bandwidth."""
        if self._residual is not None:
            with when(self._is_written), when(k == k_tiles >> 1):
                self._residual.load(self._spots[: self._residual.pieces])

    def write(self, parts: Sequence[RegisterTile], tile: Any, shape: tuple[Index, Index], slice_: Index = 0) -> None:
        """Write the accumulators of a tile, or of one slice of its columns; `shape` is that of C."""
        residual = self._residual
        if any(isinstance(vector, SharedVector) for vector in self._vectors.values()):
            self._barrier.sync()
        for number, (part, coord) in enumerate(zip(parts, self._coords(tile, slice_), strict=True)):
            if residual is not None and number % residual.pieces == 0:
                if number:
                    residual.load(self._spots[number : number + residual.pieces])
                residual.wait()
            self._writer.write(part, coord, shape, **self._vectors, residual=residual)

    def write_unit(self, values: Values) -> None:
        """Write a split's unit of the tile that was begun."""
        self._writer.write_values(values, self._spots[0])

    def _coords(self, tile: Any, slice_: Index) -> list[tuple[Index, Index, Index]]:
        """Return the coordinates of a tile's blocks, in units of 64 rows and a slice of columns."""
        config = self._config
        own = tile.m * (config.tile_rows // WGMMA_M)
        if not config.pingpong:
            own = own + self._group.number.to("s32") * config.blocks
        column = tile.n if config.splits_units else tile.n * config.num_split_k + slice_
        return [(own + at, column, tile.batch) for at in range(config.blocks)]

    def write_group(
        self,
        parts: Sequence[RegisterTile],
        place: tuple[Value, Value],
        n_end: Index,
        tile: GroupedTile,
        target: View,
    ) -> None:
        """Write the accumulators of a tile of a grouped GEMM, scaled, up to the group's end and column `n_end` of C.

        `place` is the tile's start along M and N of the MMA; `target` is C as an array, for tiles cut inside a box.
        """
        config, (down, along) = self._config, place
        if not config.pingpong:
            down = down + self._group.number.to("s32") * config.written_rows
        for number, part in enumerate(parts):
            first = down + number * WGMMA_M
            start = (along, first) if config.AB_swapped else (first, along)
            self._writer.write_absolute_with_bounds_check(
                part, *start, tile.m_end, tile.scale, target, n_end=n_end, batch=tile.expert
            )
