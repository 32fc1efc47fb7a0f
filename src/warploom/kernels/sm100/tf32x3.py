"""float32 GEMM for Blackwell with the precision of float32: three TF32 products of large and small parts."""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.structured import (
    Cluster,
    Epilogue,
    EpilogueWarpContext,
    LoadOrderBarrier,
    MatmulConfig,
    MmaWarpContext,
    OncePerWarp,
    OutputTilePipeline,
    StandardTilePayload,
    TensorCoreCommit,
    TensorFloatParts,
    TileScheduler,
    TimeStamps,
    TripleMmaOp,
    epilogue_load,
    epilogue_writer,
    input_pipeline,
    launch_dependents,
    load_tile,
    operand_tiles,
    wait_for_dependencies,
    write_tile,
)
from warploom.trace import Array, Operands, Tensor, f32, kernel, loop, s32, u64, warp_roles, when


@kernel(target="sm_100a")
def tf32x3(
    a: TensorMap, b: TensorMap, d: Tensor, m: s32, n: s32, k: s32, batch: s32, operands: Operands,
    auxiliary: Operands | None = None, c: Tensor | None = None,
    workspace: Tensor[f32] | None = None, locks: Tensor[s32] | None = None, trace: Array[u64] | None = None,
    *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """Compute D = epilogue(A·Bᵀ) of float32 operands; `c`, `workspace` and `locks` are as in `block_scaled`."""
    roles = warp_roles(**config.roles)
    stamps = TimeStamps(trace, roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    payload = StandardTilePayload(*operand_tiles(a, b, config, cluster, local=True))
    inputs = input_pipeline(payload, config, roles, cluster, also=(OncePerWarp(roles.split),))
    parts = TensorFloatParts(inputs, roles.split, TensorCoreCommit(roles.mma, cluster.pair), cluster)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    mma_op = TripleMmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), auxiliary)
    source = order = None
    if c is not None:
        source = epilogue_load(c, config, roles, cluster, columns=n)
        order = LoadOrderBarrier(first=roles.load, then=roles.epilogue_load, cluster=cluster)

    with roles.load:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            load_tile(inputs, tile, order)
        launch_dependents()

    with roles.split:
        for tile in stamps.each(tiles):
            parts.fill(tile)  # waits for the copies, and until the tensor core has read the small parts
        parts.drain()

    if source is not None and order is not None:
        with roles.epilogue_load:
            wait_for_dependencies()
            for tile in stamps.each(tiles):
                order.wait()
                source.load(tile)

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in stamps.each(tiles):
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage, parts.pipeline.consume():  # waits for copies and small parts
                        mma_op.mma_parts(stage, parts, acc.tmem, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        for tile in stamps.each(tiles):
            with epi.output_pipeline.consumer() as acc:
                write_tile(writer, acc, tile, (m, n), source=source, workspace=workspace, locks=locks)
