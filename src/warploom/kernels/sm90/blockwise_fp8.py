"""Blockwise FP8 GEMM for Hopper: the result of each K tile is scaled and accumulated in float32 registers.

D = epilogue(Σ_k a_scales[k, m] · b_scales[n // 128, k] · (A_k·B_kᵀ)[m, n]), with K tiles of 128. The tensor core
accumulates over one K tile only, so that its limited accumulation precision has little effect. If registers hold two
accumulators per K tile, the MMAs of the next K tile run during the promotion; otherwise the other warpgroup computes.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    BlockwiseFP8TilePayload,
    Cluster,
    ColumnScales,
    ConsumerWriter,
    Epilogue,
    HopperBlockwiseConfig,
    PromotedAccumulators,
    RowScales,
    StaticScheduler,
    TimeStamps,
    Warpgroup,
    WgmmaOp,
    begin_role,
    end_loads,
    input_pipeline,
    operand_tiles,
)
from warploom.trace import Array, Operands, Tensor, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_90a")
def blockwise_fp8(
    a: TensorMap, b: TensorMap, a_scales: TensorMap, b_scales: Tensor, d: TensorMap | Tensor, m: s32, n: s32,
    m_tiles: s32, n_tiles: s32, batches: s32, k_tiles: s32, operands: Operands, auxiliary: Operands | None = None,
    trace: Array[u64] | None = None, *, config: HopperBlockwiseConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from A (m × k), B (n × k), a_scales (K tiles × m) and b_scales (blocks of n × K tiles)."""
    roles = warp_roles(registers=config.role_registers, **config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape)
    layers = batches if len(a.geometry.box) > 2 else 1
    tiles = StaticScheduler(
        (m_tiles, n_tiles, layers), cluster=cluster, k_tiles=k_tiles, swizzle_size=config.swizzle_size
    )
    row_scales = RowScales(a_scales, config)
    payload = BlockwiseFP8TilePayload(*operand_tiles(a, b, config, cluster), row_scales)
    inputs = input_pipeline(payload, config, roles, cluster)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(d, config, group, epilogue.bound(**operands), early=False, outputs=auxiliary)

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
        accumulators = PromotedAccumulators(config, group, core, row_scales, ColumnScales(b_scales, config, n))
        accumulators.begin(tiles.has_next)
        for tile in stamps.each(tiles):
            accumulators.accumulate(tile)
            accumulators.begin(tiles.has_next)  # the tensor core works while this tile is written
            writer.write(accumulators.tiles, tile, (m, n))
        accumulators.end()
