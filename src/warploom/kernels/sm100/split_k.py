"""Split-K GEMM for Blackwell: several CTAs split K of each tile and add their accumulators in a fixed order.

Splits are along z of the grid. Each adds to the accumulators of the previous splits in a workspace, under a lock per
tile; the final split writes D and resets the lock, so that the next launch can use the same memory.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    Epilogue,
    EpilogueWarpContext,
    MatmulConfig,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    TileScheduler,
    TimeStamps,
    epilogue_writer,
    launch_dependents,
    paired,
    standard_inputs,
    wait_for_dependencies,
)
from warploom.trace import Array, Operands, Tensor, f32, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def split_k(
    a: TensorMap, b: TensorMap, d: Tensor, workspace: Tensor[f32], locks: Tensor[s32],
    m: s32, n: s32, k: s32, batch: s32, operands: Operands,
    auxiliary: Operands | None = None, up: TensorMap | None = None, trace: Array[u64] | None = None,
    *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D = epilogue(A·Bᵀ), with workspace (tiles × elements) and locks (tiles, zero) of `split_k_workspace`.

    In a gated GEMM `b` is the gate matrix and `up` the up matrix; the workspace holds both accumulators.
    """
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch, locks=locks)
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)

    with roles.load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            for step in loop(tile.k_tiles):  # the K range of this split
                with inputs.produce() as stage:
                    stage.load(tile, tile.k_start + step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in stamps.each(tiles):
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:
                        mma_op.mma(stage, acc.tmem, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()  # a previous launch may use the same workspace
        for tile in stamps.each(tiles):
            with epi.output_pipeline.consumer() as acc:
                writer.write_splitk(acc, tiles, workspace, tile, (m, n))  # waits for the previous splits
