"""Split-K GEMM for Hopper: the CTAs of one tile split K, and each reduces and writes a slice of the tile.

For shapes with fewer tiles than the GPU has SMs. The CTAs of a cluster exchange partial accumulators
through distributed shared memory; more splits than a cluster can have exchange them through global memory.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    ClusterExchange,
    ConsumerWriter,
    Epilogue,
    GlobalExchange,
    HopperConfig,
    SplitTile,
    TimeStamps,
    Warpgroup,
    WgmmaOp,
    begin_role,
    end_loads,
    paired,
    standard_inputs,
)
from warploom.trace import Array, Operands, Tensor, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_90a")
def matmul_split_k(
    a: TensorMap,
    b: TensorMap,
    d: TensorMap | Tensor,
    m: s32,
    n: s32,
    m_tiles: s32,
    n_tiles: s32,
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
    """Compute D = epilogue(A·Bᵀ), one tile per group of `num_split_k` CTAs.

    In a gated GEMM `b` is the gate matrix and `up` the up matrix.
    """
    roles = warp_roles(registers=config.role_registers, **config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster((config.num_split_k, 1) if config.split_in_cluster else (1, 1), sync_at_exit=False)
    tile = SplitTile.of(config, cluster, m_tiles, n_tiles, k_tiles)
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(d, config, group, epilogue.bound(**operands), loads.get("residual"), outputs=auxiliary)
    if config.split_in_cluster:
        exchange: ClusterExchange | GlobalExchange = ClusterExchange(roles.consume, cluster, tile, config, inputs)
    else:
        exchange = GlobalExchange(roles.consume, scratch["workspace"], scratch["counters"], tile, config)

    with roles.load, when(roles.load.warp == 0), stamps.only_tile():
        begin_role(config)
        for k in loop(tile.k_tiles):
            with inputs.produce() as stage:
                stage.load(tile, tile.k_start + k)
        end_loads(config)

    with roles.consume, stamps.only_tile():
        begin_role(config)
        core = WgmmaOp(config, inputs, group)
        exchange.begin()
        writer.begin(tile, (m, n), tile.split)
        for k in loop(tile.k_tiles):
            with core.consume(k) as stage:
                core.mma(stage, accumulate=k > 0)
            writer.load_residual(k, tile.k_tiles)
        core.finish(tile.k_tiles)
        if isinstance(exchange, GlobalExchange) and config.splits_units:
            writer.write_unit(exchange.reduced_unit(core))
        else:
            writer.write(exchange.reduced(core), tile, (m, n), tile.split)
