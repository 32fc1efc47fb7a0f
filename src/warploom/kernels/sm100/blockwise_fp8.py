"""8-bit matmul with scales per block of A and B, promoted K tile by K tile: the sum over K is in float32 registers.

D = epilogue(Σ_k a_scales[k, m] · b_scales[n // 128, k] · (A_k·B_kᵀ)[m, n]), a K tile being 128 wide.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.kernels.sm100.parts import epilogue_writer, operand_tiles
from warploom.structured.cluster import Cluster
from warploom.structured.config import BlockwiseFP8MatmulConfig
from warploom.structured.dependent_launch import launch_dependents, wait_for_dependencies
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.pipelines.input_pipeline import BlockwiseFP8TilePayload, InputTilePipeline
from warploom.structured.pipelines.output_pipeline import OutputTilePipeline
from warploom.structured.pipelines.signals import FirstLanes
from warploom.structured.schedulers.tile_scheduler import TileScheduler
from warploom.structured.tensor_cores.blockwise import ColumnFactors, PromotedAccumulator, RowFactors
from warploom.structured.tensor_cores.tcgen05 import MmaOp
from warploom.structured.tensor_cores.warp_context import EpilogueWarpContext, MmaWarpContext
from warploom.trace import Operands, Tensor, kernel, loop, s32, warp_roles, when


@kernel(target="sm_100a")
def blockwise_fp8(
    a: TensorMap, b: TensorMap, a_scales: TensorMap, b_scales: Tensor, d: Tensor, m: s32, n: s32, k: s32, batch: s32,
    operands: Operands, further: Operands | None = None, *, config: BlockwiseFP8MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """A (m × k), B (n × k), a_scales (K tiles × m) and b_scales (blocks of n × K tiles)."""
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    factors = RowFactors(a_scales, config)
    inputs = InputTilePipeline(
        BlockwiseFP8TilePayload(*operand_tiles(a, b, config, cluster), factors),
        config.num_group_stages,
        producer=roles.load,
        consumer=roles.mma,
        cluster=cluster,
        also=(FirstLanes(roles.epilogue, first=cluster.size),),  # the epilogue reads A's scales
    )
    outputs = OutputTilePipeline(
        config.output,
        producer=roles.mma,
        consumer=roles.epilogue,
        cluster=cluster,
        columns=config.tensor_memory_columns,
    )
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), further)

    with roles.load:
        wait_for_dependencies()
        for tile in tiles:
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:  # waits until the tensor core and the epilogue have read the slot
                    stage.load(tile, step)
        launch_dependents()

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in tiles:
            with when(cluster.leader):
                for _ in loop(tile.k_tiles):
                    with mma.per_k_stage() as acc, inputs.consume() as stage:  # a fresh accumulator for each K tile
                        mma_op.mma(stage, acc.tmem, accumulate=False)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        sums = PromotedAccumulator(config, roles.epilogue, factors, ColumnFactors(b_scales, config, n))
        for tile in tiles:
            sums.clear()
            for step in loop(tile.k_tiles):
                of_columns = sums.factors(tile, step)
                with epi.per_k_stage(inputs) as product:  # waits for the tensor core, and for A's scales
                    sums.promote(product, tile, of_columns)
            writer.write(sums, tile.coord, (m, n))
