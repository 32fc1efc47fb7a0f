"""The output pipeline: every way to hold an accumulator is one rule, and what is given is checked."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.kernels.plain_problems import role_texts
from tests.structured.accumulating import ONE, PAIR, bound, check, multiply, plain_epilogue, plain_mma, rejected
from tests.structured.scheduling import SCHEDULES
from tests.structured.writing import opcodes

from warploom import launch
from warploom.ptx.syntax.printer import print_module
from warploom.structured import (
    Cluster,
    EpilogueKContext,
    EpilogueKStage,
    EpilogueStage,
    EpilogueWarpContext,
    FirstLanes,
    MmaKStage,
    MmaStage,
    MmaWarpContext,
    OutputConsumer,
    OutputKPipeline,
    OutputPipelineConfig,
    OutputProducer,
    OutputStage,
    OutputTilePipeline,
    ProducerConsumerPipeline,
    SharedMemBarrier,
    SMemArray,
    TileWriter,
    TmemAddress,
    TmemAllocation,
    TmemStage,
    TmemTensor,
)
from warploom.trace import (
    Array,
    cta_index,
    elect,
    emit,
    isa,
    kernel,
    lane,
    loop,
    shared,
    shuffle,
    special,
    sync_threads,
    thread,
    u32,
    warp_index,
    warp_roles,
    when,
)
from warploom.trace.language.values import literal


def mma_by(form):
    """The MMA role with one way to hold an accumulator."""

    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as context:
            outputs = context.output_pipeline
            for _ in kit.work:
                with when(kit.cluster.leader):
                    if form == "producer":
                        view = outputs.producer()
                        assert isinstance(view, OutputProducer)
                        with view as stage:
                            multiply(kit, stage)
                    elif form == "acquire_for_mma":
                        stage = outputs.acquire_for_mma()
                        multiply(kit, stage)
                        outputs.release_from_mma(stage)
                    elif form == "acquire_mma_linear":
                        stage = outputs.acquire_mma_linear()
                        multiply(kit, stage)
                        stage.release()
                    else:
                        ring = outputs.per_k()
                        assert isinstance(ring, OutputKPipeline)
                        view = ring.produce()
                        assert isinstance(view, MmaKStage)
                        with view as stage:
                            multiply(kit, stage)
                    assert isinstance(stage, MmaStage)

    return mma


def epilogue_by(form):
    """The epilogue with one way to hold an accumulator."""

    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as context:
            outputs = context.output_pipeline
            for tile in kit.work:
                if form in ("acquire_epilogue_linear", "acquire_for_epilogue", "release_from_epilogue"):
                    linear = form == "acquire_epilogue_linear"
                    stage = outputs.acquire_epilogue_linear() if linear else outputs.acquire_for_epilogue()
                    kit.process(stage.tmem, tile)
                    if linear:
                        stage.release()
                    elif form == "acquire_for_epilogue":
                        outputs.release_from_epilogue(stage)
                    else:
                        outputs.release_from_epilogue()  # the stage that the role holds
                else:
                    view = outputs.consumer() if form in ("consumer", "early") else outputs.per_k().consume()
                    assert isinstance(view, OutputConsumer)
                    with view as stage:
                        kit.process(stage.tmem, tile)
                        if form == "early":
                            stage.release()
                assert isinstance(stage, EpilogueStage)
                assert stage.is_released

    return epilogue


MMA_FORMS = ("producer", "acquire_for_mma", "acquire_mma_linear", "per_k")
EPILOGUE_FORMS = (
    "consumer", "early", "acquire_epilogue_linear", "acquire_for_epilogue", "release_from_epilogue", "per_k",
)  # fmt: skip


@pytest.mark.parametrize("shape", [ONE, PAIR], ids=["one", "pair"])
@pytest.mark.parametrize("number", range(len(EPILOGUE_FORMS)))
def test_every_way_to_hold_an_accumulator_is_the_same(number, shape):
    """The same result on more laps than one, and the same instructions."""
    schedule = SCHEDULES[number % len(SCHEDULES)]
    launched = check(
        mma_by(MMA_FORMS[number % 4]), epilogue_by(EPILOGUE_FORMS[number]), [schedule], shape=shape, tiles=5
    )
    plain = check(plain_mma, plain_epilogue, [], shape=shape, tiles=5)
    assert opcodes(launched) == opcodes(plain)


@pytest.mark.parametrize("accumulators", [1, 2, 4])
@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_rings_of_any_length(accumulators, schedule, seed):
    fields = {"num_accum_pipeline_stages": accumulators}
    check(plain_mma, plain_epilogue, [(schedule, seed)], tiles=2 * accumulators + 1, k_tiles=1, **fields)


def test_a_writer_releases_the_accumulator_before_the_stage_ends():
    def epilogue(kit):
        writer = TileWriter(kit.d, kit.config, role=kit.roles.epilogue, shape=kit.d.shape)
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as epi:
            for tile in kit.work:
                with epi.output_pipeline.consumer() as stage:
                    writer.write(stage, tile)
                    assert stage.is_released

    check(plain_mma, epilogue, tiles=5)


def test_members_of_pipelines_and_stages():
    def epilogue(kit):
        outputs, config = kit.outputs, kit.config
        assert (outputs.cta_group, outputs.num_stages, outputs.stage_stride_cols) == (1, 2, 256)
        assert outputs.opc == config.output == OutputPipelineConfig(2, 256, 1)
        members = (OutputTilePipeline.Pipeline, OutputTilePipeline.Stage, OutputTilePipeline.Tmem)
        assert members == (ProducerConsumerPipeline, OutputStage, TmemAllocation)
        assert isinstance(outputs.pipeline, OutputTilePipeline.Pipeline)
        assert outputs.get_pipeline() is outputs.pipeline
        array = OutputTilePipeline.BarrierArray(config.output, name="others")
        assert isinstance(array, SMemArray)
        assert array.size == 2 * outputs.num_stages
        with kit.roles.epilogue, EpilogueWarpContext(outputs):
            assert isinstance(outputs.tmem, OutputTilePipeline.Tmem)
            for tile in kit.work:
                with outputs.consumer() as stage:
                    assert isinstance(stage, OutputTilePipeline.Stage)
                    assert stage.pipeline is outputs.pipeline, "the pipeline itself, no copy of where it stood"
                    assert isinstance(stage.tmem, TmemStage)
                    assert stage.tmem.index.operand == stage.index().operand
                    assert stage.tmem_offset().operand == stage.tmem.offset.operand
                    kit.process(stage.tmem, tile)

    check(plain_mma, epilogue, SCHEDULES[:1])


@kernel(target="sm_100a")
def masks(out: Array[u32], *, shape, cta_group):
    roles = warp_roles(epilogue=4, mma=1)
    cluster = Cluster(shape, cta_group)
    sides = {"producer": roles.mma, "consumer": roles.epilogue, "cluster": cluster}
    outputs = OutputTilePipeline(OutputPipelineConfig(1, 256, cta_group), **sides)
    outputs.check_mask(outputs.mma_complete_mask)
    with roles.mma, MmaWarpContext(outputs):
        out[special("cluster_ctarank")] = outputs.mma_complete_mask.to(u32)
        with when(cluster.leader), outputs.producer():
            pass
    with roles.epilogue, EpilogueWarpContext(outputs), outputs.consumer():
        pass


@pytest.mark.parametrize(("shape", "cta_group"), [((1, 1), 1), ((2, 1), 2), ((4, 2), 2), ((2, 2), 1)])
def test_the_mask_names_the_pair(shape, cta_group):
    size = shape[0] * shape[1]
    out = np.zeros(size, np.uint32)
    grid = (*shape, 1)
    launch(masks.bind(out, grid=grid, cluster=grid, block=(160, 1, 1), shape=shape, cta_group=cta_group))
    pair = (1 << cta_group) - 1
    assert out.tolist() == [pair << (rank - rank % cta_group) for rank in range(size)]


@pytest.mark.parametrize(("shape", "arrivals"), [(ONE, 128), (PAIR, 256)], ids=["one", "pair"])
def test_user_barriers_that_one_thread_initialises(shape, arrivals):
    mine = []

    def options(config):
        mine[:] = [OutputTilePipeline.BarrierArray(config.output, name="mine")]
        return {"barriers_ptr": mine[0]}

    def prepare(kit):
        with when(warp_index() == 0), when(elect()):
            if shape is ONE:
                kit.outputs.init_barriers(1, arrivals, storage_ptr=mine[0])
            else:
                kit.outputs.get_pipeline().init_mbars(1, arrivals, storage_ptr=mine[0])

    launched = check(plain_mma, plain_epilogue, shape=shape, options=options, prepare=prepare)
    text = print_module(launched.program)
    assert "//!wl barrier mine shared_memory+" in text
    assert "outputs.full" not in text
    counts = re.findall(r"mbarrier\.init\S* \[[^]]*\], (\d+);", text)
    assert counts.count(str(arrivals)) == 3, "two accumulators, and the deallocation"


def test_tmem_that_was_allocated_before_the_roles():
    def prepare(kit):
        slot = shared(u32, 1, name="slot")
        with when(warp_index() == 0):
            TmemAllocation.allocate(slot, columns=128)
        emit("tcgen05.fence::before_thread_sync")
        sync_threads()
        emit("tcgen05.fence::after_thread_sync")
        kit.outputs.given = kit.outputs.checked(TmemAllocation.from_shared(slot, columns=128))

    launched = check(plain_mma, plain_epilogue, prepare=prepare, tensor_memory_columns=128)
    assert sum(name.startswith("tcgen05.alloc") for name in opcodes(launched)) == 1


def test_a_stage_dropped_in_the_mma_role():
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs):
            for _ in kit.work:
                kit.outputs.acquire_mma_linear()  # HERE

    rejected("STAGE_DROPPED", "producer stage of `outputs`", mma=mma)


def test_a_stage_dropped_in_the_epilogue():
    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs):
            for _ in kit.work:
                kit.outputs.acquire_epilogue_linear()  # HERE

    rejected("STAGE_DROPPED", "consumer stage of `outputs`", epilogue=epilogue)


def test_a_stage_of_the_other_side():
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs):
            kit.outputs.acquire_epilogue_linear()  # HERE

    rejected("STAGE_WRONG_ROLE", "Role `mma` acquires a consumer stage", "but its consumer is `epilogue`", mma=mma)


def test_an_accumulator_released_before_its_loads_are_waited_for():
    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as epi:
            for _ in kit.work:
                with epi.output_pipeline.consumer() as stage:
                    tensor = TmemTensor("f32", (kit.config.BM, 8), 1, stage.tmem.address(kit.roles.epilogue.warp))
                    TmemAddress.wait_load()
                    tensor.load_fragments(1)
                    stage.release()  # HERE

    rejected("TMEM_LOAD_NOT_WAITED", "accumulator of `outputs`", "wait_load()", epilogue=epilogue)


@pytest.mark.parametrize("always", [True, "value"])
def test_a_fresh_accumulator_that_is_added_to(always):
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
            for _ in kit.work:
                with mma.output_pipeline.producer() as stage, kit.inputs.consume() as tiles:
                    accumulate = always if always is True else literal(True, "pred")
                    kit.mma_op.mma(tiles, stage.tmem, accumulate=accumulate)  # HERE

    rejected("STALE_ACCUMULATOR", "an earlier tile", "accumulate=step > 0", mma=mma)


@pytest.mark.parametrize("flag", [lambda step: step >= 0, lambda step: step + 1 > 0, lambda step: step < 1])
def test_a_flag_that_is_true_in_the_first_step(flag):
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
            for _ in kit.work:
                with mma.output_pipeline.producer() as stage:
                    for step in loop(kit.k_tiles):
                        with kit.inputs.consume() as tiles:
                            kit.mma_op.mma(tiles, stage.tmem, accumulate=flag(step))  # HERE

    rejected("STALE_ACCUMULATOR", "an earlier tile", "accumulate=step > 0", mma=mma)


def test_an_accumulator_may_be_added_to_after_its_first_mma():
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
            for _ in kit.work:
                with when(kit.cluster.leader), mma.output_pipeline.producer() as stage:
                    with kit.inputs.consume() as tiles:
                        kit.mma_op.mma(tiles, stage.tmem, accumulate=False)
                    for _ in loop(kit.k_tiles - 1):
                        with kit.inputs.consume() as tiles:
                            kit.mma_op.mma(tiles, stage.tmem, accumulate=True)

    check(mma, plain_epilogue, SCHEDULES[:1])


def test_a_stage_released_twice():
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs), kit.outputs.producer() as stage:
            kit.outputs.release_from_mma(stage)
            kit.outputs.release_from_mma(stage)  # HERE

    rejected("STAGE_RELEASED_TWICE", "producer stage of `outputs`", mma=mma)


def test_a_release_of_nothing():
    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs):
            kit.outputs.release_from_epilogue()  # HERE

    rejected("BAD_KERNEL", "releases a consumer stage of `outputs` and holds none", epilogue=epilogue)


def test_an_accumulator_used_after_its_release():
    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs), kit.outputs.consumer() as stage:
            stage.release()
            stage.tmem_offset()  # HERE

    rejected("STAGE_AFTER_RELEASE", "used after its release", epilogue=epilogue)


def test_tmem_before_its_context():
    def mma(kit):
        with kit.roles.mma:
            kit.outputs.acquire_mma_linear()  # HERE

    rejected("BAD_KERNEL", "before it knows the address; enter its warp context first", mma=mma)


@pytest.mark.parametrize(("shape", "wrong", "right"), [(ONE, 3, "0x1"), (PAIR, 1, "0x3")])
def test_a_mask_of_other_ctas(shape, wrong, right):
    def options(config):
        return {"mma_complete_mask": wrong}

    with pytest.raises(Exception, match=f"COUNT_MISMATCH: `outputs` was given {wrong:#x} .* make {right}"):
        check(plain_mma, plain_epilogue, [], shape=shape, options=options)


def test_a_mask_that_the_author_computes_otherwise():
    def options(config):
        return {"mma_complete_mask": thread().to("u16")}

    with pytest.raises(Exception, match="COUNT_MISMATCH: `outputs` was given another mask"):
        check(plain_mma, plain_epilogue, [], options=options)


def test_counts_that_do_not_match_the_roles():
    def prepare(kit):
        kit.outputs.init_barriers(1, 64)  # HERE

    rejected("COUNT_MISMATCH", "given 64 arrivals of its consumer, but its roles make 128", prepare=prepare)


def test_barriers_of_another_pipeline():
    def prepare(kit):
        kit.outputs.init_barriers(storage_ptr=SMemArray.make(SharedMemBarrier, 4))  # HERE

    rejected("BAD_KERNEL", "`storage_ptr` does not hold the barriers of `outputs`", prepare=prepare)


def test_barriers_of_another_number():
    def options(config):
        return {"barriers_ptr": SMemArray.make(SharedMemBarrier, 3)}

    with pytest.raises(Exception, match="with 2 stages needs 4 barriers; the given array has 3"):
        check(plain_mma, plain_epilogue, [], options=options)


def test_tmem_of_another_number_of_ctas():
    def options(config):
        return {"tmem": TmemAllocation(thread(), 2)}

    with pytest.raises(Exception, match=r"COUNT_MISMATCH: .* given 2 CTAs that allocate TMEM, but .* make 1"):
        check(plain_mma, plain_epilogue, [], options=options)


@pytest.mark.parametrize("form", ["leaving", "arrive_input", "by lanes", "pipeline"])
def test_a_stage_per_k_step_releases_the_accumulator_and_its_input(form):
    """Sums over K by hand: both rings go round several times."""

    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as context:
            for _ in kit.work:
                for _ in loop(kit.k_tiles):
                    with context.per_k_stage() as stage, kit.inputs.consume() as tiles:
                        kit.mma_op.mma(tiles, stage.tmem, accumulate=False)

    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as context:
            for tile in kit.work:
                for _ in loop(kit.k_tiles):
                    by_hand = form == "pipeline"
                    inputs = kit.inputs.pipeline
                    held = kit.outputs.per_k_epilogue(inputs) if by_hand else context.per_k_stage(kit.inputs)
                    assert isinstance(held, EpilogueKContext)
                    with held as stage:
                        assert isinstance(stage, EpilogueKStage)
                        assert stage.output_stage is stage
                        assert stage.input_stage_index.operand == inputs.consumer_stage().operand
                        if form == "arrive_input":
                            stage.arrive_input()
                        elif form == "by lanes":
                            emit("bar.warp.sync", -1)
                            with when(lane() < 1):
                                stage.arrive_input()
                        kit.process(stage.tmem, tile, adds=True)

    def also(roles):
        return (FirstLanes(roles.epilogue, first=1),)

    fields = {"num_pipeline_stages": 2, "tiles": 2, "k_tiles": 5}
    launched = check(mma, epilogue, also=also, before=0.0, **fields)
    role = role_texts(launched)["epilogue"]
    waits, arrivals = (re.findall(rf"mbarrier\.{name}\S* ", role) for name in ("try_wait", "arrive"))
    assert len(waits) == 2, "for the operands and for the tensor core"
    assert len(arrivals) == 3, "once on both sides, and for the deallocation"


@pytest.mark.parametrize("condition", ["leader", "CTA", "warp", "none"])
def test_an_instruction_of_one_thread_that_every_lane_issues(condition):
    """A branch that all lanes take is no election."""

    def mma(kit):
        conditions = {"leader": kit.cluster.leader, "CTA": cta_index() == 0, "warp": warp_index() > 0, "none": True}
        with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
            for _ in kit.work:
                with mma.output_pipeline.producer() as stage, kit.inputs.consume() as tiles:
                    kit.mma_op.mma(tiles, stage.tmem, accumulate=False)
                    with when(conditions[condition]):
                        isa.tcgen05.commit(kit.inputs.pipeline.full[0].at, cta_group=1)  # HERE

    rejected("ISSUED_BY_EVERY_LANE", "`tcgen05.commit` in role `mma`", "roles.mma.elected", mma=mma)


def test_a_shuffle_from_a_lane_that_differs_may_elect():
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as mma:
            for _ in kit.work:
                with mma.output_pipeline.producer() as stage, kit.inputs.consume() as tiles:
                    kit.mma_op.mma(tiles, stage.tmem, accumulate=False)
                    with when(shuffle(lane(), "idx", lane()) == 0):
                        isa.tcgen05.commit(kit.inputs.pipeline.full[0].at, cta_group=1)

    launched, *_ = bound(mma, plain_epilogue)
    assert "shfl.sync.idx" in role_texts(launched)["mma"]
