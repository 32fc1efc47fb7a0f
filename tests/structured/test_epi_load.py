"""The epilogue-load pipeline: each of its methods, on the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from tests.structured.scheduling import SCHEDULES

from warploom import TensorMap, launch
from warploom.diagnostics import TraceError
from warploom.ptx.syntax.printer import print_module
from warploom.structured import (
    ConsumeContext,
    ConsumerStage,
    EpiLoadPipeline,
    ExplicitConsumeContext,
    FirstLanes,
    LoadOrderBarrier,
    ProduceContext,
    ProducerConsumerPipeline,
    ProducerStage,
    SharedMemBarrier,
    SMemArray,
    SMemTileArray2DRowMajor,
    TMATensorTile,
)
from warploom.trace import Array, elect, emit, kernel, lane, loop, s32, u32, warp_index, warp_roles, when
from warploom.trace.isa import cp

STAGES = 2
PRODUCING = ("produce", "acquire_producer", "steps")
CONSUMING = ("consume", "consume_explicit", "acquire_consumer", "steps", "without_signal")


def load(pipeline, tiles, role, source, row, form):
    """A tile of the source into the next stage."""

    def copy(index, barrier):
        barrier.arrive_and_expect(source.box_bytes)
        cp.async_bulk_tensor_load(tiles[index], source.at(row, 0), barrier)

    if form == "produce":
        context = pipeline.produce()
        assert isinstance(context, ProduceContext)
        with context as stage, when(role.elected):
            assert isinstance(stage, ProducerStage)
            copy(stage.index(), stage.mbar())
    elif form == "acquire_producer":
        stage = pipeline.acquire_producer()
        with when(role.elected):
            copy(stage.index(), stage.mbar())
        stage.release()
    else:
        pipeline.wait_consumer()
        with when(role.elected):
            copy(pipeline.pipeline.producer_stage(), pipeline.producer_mbar())
        pipeline.producer_step()


def taken(pipeline, tiles, thread, form):
    """This thread's element of the next stage."""
    if form == "consume":
        context = pipeline.consume()
        assert isinstance(context, ConsumeContext)
        with context as stage:
            assert isinstance(stage, ConsumerStage)
            return tiles[stage.index()][thread // 16, thread % 16]
    if form == "consume_explicit":
        context = pipeline.consume_explicit()
        assert isinstance(context, ExplicitConsumeContext)
        with context as stage:
            value = tiles[stage.index()][thread // 16, thread % 16]
            emit("bar.warp.sync", -1)
            with when(lane() < 2):
                stage.arrive()
        return value
    if form in ("acquire_consumer", "without_signal"):
        stage = pipeline.acquire_consumer()
        value = tiles[stage.index()][thread // 16, thread % 16]
        if form == "without_signal":
            pipeline.pipeline.consumer_mbar(stage.index()).arrive()
            stage.release_without_signal()
        else:
            stage.release()
        return value
    pipeline.wait_producer()
    value = tiles[pipeline.consumer_stage()][thread // 16, thread % 16]
    pipeline.pipeline.consumer_mbar().arrive()
    pipeline.consumer_step()
    return value


@kernel(target="sm_100a")
def doubled(c: TensorMap, d: Array, count: s32, *, producing, consuming, by_hand):
    assert isinstance(c, TMATensorTile)
    assert c.box_bytes == 8 * 16 * 4
    roles = warp_roles(epilogue=4, epilogue_load=1)
    guarded = consuming == "consume_explicit"
    consumer = FirstLanes(roles.epilogue, first=2) if guarded else roles.epilogue
    array = SMemArray.make(SharedMemBarrier, 2 * STAGES, name="mine") if by_hand else None
    pipeline = EpiLoadPipeline(STAGES, producer=roles.epilogue_load, consumer=consumer, ptr=array)
    assert isinstance(pipeline.pipeline, ProducerConsumerPipeline)
    assert pipeline.num_stages == pipeline.pipeline.num_stages == STAGES
    tiles = SMemTileArray2DRowMajor.make("f32", 8, 16, STAGES)
    assert (tiles.dtype, tiles.shape, len(tiles)) == ("f32", (8, 16), STAGES)
    if by_hand:
        with when(warp_index() == 0), when(elect()):
            pipeline.init_barriers(1, 8 if guarded else 128)
    with roles.epilogue_load:
        for tile in loop(count):
            load(pipeline, tiles, roles.epilogue_load, c, tile * 8, producing)
    with roles.epilogue:
        thread = roles.epilogue.thread
        for tile in loop(count):
            d[tile * 8 + (thread // 16).to(s32), thread % 16] = taken(pipeline, tiles, thread, consuming) * 2.0


@pytest.mark.parametrize("number", range(15))
def test_every_form_of_both_sides(number):
    count = 2 * STAGES + 1
    c = np.random.default_rng().random((8 * count, 16), np.float32)
    d = np.empty_like(c)
    forms = {"producing": PRODUCING[number % 3], "consuming": CONSUMING[number % 5], "by_hand": number % 2 == 1}
    bound = doubled.bind(TensorMap(c, box=(8, 16)), d, count, grid=(1, 1, 1), block=(160, 1, 1), **forms)
    for schedule, seed in SCHEDULES:
        d[...] = np.nan
        launch(bound, schedule=schedule, seed=seed)
        np.testing.assert_array_equal(d, 2 * c)
    text = print_module(bound.program)
    assert ("barrier mine" in text, "barrier epi_load.full" in text) == (number % 2 == 1, number % 2 == 0)


def test_words_in_shared_memory():
    @kernel(target="sm_100a")
    def rotated(out: Array[u32]):
        words = SMemArray.make("u32", 32, name="words")
        assert words.size == 32
        words.storage[lane()] = lane() * 3
        emit("bar.warp.sync", -1)
        (value,) = emit("ld.shared.u32", words.ptr() + 4)
        out[lane()] = words.storage[(lane() + 1) % 32] + value

    out = np.zeros(32, np.uint32)
    launch(rotated.bind(out, grid=(1, 1, 1), block=(32, 1, 1)))
    assert out.tolist() == [(i + 1) % 32 * 3 + 3 for i in range(32)]


def traced(body):
    @kernel(target="sm_100a")
    def wrong(n: s32):
        body(warp_roles(epilogue=4, epilogue_load=1), n)

    with pytest.raises(TraceError) as caught:
        wrong.ptx(1, block=(160, 1, 1))
    return str(caught.value)


def test_the_wrong_side():
    def body(roles, n):
        pipeline = EpiLoadPipeline(2, producer=roles.epilogue_load, consumer=roles.epilogue)
        with roles.epilogue, pipeline.produce():
            pass

    assert traced(body).startswith("STAGE_WRONG_ROLE: Role `epilogue` acquires a producer stage of `epi_load`")


def test_a_guarded_arrival_where_every_thread_was_declared():
    def body(roles, n):
        pipeline = EpiLoadPipeline(2, producer=roles.epilogue_load, consumer=roles.epilogue)
        with roles.epilogue, pipeline.consume_explicit() as stage, when(lane() < 1):
            stage.arrive()

    assert traced(body).startswith("UNCOUNTABLE_ARRIVAL: 1 lanes of a warp arrive on `epi_load`")


def test_the_load_order_has_two_sides():
    def body(roles, n):
        order = LoadOrderBarrier(first=roles.epilogue_load, then=roles.epilogue)
        with roles.epilogue:
            order.arrive()

    assert traced(body).startswith("STAGE_WRONG_ROLE: Role `epilogue` acquires a producer stage of `load_order`")
