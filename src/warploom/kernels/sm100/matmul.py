"""The default GEMM for Blackwell: warp-specialised and persistent, one CTA or CTA pairs, any epilogue, batched."""

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
    load_weights_first,
    paired,
    standard_inputs,
    wait_for_dependencies,
)
from warploom.trace import Array, Operands, Sizes, Tensor, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def matmul(
    a: TensorMap, b: TensorMap, d: Tensor, m: s32, n: s32, k: s32, batch: s32, operands: Operands,
    auxiliary: Operands | None = None, up: TensorMap | None = None, starts: Array[s32] | None = None,
    window: Sizes | None = None, trace: Array[u64] | None = None,
    *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D = epilogue(A·Bᵀ), tile by tile; in a gated GEMM `b` is the gate matrix and `up` the up matrix.

    With `starts`, batches share A and B, and each has its own range of K tiles. With `window`, A is an im2col map of
    images and B a map of filters: a convolution. `trace` gets the time stamps of every role.
    """
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch).with_k_ranges(starts)
    stamps = TimeStamps(trace, roles)
    inputs = standard_inputs(*paired(a, b, up, config), config, roles, cluster, window)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)

    with roles.load:
        ahead, weights = config.prefetch_tiles_n, "a" if config.AB_swapped else "b"
        if not ahead:
            wait_for_dependencies()
        for tile in stamps.each(tiles):
            first = load_weights_first(inputs, tile, ahead, weights) if ahead else 0
            for step in loop(first, tile.k_tiles):
                with inputs.produce() as stage:  # waits until the tensor core has read the slot
                    stage.load(tile, tile.k_start + step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:  # allocates TMEM; frees it after the last read
        for tile in stamps.each(tiles):
            with when(cluster.leader), mma.output_pipeline.producer() as acc:  # waits until the epilogue has read it
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:  # waits for the copies
                        mma_op.mma(stage, acc.tmem, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:  # waits for the TMEM address
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            with epi.output_pipeline.consumer() as acc:  # waits for the tensor core
                writer.write(acc, tile.coord, (m, n))  # releases the accumulator once it is in registers
