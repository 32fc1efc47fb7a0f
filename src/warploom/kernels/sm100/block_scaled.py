"""Block-scaled matmul: MXFP8, MXFP4 and NVFP4, whose scales the tensor core applies from tensor memory.

D = epilogue(Σ_k (sfa·A)[m, k] · (sfb·B)[n, k]), every `vec_sf_size` neighbours along K having one scale; a scale
of the whole tensors is the epilogue's alpha.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.kernels.sm100.parts import epilogue_writer, operand_tiles
from warploom.structured.cluster import Cluster
from warploom.structured.config import BlockScaledMatmulConfig
from warploom.structured.dependent_launch import launch_dependents, wait_for_dependencies
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.pipelines.input_pipeline import BlockScaledTilePayload, InputTilePipeline
from warploom.structured.pipelines.output_pipeline import OutputTilePipeline
from warploom.structured.schedulers.tile_scheduler import TileScheduler
from warploom.structured.tensor_cores.block_scaled import BlockScaledMmaOp, scale_factors
from warploom.structured.tensor_cores.warp_context import EpilogueWarpContext, MmaWarpContext
from warploom.trace import Operands, Tensor, kernel, loop, s32, warp_roles, when


@kernel(target="sm_100a")
def block_scaled(
    a: TensorMap, b: TensorMap, sfa: TensorMap, sfb: TensorMap, d: Tensor, m: s32, n: s32, k: s32, batch: s32,
    operands: Operands, further: Operands | None = None, *, config: BlockScaledMatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """A (m × k) and B (n × k), 4-bit elements two to a byte; scales in chunks of 128 rows and four blocks of K.

    Elements behind K count as zero, but a scale behind K must not be NaN, which times zero is NaN.
    """
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    inputs = InputTilePipeline(
        BlockScaledTilePayload(*operand_tiles(a, b, config, cluster), *scale_factors(sfa, sfb, config)),
        config.num_group_stages,
        producer=roles.load,
        consumer=roles.mma,
        cluster=cluster,
    )
    outputs = OutputTilePipeline(
        config.output,
        producer=roles.mma,
        consumer=roles.epilogue,
        cluster=cluster,
        columns=config.tensor_memory_columns,
    )
    mma_op = BlockScaledMmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), further)

    with roles.load:
        wait_for_dependencies()
        for tile in tiles:
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until the tensor core has read the slot
                    stage.load(tile, step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in tiles:
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:  # scales go to tensor memory in front of the multiplications
                        mma_op.mma_scaled(stage, acc.tmem, tile, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        for tile in tiles:
            with epi.output_pipeline.consumer() as acc:
                writer.write(acc, tile.coord, (m, n))
