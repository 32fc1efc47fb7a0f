"""The default GEMM for Hopper: a load role fills stages, consumer warpgroups issue wgmma and write their tiles."""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    ConsumerWriter,
    Epilogue,
    HopperConfig,
    StaticScheduler,
    TimeStamps,
    Warpgroup,
    WgmmaOp,
    begin_role,
    end_loads,
    paired,
    standard_inputs,
    warpgroup_order,
)
from warploom.trace import Array, Operands, Sizes, Tensor, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_90a")
def matmul(
    a: TensorMap,
    b: TensorMap,
    d: TensorMap | Tensor,
    m: s32,
    n: s32,
    m_tiles: s32,
    n_tiles: s32,
    batches: s32,
    k_tiles: s32,
    loads: Operands,
    operands: Operands,
    auxiliary: Operands | None = None,
    up: TensorMap | None = None,
    starts: Array[s32] | None = None,
    window: Sizes | None = None,
    trace: Array[u64] | None = None,
    *,
    config: HopperConfig,
    epilogue: Epilogue,
) -> None:
    """Compute D = epilogue(A·Bᵀ): cooperative warpgroups share a tile, ping-pong warpgroups alternate between tiles.

    In a gated GEMM `b` is the gate matrix and `up` the up matrix. With `starts`, batches share A and B and each has its
    own range of K tiles; not with ping-pong, where each warpgroup skips the other one's stages by a common `k_tiles`.
    With `window`, A is an im2col map of images and B a map of filters: a convolution. `trace` gets the time stamps of
    every role.
    """
    roles = warp_roles(registers=config.role_registers, **config.roles)
    cluster = Cluster(config.cluster_shape)
    layers = batches if len(a.geometry.box) > 2 or starts else 1
    tiles = StaticScheduler(
        (m_tiles, n_tiles, layers), cluster=cluster, k_tiles=k_tiles, swizzle_size=config.swizzle_size
    )
    tiles.with_k_ranges(starts)
    stamps = TimeStamps(trace, roles)
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster, window)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(d, config, group, epilogue.bound(**operands), loads.get("residual"), outputs=auxiliary)

    with roles.load, when(roles.load.warp == 0):
        begin_role(config)
        for tile in stamps.each(tiles):
            for k in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until all consumers have read the slot
                    stage.load(tile, tile.k_start + k)
        end_loads(config)

    with roles.consume:
        begin_role(config)
        core = WgmmaOp(config, inputs, group)
        order = warpgroup_order(config, core, group, k_tiles)
        for tile in stamps.each(order.tiles_of(tiles), order.turns):
            writer.begin(tile, (m, n))
            with order.mainloop(tile):  # ping-pong: waits until the other warpgroup has issued its MMAs
                for k in loop(tile.k_tiles):
                    with core.consume(k) as stage:  # waits for the copies
                        core.mma(stage, accumulate=k > 0)
                    writer.load_residual(k, tile.k_tiles)
            writer.write(core.tiles, tile, (m, n))
