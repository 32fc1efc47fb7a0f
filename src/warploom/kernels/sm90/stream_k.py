"""Stream-K GEMM for Hopper: the last wave of tiles is divided by K tiles, so that no SM idles in it.

For shapes whose number of tiles is slightly more than a multiple of the SMs. The other waves are as in the
default GEMM.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    ConsumerWriter,
    Epilogue,
    HopperConfig,
    PartialTiles,
    StreamScheduler,
    TimeStamps,
    Warpgroup,
    WgmmaOp,
    begin_role,
    end_loads,
    paired,
    standard_inputs,
    warpgroup_order,
)
from warploom.trace import Array, Operands, Tensor, kernel, loop, otherwise, s32, u64, warp_roles, when


@kernel(target="sm_90a")
def matmul_stream_k(
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
    scratch: Operands,
    operands: Operands,
    auxiliary: Operands | None = None,
    up: TensorMap | None = None,
    trace: Array[u64] | None = None,
    *,
    config: HopperConfig,
    epilogue: Epilogue,
) -> None:
    """Compute D = epilogue(A·Bᵀ); a tile that several CTAs share is written by the one that has its last K tiles.

    In a gated GEMM `b` is the gate matrix and `up` the up matrix.
    """
    roles = warp_roles(registers=config.role_registers, **config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape)
    layers = batches if len(a.geometry.box) > 2 else 1
    tiles = StreamScheduler(
        (m_tiles, n_tiles, layers), cluster=cluster, k_tiles=k_tiles, swizzle_size=config.swizzle_size
    )
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(d, config, group, epilogue.bound(**operands), loads.get("residual"), outputs=auxiliary)
    partials = PartialTiles(scratch["workspace"], scratch["flags"], config, group, cluster)

    with roles.load, when(roles.load.warp == 0):
        begin_role(config)
        for tile in stamps.each(tiles):
            for k in loop(tile.k_tiles):
                with inputs.produce() as stage:
                    stage.load(tile, tile.k(k))
        end_loads(config)

    with roles.consume:
        begin_role(config)
        core = WgmmaOp(config, inputs, group)
        order = warpgroup_order(config, core, group)
        for tile in stamps.each(order.tiles_of(tiles), order.turns):
            writer.begin(tile, (m, n), is_written=~tile.is_partial)
            with order.mainloop(tile):
                for k in loop(tile.k_tiles):
                    with core.consume(k) as stage:
                        core.mma(stage, accumulate=k > 0)
                    writer.load_residual(k, tile.k_tiles)
            with when(tile.is_partial):
                partials.store(core)
            with otherwise():
                partials.add(core, tile)  # waits for CTAs with a lower index only
                writer.write(core.tiles, tile, (m, n))
