"""Warp contexts: the lifetime of TMEM, with `with` and without, and every misuse."""

from __future__ import annotations

import pytest
from tests.kernels.plain_problems import role_texts
from tests.structured.accumulating import ONE, PAIR, check, multiply, plain_epilogue, plain_mma, rejected
from tests.structured.scheduling import SCHEDULES
from tests.structured.writing import opcodes

from warploom.ptx.syntax.printer import print_module
from warploom.structured import (
    EpilogueWarp,
    EpilogueWarpContext,
    MmaWarp,
    MmaWarpContext,
    OutputTilePipeline,
    SharedMemBarrier,
    SMemArray,
    TmemAllocation,
    TmemDeallocBarrier,
    WarpGroupBarrier,
)
from warploom.trace import emit, lane, loop, when

SHAPES = pytest.mark.parametrize("shape", [ONE, PAIR], ids=["one", "pair"])


def linear_mma(kit):
    with kit.roles.mma:
        mma = MmaWarp.create(kit.outputs)
        for _ in kit.work:
            with when(kit.cluster.leader):
                stage = mma.acquire_k_stage_linear()
                multiply(kit, stage)
                stage.release()
        mma.release()


def linear_epilogue(kit):
    with kit.roles.epilogue:
        epi = EpilogueWarp.create(kit.outputs)
        for tile in kit.work:
            stage = epi.acquire_k_stage_linear()
            kit.process(stage.tmem, tile)
            stage.release()
        epi.release()


@SHAPES
def test_linear_handles_match_the_contexts(shape):
    twins = check(linear_mma, linear_epilogue, shape=shape, tiles=5)
    assert opcodes(twins) == opcodes(check(plain_mma, plain_epilogue, [], shape=shape, tiles=5))


def test_entering_returns_the_context_itself():
    def mma(kit):
        with kit.roles.mma:
            context = MmaWarpContext(kit.outputs)
            with context as same:
                assert same is context
                assert same.output_pipeline is kit.outputs
                assert same.tmem is kit.outputs.tmem
                assert same.dealloc_barrier is kit.outputs.dealloc
                for _ in kit.work:
                    with context.output_pipeline.producer() as stage:
                        multiply(kit, stage)

    def epilogue(kit):
        with kit.roles.epilogue:
            context = EpilogueWarpContext(kit.outputs)
            with context as same:
                assert same is context
                assert same.output_pipeline is kit.outputs
                assert same.tmem is kit.outputs.tmem
                assert same.dealloc_barrier is kit.outputs.dealloc
                for tile in kit.work:  # in turn by either name: they cannot drift apart
                    with same.output_pipeline.consumer() as stage:
                        kit.process(stage.tmem, tile)

    check(mma, epilogue)


@pytest.mark.parametrize("context", [MmaWarpContext, EpilogueWarpContext])
def test_members(context):
    assert (context.Dealloc, context.Pipeline, context.Tmem) == (
        TmemDeallocBarrier,
        OutputTilePipeline,
        TmemAllocation,
    )

    def mma(kit):
        with kit.roles.mma:
            made = MmaWarpContext(kit.outputs)
            for sync in (made.Sync, MmaWarpContext.Sync):
                assert isinstance(sync, WarpGroupBarrier)
                assert (sync.num_threads, sync.id) == (160, kit.outputs.sync.id)
            with made:
                made.Sync.arrive()  # entering has published the address: a second call does nothing
                for _ in kit.work:
                    with made.output_pipeline.producer() as stage:
                        multiply(kit, stage)

    def epilogue(kit):
        with kit.roles.epilogue:
            EpilogueWarpContext.Sync.wait()
            made = EpilogueWarpContext(kit.outputs)
            made.Sync.sync()
            with made:
                for tile in kit.work:
                    with made.output_pipeline.consumer() as stage:
                        kit.process(stage.tmem, tile)

    text = role_texts(check(mma, epilogue))
    assert text["mma"].count("bar.arrive ") == 1
    assert text["epilogue"].count(", 160;") == 1


@SHAPES
def test_tmem_is_allocated_once_and_freed_when_both_ctas_have_read_it(shape):
    launched = check(plain_mma, plain_epilogue, SCHEDULES[:1], shape=shape)
    text = role_texts(launched)
    group = shape["cta_group"]
    order = ["tcgen05.alloc", "bar.arrive", "tcgen05.relinquish_alloc_permit", "mbarrier.try_wait", "tcgen05.dealloc"]
    places = [text["mma"].rindex(word) for word in order]
    assert places == sorted(places)
    assert text["mma"].count(f"tcgen05.dealloc.cta_group::{group}") == 1
    end = text["epilogue"][text["epilogue"].rindex("tcgen05.fence::before_thread_sync") :]
    assert end.count("mbarrier.arrive.shared::cluster") == group - 1, "the peer is signalled first"
    assert end.count("mbarrier.arrive.shared::cta") == 1


def test_parts_that_are_given_must_be_those_of_the_pipeline():
    def given(outputs):
        return {
            "tmem_addr_storage": SMemArray(outputs.address),
            "accum_barriers_ptr": SMemArray(outputs.pipeline.full),
            "dealloc_mbar": outputs.dealloc.barrier,
            "mma_complete_mask": 1,
        }

    def mma(kit):
        with kit.roles.mma, MmaWarpContext.create(kit.outputs, **given(kit.outputs)) as made:
            for _ in kit.work:
                with made.output_pipeline.producer() as stage:
                    multiply(kit, stage)

    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext.create(kit.outputs, **given(kit.outputs)) as made:
            for tile in kit.work:
                with made.output_pipeline.consumer() as stage:
                    kit.process(stage.tmem, tile)

    launched = check(mma, epilogue)
    assert opcodes(launched) == opcodes(check(plain_mma, plain_epilogue, []))


def test_thread_counts_that_are_given_are_checked():
    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs, mma_threads=32, epilogue_threads=128) as made:
            for _ in kit.work:
                with made.output_pipeline.producer() as stage:
                    multiply(kit, stage)

    def epilogue(kit):
        with kit.roles.epilogue, EpilogueWarpContext.create(kit.outputs, mma_threads=32, epilogue_threads=128) as made:
            for tile in kit.work:
                with made.output_pipeline.consumer() as stage:
                    kit.process(stage.tmem, tile)

    check(mma, epilogue)

    def too_few(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs, epilogue_threads=96):  # HERE
            pass

    rejected("COUNT_MISMATCH", "was given 96 as `epilogue_threads`, but its roles make 128", mma=too_few)

    def too_many(kit):
        with kit.roles.mma, MmaWarpContext.create(kit.outputs, mma_threads=64):  # HERE
            pass

    rejected("COUNT_MISMATCH", "was given 64 as `mma_threads`, but its roles make 32", mma=too_many)


@SHAPES
def test_a_context_is_created_on_user_storage(shape):
    """The signature of the page: `create` with the storage alone, in both roles."""
    made = {}

    def storage(config):
        made.update(
            tmem_addr_storage=SMemArray.make("u32", 1, name="my_address"),
            accum_barriers_ptr=SMemArray.make(SharedMemBarrier, 2 * config.output.num_stages, name="my_barriers"),
            dealloc_mbar=SMemArray.make(SharedMemBarrier, 1, name="my_dealloc"),
        )
        return {"barriers_ptr" if name == "accum_barriers_ptr" else name: each for name, each in made.items()}

    def mma(kit):
        with kit.roles.mma, MmaWarpContext.create(**made) as context:
            for _ in kit.work:
                with when(kit.cluster.leader), context.output_pipeline.producer() as stage:
                    multiply(kit, stage)

    def epilogue(kit):
        with kit.roles.epilogue:
            EpilogueWarpContext.Sync.wait()
            with EpilogueWarpContext.create(**made) as context:
                for tile in kit.work:
                    with context.output_pipeline.consumer() as stage:
                        kit.process(stage.tmem, tile)

    text = print_module(check(mma, epilogue, shape=shape, options=storage).program)
    assert "barrier my_dealloc" in text
    assert "barrier outputs.dealloc" not in text


def test_tmem_that_the_role_already_knows():
    def mma(kit):
        outputs = kit.outputs
        with kit.roles.mma:
            memory = TmemAllocation.allocate(outputs.address, columns=outputs.columns)
            with MmaWarpContext(outputs, tmem=memory, dealloc_barrier=outputs.dealloc) as made:
                assert made.tmem is memory
                for _ in kit.work:
                    with outputs.producer() as stage:
                        multiply(kit, stage)

    def epilogue(kit):
        outputs = kit.outputs
        with kit.roles.epilogue:
            EpilogueWarpContext.Sync.wait()
            memory = TmemAllocation.from_shared(outputs.address)
            with EpilogueWarpContext(outputs, tmem=memory) as made:
                assert made.tmem is memory
                for tile in kit.work:
                    with outputs.consumer() as stage:
                        kit.process(stage.tmem, tile)

    launched = check(mma, epilogue)
    assert opcodes(launched) == opcodes(check(plain_mma, plain_epilogue, []))


def test_the_deallocation_barrier_step_by_step():
    """Do what leaving the contexts does, step by step."""

    def mma(kit):
        with kit.roles.mma:
            made = MmaWarpContext(kit.outputs).__enter__()
            for _ in kit.work:
                with when(kit.cluster.leader), kit.outputs.producer() as stage:
                    multiply(kit, stage)
            made.tmem.release_lock()
            made.dealloc_barrier.wait()
            emit("tcgen05.fence::after_thread_sync")
            made.tmem.deallocate()

    def epilogue(kit):
        with kit.roles.epilogue:
            made = EpilogueWarpContext(kit.outputs).__enter__()
            for tile in kit.work:
                with kit.outputs.consumer() as stage:
                    kit.process(stage.tmem, tile)
            emit("tcgen05.fence::before_thread_sync")
            made.dealloc_barrier.signal_peer()
            made.dealloc_barrier.signal_self()

    def whole_mma(kit):
        with kit.roles.mma:
            made = MmaWarpContext(kit.outputs).__enter__()
            for _ in kit.work:
                with when(kit.cluster.leader), kit.outputs.producer() as stage:
                    multiply(kit, stage)
            made.dealloc_barrier.complete_dealloc(made.tmem)

    def whole_epilogue(kit):
        with kit.roles.epilogue:
            made = EpilogueWarpContext(kit.outputs).__enter__()
            for tile in kit.work:
                with kit.outputs.consumer() as stage:
                    kit.process(stage.tmem, tile)
            emit("tcgen05.fence::before_thread_sync")
            made.dealloc_barrier.signal_complete()

    for shape in (ONE, PAIR):
        parts = check(mma, epilogue, shape=shape)
        whole = check(whole_mma, whole_epilogue, [], shape=shape)
        assert opcodes(parts) == opcodes(whole) == opcodes(check(plain_mma, plain_epilogue, [], shape=shape))


def test_a_context_entered_twice():
    def mma(kit):
        with kit.roles.mma:
            context = MmaWarpContext(kit.outputs)
            with context, context:  # HERE
                pass

    rejected("BAD_KERNEL", "a MmaWarpContext is entered twice", mma=mma)


def test_a_linear_context_entered_again():
    def epilogue(kit):
        with kit.roles.epilogue:
            context = EpilogueWarp.create(kit.outputs)
            with context:  # HERE
                pass

    rejected("BAD_KERNEL", "a EpilogueWarp is entered twice", epilogue=epilogue)


def test_a_context_of_the_other_role():
    def mma(kit):
        with kit.roles.mma, EpilogueWarpContext(kit.outputs):  # HERE
            pass

    rejected("STAGE_WRONG_ROLE", "Role `mma`", "but its consumer is `epilogue`", mma=mma)


def test_an_allocation_by_the_epilogue():
    def epilogue(kit):
        with kit.roles.epilogue, MmaWarpContext(kit.outputs):  # HERE
            pass

    rejected("STAGE_WRONG_ROLE", "Role `epilogue`", "but its producer is `mma`", epilogue=epilogue)


def test_tmem_before_its_context():
    def epilogue(kit):
        with kit.roles.epilogue:
            context = EpilogueWarpContext(kit.outputs)
            assert context.tmem  # HERE

    rejected("BAD_KERNEL", "role `epilogue` uses TMEM of `outputs` before it knows the address", epilogue=epilogue)


def test_a_wait_for_the_address_by_the_role_that_has_it():
    def mma(kit):
        with kit.roles.mma:
            MmaWarpContext.Sync.wait()  # HERE

    rejected("STAGE_WRONG_ROLE", "Role `mma`", mma=mma)


def test_the_address_published_before_there_is_one():
    def mma(kit):
        with kit.roles.mma:
            MmaWarpContext.Sync.arrive()  # HERE

    rejected("BAD_KERNEL", "before it knows the address", mma=mma)


def test_the_address_read_before_it_is_there():
    def epilogue(kit):
        with kit.roles.epilogue:
            memory = TmemAllocation.from_shared(kit.outputs.address)
            with EpilogueWarpContext(kit.outputs, tmem=memory):  # HERE
                pass

    rejected("BAD_KERNEL", "call `Sync.wait()` first", epilogue=epilogue)


def test_a_barrier_where_no_pipeline_is():
    def prepare(kit):
        MmaWarpContext.Sync.wait()  # HERE

    rejected("BAD_KERNEL", "takes part in 0 output pipelines", prepare=prepare)


def test_a_linear_context_that_is_dropped():
    def mma(kit):
        with kit.roles.mma:
            made = MmaWarp.create(kit.outputs)  # HERE
            with made.output_pipeline.producer() as stage:
                multiply(kit, stage)

    rejected("BAD_KERNEL", "a MmaWarp is never released", mma=mma)


def test_a_linear_context_that_is_released_twice():
    def epilogue(kit):
        with kit.roles.epilogue:
            made = EpilogueWarp.create(kit.outputs)
            made.release()
            made.release()  # HERE

    rejected("BAD_KERNEL", "is released twice", epilogue=epilogue)


def test_a_linear_context_that_is_released_in_a_loop():
    def mma(kit):
        with kit.roles.mma:
            made = MmaWarp.create(kit.outputs)
            for _ in loop(kit.tiles):
                made.release()  # HERE

    rejected("BAD_KERNEL", "is released inside a device loop", mma=mma)


def test_parts_of_another_pipeline_are_reported_together():
    def mma(kit):
        with kit.roles.mma:
            other = SMemArray.make(SharedMemBarrier, 1)
            slot = SMemArray.make("u32", 1)
            MmaWarpContext.create(kit.outputs, tmem_addr_storage=slot, dealloc_mbar=other)  # HERE

    rejected("BAD_KERNEL", "`tmem_addr_storage` and `dealloc_mbar` given to MmaWarpContext", mma=mma)


def test_a_deallocation_barrier_of_another_pipeline():
    def prepare(kit):
        other = TmemDeallocBarrier(kit.roles.epilogue, kit.cluster, "other")
        EpilogueWarpContext(kit.outputs, dealloc_barrier=other)  # HERE

    rejected("BAD_KERNEL", "`dealloc_barrier` given to EpilogueWarpContext", prepare=prepare)


def test_a_mask_of_other_ctas():
    def epilogue(kit):
        with kit.roles.epilogue:
            EpilogueWarpContext.create(kit.outputs, mma_complete_mask=2)  # HERE

    rejected("COUNT_MISMATCH", "given 0x2", "make 0x1", epilogue=epilogue)


def test_named_barriers_have_unique_numbers():
    """The hand-over of the address and the author's own barrier are different barriers."""

    def epilogue(kit):
        told_one, meeting = WarpGroupBarrier(128), WarpGroupBarrier(128)
        numbers = {told_one.id, meeting.id, kit.outputs.sync.id}
        assert len(numbers - {0}) == 3, "and 0 is the CTA's own"
        with kit.roles.epilogue, EpilogueWarpContext(kit.outputs) as epi:
            for tile in kit.work:
                with epi.output_pipeline.consumer() as stage:
                    kit.process(stage.tmem, tile)
                with when(kit.roles.epilogue.warp == 3):
                    told_one.wait()
                with when(kit.roles.epilogue.warp < 3):
                    told_one.arrive()  # counts without waiting
                meeting.sync()

    check(plain_mma, epilogue)


def test_there_are_sixteen_named_barriers():
    def prepare(kit):
        with when(lane() == 0):
            WarpGroupBarrier(128, 16)  # HERE

    rejected("BAD_KERNEL", "named barrier 16; a CTA has 16", prepare=prepare)
