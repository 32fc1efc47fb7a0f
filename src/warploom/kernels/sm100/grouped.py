"""Grouped GEMM for Blackwell: rows of many groups in one array, each group with the weights of its expert.

D[r] = epilogue(scale[e] · A[r]·B[e]ᵀ) for the rows r of a group with expert e. The ends of the groups are known on the
device only. The first tile of a group starts at the group's first row, and its last tile may extend into the next
group: the results there are not stored. With A and B swapped, rows are along N of the MMA, where tiles can be narrow.
In a gated GEMM an expert has two matrices, which are combined before the store.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    Epilogue,
    EpilogueWarpContext,
    GroupedScheduler,
    GroupMaps,
    GroupPlacement,
    MatmulConfig,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    TimeStamps,
    ceil_divide,
    epilogue_writer,
    group_tile_shape,
    launch_dependents,
    paired,
    standard_inputs,
    wait_for_dependencies,
)
from warploom.trace import Array, Operands, Tensor, f32, kernel, loop, s32, u8, u64, warp_roles, when


@kernel(target="sm_100a")
def grouped(
    a: TensorMap, b: TensorMap, d: Tensor, rows: Tensor, ends: Array[s32], experts: Array[s32] | None,
    scales: Array[f32] | None, n: s32, k: s32, operands: Operands, auxiliary: Operands | None = None,
    auxiliary_arrays: Operands | None = None, up: TensorMap | None = None, weights: Operands | None = None,
    maps: Tensor[u8] | None = None, trace: Array[u64] | None = None,
    *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D from tokens (rows × k) and weights (experts × n × k), which are the kernel's A and B.

    D is given as a tensor map and as an array, as are auxiliary outputs that TMA stores. In a gated GEMM `b` is the
    gate matrix and `up` the up matrix. With `weights`, which are allocated separately, `b` describes the first of them,
    and `maps` has room for a tensor map per CTA and group.
    """
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    places = GroupPlacement(config, cluster)
    tiles = GroupedScheduler(
        ends,
        cluster=cluster,
        columns=n,
        tile_shape=places.tile_shape,
        k_tiles=ceil_divide(ceil_divide(k, config.BK), config.k_group_size),
        experts=experts,
        scales=scales,
        roles=roles,
        dependent=True,
    )
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster, **places.operand_rows)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary, auxiliary_arrays)

    of_groups = None
    if weights is not None and maps is not None:
        held = inputs.payload.parts["a" if config.AB_swapped else "b"]
        of_groups = GroupMaps(held, weights, maps, ends.shape[0], roles.load)

    with roles.load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            if of_groups is not None:
                of_groups.select(tile)  # the first tile of a group makes its tensor map
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:
                    stage.load(tile, step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in stamps.each(tiles):
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:
                        mma_op.mma(stage, acc.tmem, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            with epi.output_pipeline.consumer() as acc:
                places.write(writer, acc, tile, rows, n)


def grouped_grid(config: MatmulConfig, rows: int, groups: int, n: int, multiprocessors: int) -> tuple[int, int, int]:
    """Return the grid: CTAs for the maximum number of tiles, or as many as fit on the GPU."""
    along, across = group_tile_shape(config)
    tiles = (rows // along + min(groups, rows)) * -(-n // across)
    return (config.cta_group * max(min(tiles, multiprocessors // config.cta_group), 1), 1, 1)
