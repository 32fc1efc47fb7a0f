"""Grouped blockwise FP8 GEMM for Hopper: rows in groups, each with an expert's weights, scaled K tile by K tile."""

from __future__ import annotations

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    BlockwiseFP8TilePayload,
    Cluster,
    ColumnScales,
    ConsumerWriter,
    Epilogue,
    GroupedScheduler,
    GroupedTile,
    HopperBlockwiseConfig,
    PromotedAccumulators,
    RowScales,
    TimeStamps,
    Warpgroup,
    WgmmaOp,
    begin_role,
    end_loads,
    input_pipeline,
    operand_tiles,
)
from warploom.trace import Array, Operands, Tensor, Value, f32, kernel, literal, loop, s32, u64, warp_roles, when


@kernel(target="sm_90a")
def grouped_blockwise_fp8(
    a: TensorMap, b: TensorMap, a_scales: TensorMap, b_scales: Tensor, d: TensorMap | Tensor, rows: Tensor,
    ends: Array[s32], experts: Array[s32] | None, scales: Array[f32] | None, n: s32, k_tiles: s32, operands: Operands,
    auxiliary: Operands | None = None, auxiliary_arrays: Operands | None = None, trace: Array[u64] | None = None,
    *, config: HopperBlockwiseConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from tokens (rows × k), weights (experts × n × k), and b_scales (experts × blocks of n × K tiles).

    a_scales are (K tiles × rows), and each group starts at a multiple of 16 bytes, where TMA can start.
    """
    roles = warp_roles(registers=config.role_registers, **config.roles)
    stamps = TimeStamps(trace, roles)
    cluster, unit = Cluster(config.cluster_shape), ADDRESS_ALIGNMENT // a_scales.geometry.element.shared_bytes
    tiles = GroupedScheduler(
        ends,
        cluster=cluster,
        columns=n,
        tile_shape=(cluster.shape[0] * config.BM, cluster.shape[1] * config.BN),
        k_tiles=k_tiles,
        experts=experts,
        scales=scales,
        swizzle_size=config.swizzle_size,
    )

    def row(tile: GroupedTile) -> Value:
        return tile.m_abs + cluster.rank_m.to(s32) * config.BM

    def column(tile: GroupedTile) -> Value:
        return tile.n_abs + cluster.rank_n.to(s32) * config.BN

    def scale_row(tile: GroupedTile) -> Value:
        return row(tile) - tile.m_start + (tile.m_start // unit + tile.group) * unit

    row_scales = RowScales(a_scales, config, scale_row)
    held = operand_tiles(a, b, config, cluster, a_row=row, b_row=column)
    inputs = input_pipeline(BlockwiseFP8TilePayload(*held, row_scales), config, roles, cluster)
    group, arrays = Warpgroup(roles.consume), auxiliary_arrays
    writer = ConsumerWriter(d, config, group, epilogue.bound(**operands), early=False, outputs=auxiliary, arrays=arrays)

    with roles.load, when(roles.load.warp == 0):
        begin_role(config)
        for tile in stamps.each(tiles):
            for k in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until all consumers have read the slot
                    stage.load(tile, k)
        end_loads(config)

    with roles.consume:
        begin_role(config)
        core = WgmmaOp(config, inputs, group, config.partials)
        factors = (row_scales, ColumnScales(b_scales, config, n), column)
        accumulators = PromotedAccumulators(config, group, core, *factors)
        for tile in stamps.each(tiles):
            accumulators.begin(literal(True, "pred"))
            accumulators.accumulate(tile)
            writer.write_group(accumulators.tiles, (row(tile), column(tile)), n, tile, rows)
        accumulators.end()
