"""What the Hopper families have in common: a configuration as an input pipeline and a writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from warploom.facts.mma_shapes import WGMMA_M
from warploom.facts.swizzles import SWIZZLES
from warploom.structured.cluster import Cluster
from warploom.structured.config.hopper import ROW_BYTES, HopperConfig
from warploom.structured.dependent_launch import launch_dependents, wait_for_dependencies
from warploom.structured.epilogue import Epilogue, Operand
from warploom.structured.in_place import InPlaceResidual
from warploom.structured.input_pipeline import InputTilePipeline, StandardTilePayload, TilePayload
from warploom.structured.operand import OperandLayout, OperandTiles
from warploom.structured.row_vector import RowVector
from warploom.structured.signals import EachPeer
from warploom.structured.sinks import TmaStore
from warploom.structured.staging import Values
from warploom.structured.tile_writer import TileWriter
from warploom.structured.warp_group_barrier import OwnBarrier, WarpgroupBarriers
from warploom.structured.wgmma import RegisterTile, Warpgroup
from warploom.trace.memory import Index, View, shared
from warploom.trace.parameters import TensorMapArgument
from warploom.trace.roles import Roles
from warploom.trace.values import Value

Row = Callable[[Any], Value]


def begin_role(config: HopperConfig) -> None:
    """What each role does first where kernels overlap: let the next one come, and wait for the results of the last."""
    if config.dependent:
        launch_dependents()
        wait_for_dependencies()


def layouts(config: HopperConfig) -> tuple[OperandLayout, OperandLayout]:
    """How a tile of A and of B lies in shared memory, and how it is cut among the CTAs that share it."""
    x, y = (1, 1) if config.num_split_k > 1 else config.cluster_shape[:2]
    return (
        OperandLayout(config.BM, config.BK, config.element_bits, config.a_major, "128B", y),
        OperandLayout(config.BN, config.BK, config.element_bits, config.b_major, _b_swizzle(config), x),
    )


def _b_swizzle(config: HopperConfig) -> str:
    """The widest swizzle whose span B's rows fill, where they are contiguous; along K a tile is one span."""
    row = config.BN * config.element_bits // 8 if config.b_major == "mn" else ROW_BYTES
    return next(name for name in ("128B", "64B", "32B", "none") if row % (SWIZZLES[name].span or 1) == 0)


def operand_tiles(
    a: TensorMapArgument,
    b: TensorMapArgument,
    config: HopperConfig,
    cluster: Cluster,
    a_row: Row | None = None,
    b_row: Row | None = None,
) -> tuple[OperandTiles, OperandTiles]:
    """The tiles of A and B; where a tile of work has its rows of each is told by functions, if not by its place."""
    (a_layout, b_layout), count = layouts(config), config.num_pipeline_stages
    rows = a_row or (lambda tile: tile.m * config.BM)
    columns = b_row or (lambda tile: tile.n * config.BN)
    return (
        OperandTiles("a_tiles", a, a_layout, count, rows, share=cluster.rank_n, peers=cluster.sharing_a),
        OperandTiles("b_tiles", b, b_layout, count, columns, share=cluster.rank_m, peers=cluster.sharing_b),
    )


def staged_inputs(payload: TilePayload, config: HopperConfig, roles: Roles, cluster: Cluster) -> InputTilePipeline:
    """Stages from the load role to the consumers; every warp of theirs answers every CTA that fills its stages."""
    peers = cluster.sharing if config.num_split_k == 1 else cluster.alone
    answer = EachPeer(roles.consume, turns=config.consumers if config.pingpong else 1, peers=peers)
    return InputTilePipeline(payload, config.num_pipeline_stages, producer=roles.load, consumer=answer, cluster=cluster)


def operand_inputs(
    a: TensorMapArgument, b: TensorMapArgument, config: HopperConfig, roles: Roles, cluster: Cluster, **rows: Row
) -> InputTilePipeline:
    """A and B from the load role to the consumers."""
    return staged_inputs(StandardTilePayload(*operand_tiles(a, b, config, cluster, **rows)), config, roles, cluster)


def _vector_of(bias: Operand | None) -> View | None:
    """The source of a bias, if it is one row for all rows and batches."""
    if bias is None or bias.kind != "row" or not isinstance(bias.source, View) or len(bias.source.shape) != 1:
        return None
    return bias.source


class ConsumerWriter:
    """Writes a consumer's tile, 64 rows at a time; each warpgroup has its own buffers and its own barrier."""

    def __init__(
        self,
        d: Any,
        config: HopperConfig,
        group: Warpgroup,
        epilogue: Epilogue,
        residual: TensorMapArgument | None = None,
        *,
        early: bool = True,
    ) -> None:
        """A `residual` that the copy engine loads comes into the buffers of C while the tile is multiplied, and so does
        a bias into registers, unless they are not to come so `early`.
        """
        self._config, self._group = config, group
        config = config.sliced
        vector = _vector_of(epilogue.bias) if early and not config.splits_units else None
        epilogue = epilogue if vector is None else replace(epilogue, bias=None)
        barriers = WarpgroupBarriers(group.threads, config.consumers)
        tiles = None
        if isinstance(d, TensorMapArgument):
            shape = (config.consumers, config.num_output_stages, *config.output_tile_shape)
            tiles = shared(config.c_type, shape, name="c_tiles", align=1024)[group.number]
        self._writer = TileWriter(
            d,
            config,  # type: ignore[arg-type] # it has what a writer reads
            role=group,  # type: ignore[arg-type]
            epilogue=epilogue,
            c_tiles=tiles,
            barrier=OwnBarrier(barriers, lambda: group.number),  # type: ignore[arg-type]
        )
        self._bias = None if vector is None else RowVector(vector, self._writer.epc)
        self._residual: InPlaceResidual | None = None
        if residual is not None:
            sink = self._writer.sink
            assert isinstance(sink, TmaStore)
            self._residual = InPlaceResidual(residual, sink, group, config.consumers)

    def begin(self, tile: Any, shape: tuple[Index, Index], slice_: Index = 0) -> None:
        """Let bias and residual of a tile, or of a slice of it, come, before the tile is multiplied."""
        spots = [self._writer.spot(coord, shape) for coord in self._coords(tile, slice_)]
        if self._residual is not None:
            self._residual.load(spots)
        if self._bias is not None:
            self._bias.load(spots)

    def write(self, parts: Sequence[RegisterTile], tile: Any, shape: tuple[Index, Index], slice_: Index = 0) -> None:
        """Write the sums of a tile, or of one slice of its columns; `shape` is C's."""
        if self._residual is not None:
            self._residual.wait()
        for part, coord in zip(parts, self._coords(tile, slice_), strict=True):
            self._writer.write(part, coord, shape, bias=self._bias, residual=self._residual)

    def write_unit(self, values: Values, down: Value, along: Value, tile: Any, shape: tuple[Index, Index]) -> None:
        """Write a few sums of each thread, which lie so many rows and columns from its first."""
        (own, column, batch), *_ = self._coords(tile, 0)
        spot = self._writer.spot((own, column, batch), shape)
        self._writer.write_values(values, spot.moved(down, along))

    def _coords(self, tile: Any, slice_: Index) -> list[tuple[Index, Index, Index]]:
        """The pieces of a tile, in the writer's units of 64 rows and a slice of columns."""
        config = self._config
        own = tile.m * (config.BM // WGMMA_M)
        if not config.pingpong:
            own = own + self._group.number.to("s32") * config.subtiles
        slices = 1 if config.splits_units else config.num_split_k
        return [(own + at, tile.n * slices + slice_, tile.batch) for at in range(config.subtiles)]

    def write_group(
        self,
        parts: Sequence[RegisterTile],
        place: tuple[Value, Value],
        ends: tuple[Value, Index],
        scale: Value,
        target: View,
    ) -> None:
        """Write the sums of a tile, scaled, but no row and column of C from `ends` on.

        `place` is where it begins along M and N of the multiplication; `target` is C once more, for threads to write
        where rows of another group follow.
        """
        config, (down, along) = self._config, place
        if not config.pingpong:
            down = down + self._group.number.to("s32") * config.consumer_rows
        for number, part in enumerate(parts):
            first = down + number * WGMMA_M
            start = (along, first) if config.AB_swapped else (first, along)
            self._writer.write_absolute_with_bounds_check(part, *start, ends[0], scale, target, n_end=ends[1])
