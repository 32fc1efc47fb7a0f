"""What the families have in common: a configuration as operands and pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.tile_writer import Output, TileWriter
from warploom.structured.epilogue.writer_geometry import StagedOutput
from warploom.structured.pipelines.input_pipeline import InputTilePipeline, StandardTilePayload
from warploom.structured.pipelines.operand_tiles import OperandLayout, OperandTiles, Source, tiles_of
from warploom.trace.language.roles import Roles
from warploom.trace.language.values import Value
from warploom.trace.language.views import View
from warploom.trace.parameters import TensorMapArgument

Row = Callable[[Any], Value]


def layouts(config: MatmulConfig) -> tuple[OperandLayout, OperandLayout]:
    """How a tile of A and of B lies in shared memory, and how it is cut among the CTAs that share it."""
    x, y = config.cluster_shape[:2]
    bits = config.mma.element_bits
    return (
        OperandLayout(config.BM, config.BK, bits, config.a_major, config.a_swizzle, y),
        OperandLayout(config.BN, config.BK, bits, config.b_major, config.b_swizzle, x // config.cta_group),
    )


def operand_tiles(
    a: TensorMapArgument,
    b: Source,
    config: MatmulConfig,
    cluster: Cluster,
    a_row: Row | None = None,
    b_row: Row | None = None,
) -> tuple[OperandTiles, OperandTiles]:
    """The tiles of A and B; of two CTAs each has its own rows of A and half of the rows of B, or one B of a pair."""
    a_layout, b_layout = layouts(config)
    half = cluster.pair_rank.to("s32") * (0 if config.paired else config.BN)
    rows = a_row or (lambda tile: tile.m * config.BM)
    columns = b_row or (lambda tile: tile.n * config.tile_columns)
    count = config.num_pipeline_stages
    return (
        OperandTiles("a_tiles", a, a_layout, count, rows, share=cluster.rank_n, peers=cluster.sharing_a),
        tiles_of(
            "b_tiles",
            b,
            b_layout,
            count,
            lambda tile: columns(tile) + half,
            share=cluster.rank_m // config.cta_group,
            peers=cluster.sharing_b,
        ),
    )


def epilogue_writer(
    d: Any,
    config: MatmulConfig,
    roles: Roles,
    epilogue: Epilogue,
    further: Mapping[str, Any] | None,
    arrays: Mapping[str, View] | None = None,
) -> TileWriter:
    """The writer of the epilogue role; `further` is where further outputs go, `arrays` the same of groups once more."""
    outputs: dict[str, Output] = dict(further or {})
    if config.output_types:
        given, held = zip((further or {}).items(), config.output_types, strict=True), arrays or {}
        outputs = {name: StagedOutput(target, dtype, array=held.get(name)) for (name, target), dtype in given}
    return TileWriter(d, config.written, role=roles.epilogue, epilogue=epilogue, outputs=outputs)


def standard_inputs(
    a: TensorMapArgument, b: Source, config: MatmulConfig, roles: Roles, cluster: Cluster, **rows: Row
) -> InputTilePipeline:
    """A and B, or a pair of them, from the load role to the MMA role."""
    payload = StandardTilePayload(*operand_tiles(a, b, config, cluster, **rows))
    return InputTilePipeline(
        payload,
        config.num_group_stages,
        config.k_group_size,
        producer=roles.load,
        consumer=roles.mma,
        cluster=cluster,
    )
