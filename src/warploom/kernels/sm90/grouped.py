"""Grouped GEMM for Hopper: rows of many groups in one array, each group with the weights of its expert.

D[r] = epilogue(scale[e] · A[r]·B[e]ᵀ) for the rows r of a group with expert e. The ends of the groups are known on the
device only: every role computes its tiles itself. The first tile of a group starts at the group's first row, and its
last tile may extend into the next group: the results there are not stored. Rows of no group are not written, unless
`cleared_rows` is given. With A and B swapped, rows are along N of
the MMA, where tiles can be narrow. In a gated GEMM an expert has two matrices, which are combined before the store.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    ConsumerWriter,
    Epilogue,
    GroupedScheduler,
    GroupedTile,
    GroupMaps,
    HopperConfig,
    TimeStamps,
    Warpgroup,
    WgmmaOp,
    begin_role,
    clear_uncovered_rows,
    end_loads,
    paired,
    standard_inputs,
    warpgroup_order,
)
from warploom.trace import Array, Operands, Tensor, Value, f32, kernel, loop, s32, u8, u64, warp_roles, when


@kernel(target="sm_90a")
def grouped(
    a: TensorMap, b: TensorMap, d: TensorMap | Tensor, rows: Tensor, ends: Array[s32], experts: Array[s32] | None,
    scales: Array[f32] | None, n: s32, k_tiles: s32, operands: Operands, auxiliary: Operands | None = None,
    auxiliary_arrays: Operands | None = None, up: TensorMap | None = None, weights: Operands | None = None,
    maps: Tensor[u8] | None = None, trace: Array[u64] | None = None, cleared_rows: s32 | None = None,
    *, config: HopperConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from tokens (rows × k) and weights (experts × n × k), which are the kernel's A and B.

    D is given as a tensor map and as an array, as are auxiliary outputs that TMA stores. In a gated GEMM `b` is the
    gate matrix and `up` the up matrix. With `weights`, which are allocated separately, `b` describes the first of them,
    and `maps` has room for a tensor map per CTA and group. With `cleared_rows`, which is the number of rows of D, those
    of no group are set to zero.
    """
    roles = warp_roles(registers=config.role_registers, **config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape)
    swapped, shape = config.AB_swapped, (cluster.shape[0] * config.tile_rows, cluster.shape[1] * config.tile_columns)
    tiles = GroupedScheduler(
        ends,
        cluster=cluster,
        columns=n,
        tile_shape=(shape[1], shape[0]) if swapped else shape,
        k_tiles=k_tiles,
        experts=experts,
        scales=scales,
        swizzle_size=config.swizzle_size,
    )

    def row(tile: GroupedTile) -> Value:
        """Return the start of this CTA's tile along M of the MMA."""
        return (tile.n_abs if swapped else tile.m_abs) + cluster.rank_m.to(s32) * config.tile_rows

    def column(tile: GroupedTile) -> Value:
        return (tile.m_abs if swapped else tile.n_abs) + cluster.rank_n.to(s32) * config.tile_columns

    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster, a_row=row, b_row=column)
    group = Warpgroup(roles.consume)
    writer = ConsumerWriter(
        d, config, group, epilogue.bound(**operands), early=False, outputs=auxiliary, arrays=auxiliary_arrays
    )

    of_groups = None
    if weights is not None and maps is not None:
        of_groups = GroupMaps(inputs.payload.parts["a" if swapped else "b"], weights, maps, ends.shape[0], roles.load)

    with roles.load, when(roles.load.warp == 0):
        begin_role(config)
        for tile in stamps.each(tiles):
            if of_groups is not None:
                of_groups.select(tile)  # the first tile of a group makes its tensor map
            for k in loop(tile.k_tiles):
                with inputs.produce() as stage:
                    stage.load(tile, k)
        end_loads(config)

    with roles.consume:
        begin_role(config)
        core = WgmmaOp(config, inputs, group)
        order = warpgroup_order(config, core, group, k_tiles)
        for tile in stamps.each(order.tiles_of(tiles), order.turns):
            with order.mainloop(tile):
                for k in loop(tile.k_tiles):
                    with core.consume(k) as stage:
                        core.mma(stage, accumulate=k > 0)
            writer.write_group(core.tiles, (row(tile), column(tile)), n, tile, rows)
        if cleared_rows is not None:
            clear_uncovered_rows(rows, ends, experts, (cleared_rows, n), roles.consume)
