"""The usage examples of the five pages, each as a kernel that runs under several schedules."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.scaled_problems import DTYPES, blockwise, padded
from tests.structured.accumulating import ONE, PAIR, check, multiply
from tests.structured.scheduling import SCHEDULES
from tests.structured.writing import opcodes

from warploom import TensorMap, launch
from warploom.structured import (
    BlockwiseFP8TilePayload,
    Cluster,
    ColumnScales,
    EpiLoadPipeline,
    EpilogueWarpContext,
    FirstLanes,
    InputTilePipeline,
    MmaOp,
    MmaWarpContext,
    OutputTilePipeline,
    PromotedAccumulator,
    RowScales,
    SMemTileArray2DRowMajor,
    TileScheduler,
    TileWriter,
    WorkInfo,
    operand_tiles,
)
from warploom.trace import Array, Tensor, kernel, loop, s32, warp_roles, when
from warploom.trace.isa import cp

SHAPES = pytest.mark.parametrize("shape", [ONE, PAIR], ids=["one", "pair"])


@kernel(target="sm_100a")
def residual_rows(c: TensorMap, d: Array, tiles: s32, *, stages):
    """Tiles of C through the epilogue-load pipeline, doubled."""
    roles = warp_roles(epilogue=4, epilogue_load=1)
    epi_load_pipeline = EpiLoadPipeline(stages, producer=roles.epilogue_load, consumer=roles.epilogue)
    src_tiles = SMemTileArray2DRowMajor.make("f32", 8, 16, stages)

    with roles.epilogue_load:
        for tile in loop(tiles):
            with epi_load_pipeline.produce() as stage, when(roles.epilogue_load.elected):
                stage.expect_bytes(c.box_bytes)
                cp.async_bulk_tensor_load(src_tiles[stage.index()], c.at(tile * 8, 0), stage.mbar())

    with roles.epilogue:
        thread = roles.epilogue.thread
        for tile in loop(tiles):
            with epi_load_pipeline.consume() as stage:
                c_tile = src_tiles[stage.index()]
                value = c_tile[thread // 16, thread % 16]
            d[tile * 8 + (thread // 16).to(s32), thread % 16] = value * 2.0


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_epi_load_produce_and_consume(stages):
    c = np.random.default_rng().random((40, 16), np.float32)
    d = np.full_like(c, np.nan)
    source = TensorMap(c, box=(8, 16))
    bound = residual_rows.bind(source, d, 5, grid=(1, 1, 1), block=(160, 1, 1), stages=stages)
    for schedule, seed in SCHEDULES:
        d[...] = np.nan
        launch(bound, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(d, 2 * c)


def mma_linear(kit):
    """The page's example: the commit on the stage's barrier is the signal, and the release only advances."""
    with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
        output_pipeline = mma.output_pipeline
        for _ in kit.work:
            with when(kit.cluster.leader):
                stage = output_pipeline.acquire_mma_linear()
                multiply(kit, stage)
                kit.mma_op.commit(stage.mbar())
                stage.release()


def mma_linear_without_commit(kit):
    with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
        for _ in kit.work:
            with when(kit.cluster.leader):
                stage = mma.output_pipeline.acquire_mma_linear()
                multiply(kit, stage)
                stage.release()


def epilogue_linear(kit):
    """The page's example: the release gives the accumulator back."""
    with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as epi:
        output_pipeline = epi.output_pipeline
        for tile in kit.work:
            stage = output_pipeline.acquire_epilogue_linear()
            kit.process(stage.tmem, tile)
            stage.release()


@SHAPES
def test_the_linear_example_of_both_sides(shape):
    """More tiles than accumulators: a stage that is not freed, or freed twice, would stop the second lap."""
    check(mma_linear, epilogue_linear, shape=shape, tiles=5)


def test_a_commit_on_the_stages_barrier_is_the_release_signal():
    """The same instructions with and without it, one commit among them for each of the two barriers."""
    with_commit, without = (
        opcodes(check(mma, epilogue_linear, SCHEDULES[:1])) for mma in (mma_linear, mma_linear_without_commit)
    )
    assert with_commit == without
    assert sum(name.startswith("tcgen05.commit") for name in with_commit) == 2


def epilogue_after_sync(kit):
    """The page's order: wait, and construct then."""
    with kit.roles.epilogue:
        EpilogueWarpContext.Sync.wait()
        with EpilogueWarpContext(kit.outputs) as epi:
            for tile in kit.work:
                with epi.output_pipeline.consumer() as stage:
                    kit.process(stage.tmem, tile)


@SHAPES
def test_a_wait_before_constructing_and_the_wait_of_entering_are_one(shape):
    bound = check(mma_linear, epilogue_after_sync, shape=shape, tiles=2)
    (entry,) = bound.program.kernels
    counts = [op.operands[1].value for op in entry.instructions if op.opcode == "bar.sync" and len(op.operands) == 2]
    assert counts.count(32 + 128) == 1


@kernel(target="sm_100a")
def promoting(
    a: TensorMap, b: TensorMap, a_scales: TensorMap, b_scales: Tensor, d: Tensor, m: s32, n: s32, k: s32, *, config, form
):  # fmt: skip
    """Blockwise FP8 by the examples of the per-K stages."""
    roles = warp_roles(**config.roles)
    cluster = Cluster(config.cluster_shape, config.cta_group)
    tiles = TileScheduler(config, roles, cluster, m=m, n=n, k=k)
    row_scales = RowScales(a_scales, config)
    payload = BlockwiseFP8TilePayload(*operand_tiles(a, b, config, cluster), row_scales)
    input_pipeline = InputTilePipeline(
        payload,
        config.num_group_stages,
        producer=roles.load,
        consumer=roles.mma,
        cluster=cluster,
        also=(FirstLanes(roles.epilogue, first=cluster.size),),
    )
    sides = {"producer": roles.mma, "consumer": roles.epilogue, "cluster": cluster}
    outputs = OutputTilePipeline(config.output, **sides, columns=config.tensor_memory_columns)
    mma_op = MmaOp(config, roles.mma, cluster)
    writer = TileWriter(d, config, role=roles.epilogue)

    with roles.load:
        for tile in tiles:
            for step in loop(tile.k_tiles):
                with input_pipeline.produce() as stage:
                    stage.load(tile, step)

    with roles.mma, MmaWarpContext(outputs) as mma_ctx:
        for tile in tiles:
            with when(cluster.leader):
                for _ in loop(tile.k_tiles):
                    if form == "per_k":
                        with outputs.per_k().produce() as mma_stage, input_pipeline.consume() as stage:
                            mma_op.mma(stage, mma_stage.tmem.offset, accumulate=False)
                    else:
                        with mma_ctx.per_k_stage() as mma_stage, input_pipeline.consume() as stage:
                            mma_op.mma(stage, mma_stage.tmem.offset, accumulate=False)

    with roles.epilogue, EpilogueWarpContext(outputs) as epi_ctx:
        accum = PromotedAccumulator(config, roles.epilogue, row_scales, ColumnScales(b_scales, config, n))
        for tile in tiles:
            assert isinstance(tile, WorkInfo)
            accum.clear()
            for step in loop(tile.k_tiles):
                column_scales = accum.column_scales(tile, step)
                if form == "context":
                    with epi_ctx.per_k_stage(input_pipeline) as epi_stage:
                        accum.promote(epi_stage, tile, column_scales)
                else:
                    with epi_ctx.output_pipeline.per_k_epilogue(input_pipeline.pipeline) as stage:
                        accum.promote(stage, tile, column_scales)
            writer.write(accum, tile.coord, (m, n))


def promoted(problem, form):
    """The launch of a blockwise problem by a form of the per-K stages."""
    dtype = DTYPES[problem.config.scale_type]
    rows = TensorMap(padded(problem.a_scales.astype(dtype), np.nan), box=(1, problem.config.BM))
    arguments = (
        *problem.operands,
        rows,
        problem.b_scales.astype(dtype),
        problem.target,
        problem.m,
        problem.n,
        problem.k,
    )
    options = {name: value for name, value in problem.options.items() if name != "epilogue"}
    return promoting.bind(*arguments, **options, form=form)


@pytest.mark.parametrize("form", ["context", "pipeline", "per_k"])
@pytest.mark.parametrize("cta_group", [1, 2])
def test_per_k_stages_promote_every_k_tile(form, cta_group):
    """More K tiles than input stages and accumulators."""
    shape = (64 if cta_group == 1 else 256, 32, 32)
    problem = blockwise(shape[0] + 3, 40, 700, cta_group=cta_group, mma_shape=shape, num_pipeline_stages=2)
    bound = promoted(problem, form)
    for schedule, seed in SCHEDULES:
        problem.d[...] = np.nan
        launch(bound, schedule=schedule, seed=seed, sms=4)
        np.testing.assert_array_equal(problem.d, problem.exact.astype(np.float32))
