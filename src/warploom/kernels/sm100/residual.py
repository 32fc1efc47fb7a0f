"""GEMM for Blackwell with a separate role that loads the source of the epilogue.

D = epilogue(A·Bᵀ) + beta·C, where C has D's shape and is loaded by TMA: by subtile, or by tile where A and B are
swapped; or D = epilogue(A·Bᵀ + C), where C is one row for all rows of D and is loaded by cp.async.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    Epilogue,
    EpilogueWarpContext,
    LoadOrderBarrier,
    MatmulConfig,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    TileScheduler,
    TimeStamps,
    epilogue_load,
    epilogue_writer,
    launch_dependents,
    load_tile,
    paired,
    standard_inputs,
    wait_for_dependencies,
    write_tile,
)
from warploom.trace import Array, Operands, Sizes, Tensor, f32, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def residual(
    a: TensorMap, b: TensorMap, c: Tensor, d: Tensor, m: s32, n: s32, k: s32, batch: s32, operands: Operands,
    auxiliary: Operands | None = None, up: TensorMap | None = None, window: Sizes | None = None,
    workspace: Tensor[f32] | None = None, locks: Tensor[s32] | None = None, trace: Array[u64] | None = None,
    *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D; C is a tensor map with boxes of `matrix_box`, or an array where `epilogue_is_1d`.

    In a gated GEMM `b` is the gate matrix and `up` the up matrix. With `window`, A is an im2col map of images and B a
    map of filters: a convolution. With `workspace` and `locks`, of `split_k_workspace`, CTAs split K of each tile.
    """
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster, window)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    source = epilogue_load(c, config, roles, cluster, columns=n)
    order = LoadOrderBarrier(first=roles.load, then=roles.epilogue_load, cluster=cluster)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)

    with roles.load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            load_tile(inputs, tile, order)
        launch_dependents()

    with roles.epilogue_load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            order.wait()  # A and B of the first K tiles are loaded first, because they are needed first
            source.load(tile)

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
                write_tile(writer, acc, tile, (m, n), source=source, workspace=workspace, locks=locks)
