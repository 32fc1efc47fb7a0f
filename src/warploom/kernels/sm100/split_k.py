"""Split-K matmul: several CTAs share the depth of each tile and add up in the same order every time.

Splits are counted along z of the grid. Each adds to the sum of those before it in a workspace, in turn, by a lock for
each tile; the final one goes on to D and leaves the lock as it found it, so that the next launch may use the same.
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
    epilogue_writer,
    launch_dependents,
    standard_inputs,
    wait_for_dependencies,
)
from warploom.trace import Operands, Tensor, f32, kernel, loop, s32, warp_roles, when


@kernel(target="sm_100a")
def split_k(
    a: TensorMap, b: TensorMap, d: Tensor, workspace: Tensor[f32], locks: Tensor[s32], m: s32, n: s32, k: s32,
    operands: Operands, auxiliary: Operands | None = None, *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """D = epilogue(A·Bᵀ); workspace (tiles × elements) and locks (tiles, all zero) as `split_k_workspace` has them."""
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, locks=locks)
    inputs = standard_inputs(a, b, config, roles, cluster)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)

    with roles.load:
        wait_for_dependencies()
        for tile in tiles:
            for step in loop(tile.k_tiles):  # this split's share of the depth
                with inputs.produce() as stage:
                    stage.load(tile, tile.k_start + step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in tiles:
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:
                        mma_op.mma(stage, acc.tmem, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()  # the workspace may be another launch's
        for tile in tiles:
            with epi.output_pipeline.consumer() as acc:
                writer.write_splitk(acc, tiles, workspace, tile, (m, n))  # waits for the splits before
