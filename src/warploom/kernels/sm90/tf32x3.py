"""float32 GEMM for Hopper with the precision of float32: three TF32 products of large and small parts."""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    ConsumerWriter,
    Epilogue,
    HopperConfig,
    OncePerWarp,
    StandardTilePayload,
    StaticScheduler,
    TensorFloatParts,
    TimeStamps,
    TripleWgmmaOp,
    Warpgroup,
    begin_role,
    end_loads,
    input_pipeline,
    operand_tiles,
)
from warploom.trace import Array, Operands, Tensor, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_90a")
def tf32x3(
    a: TensorMap, b: TensorMap, d: TensorMap | Tensor, m: s32, n: s32, m_tiles: s32, n_tiles: s32, batches: s32,
    k_tiles: s32, loads: Operands, operands: Operands, auxiliary: Operands | None = None,
    trace: Array[u64] | None = None, *, config: HopperConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D = epilogue(A·Bᵀ) of float32 operands; cooperative warpgroups share a tile."""
    roles = warp_roles(registers=config.role_registers, **config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape)
    layers = batches if len(a.geometry.box) > 2 else 1
    tiles = StaticScheduler(
        (m_tiles, n_tiles, layers), cluster=cluster, k_tiles=k_tiles, swizzle_size=config.swizzle_size
    )
    payload = StandardTilePayload(*operand_tiles(a, b, config, cluster))
    inputs = input_pipeline(payload, config, roles, cluster, also=(OncePerWarp(roles.split),))
    parts = TensorFloatParts(inputs, roles.split, OncePerWarp(roles.consume), cluster)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(d, config, group, epilogue.bound(**operands), loads.get("residual"), outputs=auxiliary)

    with roles.load, when(roles.load.warp == 0):
        begin_role(config)
        for tile in stamps.each(tiles):
            for k in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until all consumers have read the slot
                    stage.load(tile, k)
        end_loads(config)

    with roles.split:
        begin_role(config)
        for tile in stamps.each(tiles):
            parts.fill(tile)  # waits for the copies, and until the consumers have read the small parts

    with roles.consume:
        begin_role(config)
        core = TripleWgmmaOp(config, inputs, group, parts)
        for tile in stamps.each(tiles):
            writer.begin(tile, (m, n))
            for k in loop(tile.k_tiles):
                with parts.pipeline.consume(), core.consume(k) as stage:  # waits for the small parts, and the copies
                    core.mma(stage, accumulate=k > 0)
                writer.load_residual(k, tile.k_tiles)
            writer.write(core.tiles, tile, (m, n))
