"""What the families have in common: a configuration as operands and pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig
from warploom.structured.input_pipeline import InputTilePipeline, StandardTilePayload
from warploom.structured.operand import OperandLayout, OperandTiles
from warploom.trace.parameters import TensorMapArgument
from warploom.trace.roles import Roles
from warploom.trace.values import Value

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
    b: TensorMapArgument,
    config: MatmulConfig,
    cluster: Cluster,
    a_row: Row | None = None,
    b_row: Row | None = None,
) -> tuple[OperandTiles, OperandTiles]:
    """The tiles of A and B; of a pair each CTA has its own rows of A and half of the rows of B."""
    a_layout, b_layout = layouts(config)
    half = cluster.pair_rank.to("s32") * config.BN
    rows = a_row or (lambda tile: tile.m * config.BM)
    columns = b_row or (lambda tile: tile.n * config.MMA_N)
    count = config.num_pipeline_stages
    return (
        OperandTiles("a_tiles", a, a_layout, count, rows, share=cluster.rank_n, peers=cluster.sharing_a),
        OperandTiles(
            "b_tiles",
            b,
            b_layout,
            count,
            lambda tile: columns(tile) + half,
            share=cluster.rank_m // config.cta_group,
            peers=cluster.sharing_b,
        ),
    )


def standard_inputs(
    a: TensorMapArgument, b: TensorMapArgument, config: MatmulConfig, roles: Roles, cluster: Cluster, **rows: Row
) -> InputTilePipeline:
    """A and B from the load role to the MMA role."""
    payload = StandardTilePayload(*operand_tiles(a, b, config, cluster, **rows))
    return InputTilePipeline(
        payload,
        config.num_group_stages,
        config.k_group_size,
        producer=roles.load,
        consumer=roles.mma,
        cluster=cluster,
    )
