"""Matmul with a role of its own that loads what the epilogue adds.

D = epilogue(A·Bᵀ) + beta·C, where C has D's shape and comes by TMA: strip by strip, or whole tiles where A and B are
swapped; or D = epilogue(A·Bᵀ + C), where C is one row for all rows of D and comes by cp.async.
"""

from __future__ import annotations

from warploom.host.tensor_map import TensorMap
from warploom.kernels.sm100.parts import epilogue_writer, standard_inputs
from warploom.structured.cluster import Cluster
from warploom.structured.config import MatmulConfig
from warploom.structured.dependent_launch import launch_dependents, wait_for_dependencies
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.epilogue.epilogue_loads import epilogue_load
from warploom.structured.pipelines.epilogue_load_pipeline import LoadOrderBarrier
from warploom.structured.pipelines.output_pipeline import OutputTilePipeline
from warploom.structured.schedulers.tile_scheduler import TileScheduler
from warploom.structured.tensor_cores.tcgen05 import MmaOp
from warploom.structured.tensor_cores.warp_context import EpilogueWarpContext, MmaWarpContext
from warploom.trace import Operands, Tensor, kernel, loop, s32, warp_roles, when


@kernel(target="sm_100a")
def residual(
    a: TensorMap, b: TensorMap, c: Tensor, d: Tensor, m: s32, n: s32, k: s32, batch: s32, operands: Operands,
    further: Operands | None = None, *, config: MatmulConfig, epilogue: Epilogue,
) -> None:  # fmt: skip
    """C is a tensor map with boxes of `matrix_box`, or an array where `epilogue_is_1d`; `beta` is an operand."""
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k, batch=batch)
    inputs = standard_inputs(a, b, config, roles, cluster)
    outputs = OutputTilePipeline(config.output, producer=roles.mma, consumer=roles.epilogue, cluster=cluster)
    source = epilogue_load(c, config, roles, cluster, columns=n)
    order = LoadOrderBarrier(first=roles.load, then=roles.epilogue_load, cluster=cluster)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = epilogue_writer(d, config, roles, epilogue.bound(**operands), further)

    with roles.load:
        wait_for_dependencies()
        for tile in tiles:
            for step in loop(tile.k_tiles):
                with inputs.produce() as stage:
                    stage.load(tile, tile.k_start + step)
            order.arrive()
        launch_dependents()

    with roles.epilogue_load:
        wait_for_dependencies()
        for tile in tiles:
            order.wait()  # the operands go first: they are needed first
            source.load(tile)

    with roles.mma, MmaWarpContext(outputs) as mma:
        for tile in tiles:
            with when(cluster.leader), mma.output_pipeline.producer() as acc:
                for step in loop(tile.k_tiles):
                    with inputs.consume() as stage:
                        mma_op.mma(stage, acc.tmem, accumulate=step > 0)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi:
        wait_for_dependencies()
        for tile in tiles:
            with epi.output_pipeline.consumer() as acc:
                source.write(writer, acc, tile, (m, n))  # waits for its stages, and gives them back
