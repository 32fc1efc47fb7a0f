"""The input pipeline: its views and stages, groups of K tiles, payloads, and the end of the producing role."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.kernels.plain_problems import role_texts
from tests.structured.accumulating import ONE, PAIR, check, plain_epilogue, plain_mma, rejected
from tests.structured.scheduling import SCHEDULES

from warploom.structured import (
    BlockScaledTilePayload,
    BlockwiseFP8TilePayload,
    InputConsumer,
    InputConsumerStage,
    InputProducer,
    InputProducerStage,
    InputTilePipeline,
    MatmulConfig,
    MmaWarpContext,
    OperandLayout,
    OperandTiles,
    StandardTilePayload,
    TilePayload,
)
from warploom.trace import literal, loop, when
from warploom.trace.builder import Builder, building

CONSUMING = ("consume", "acquire", "acquire_stage", "acquire_consumer", "acquire_if_needed")


def mma_by(form):
    """The MMA role with one way to hold an input stage."""

    def held(kit):
        view = kit.inputs.consumer()
        assert isinstance(view, InputConsumer)
        if form == "acquire_if_needed":
            return view.acquire_if_needed(view.try_acquire())
        return kit.inputs.consume() if form == "consume" else view.acquire()

    def mma(kit):
        with kit.roles.mma, MmaWarpContext(kit.outputs) as context:
            for _ in kit.work:
                with when(kit.cluster.leader), context.output_pipeline.producer() as acc:
                    for k in loop(kit.k_tiles):
                        if form in ("acquire_stage", "acquire_consumer"):
                            linear = form == "acquire_stage"
                            tiles = kit.inputs.consumer().acquire_stage() if linear else kit.inputs.acquire_consumer()
                            kit.mma_op.mma(tiles, acc.tmem, accumulate=k > 0)
                            tiles.release()
                            continue
                        with held(kit) as tiles:
                            assert isinstance(tiles, InputConsumerStage)
                            assert tiles.payload() is kit.inputs.payload
                            assert tiles.stage().operand == tiles.index().operand
                            kit.mma_op.mma(tiles, acc.tmem, accumulate=k > 0)

    return mma


@pytest.mark.parametrize("shape", [ONE, PAIR], ids=["one", "pair"])
@pytest.mark.parametrize("number", range(len(CONSUMING)))
def test_every_way_to_hold_a_loaded_stage(number, shape):
    """The commit is the release: with the MMA role's `commit` on the stage's own barrier, or by leaving."""
    schedule = SCHEDULES[number]
    check(mma_by(CONSUMING[number]), plain_epilogue, [schedule], shape=shape, num_pipeline_stages=2, k_tiles=5)


PRODUCING = ("produce", "acquire", "acquire_stage", "acquire_producer", "acquire_if_needed", "by hand")


def load_by(form):
    """The load role with one way to hold an input stage."""

    def load(kit):
        inputs = kit.inputs
        assert isinstance(inputs, InputTilePipeline)
        view = inputs.producer()
        assert isinstance(view, InputProducer)
        with kit.roles.load:
            for tile in kit.work:
                for k in loop(kit.k_tiles):
                    if form in ("acquire_stage", "acquire_producer"):
                        stage = view.acquire_stage() if form == "acquire_stage" else inputs.acquire_producer()
                        stage.load(tile, k)
                        stage.release()
                    elif form == "by hand":
                        by_hand(kit, tile, k)
                    else:
                        ready = view.try_acquire() if form == "acquire_if_needed" else None
                        context = view.acquire() if form == "acquire" else inputs.produce()
                        with context if ready is None else view.acquire_if_needed(ready) as stage:
                            assert isinstance(stage, InputProducerStage)
                            assert stage.payload() is inputs.payload
                            assert stage.stage().operand == stage.index().operand
                            stage.load(tile, k)

    return load


def by_hand(kit, tile, k):
    """Do what `stage.load` does, step by step."""
    inputs = kit.inputs
    with inputs.produce() as stage, when(kit.roles.load.elected):
        with when(kit.cluster.leader):
            stage.expect_bytes(inputs.stage_bytes)
        for name in ("a", "b"):
            part = getattr(stage.payload(), name)
            part.load(stage.stage(), tile, k, stage.barrier().at, kit.cluster)


@pytest.mark.parametrize("shape", [ONE, PAIR], ids=["one", "pair"])
@pytest.mark.parametrize("number", range(len(PRODUCING)))
def test_every_way_to_fill_a_stage(number, shape):
    schedule = SCHEDULES[number % len(SCHEDULES)]
    fields = {"num_pipeline_stages": 2, "k_tiles": 5}
    check(plain_mma, plain_epilogue, [schedule], shape=shape, load=load_by(PRODUCING[number]), **fields)


@pytest.mark.parametrize(("group", "stages"), [(2, 2), (2, 4), (4, 4)])
def test_one_barrier_guards_a_group_of_k_tiles(group, stages):
    def mma(kit):
        assert (kit.inputs.num_group_stages, kit.inputs.k_group_size) == (stages // group, group)
        assert kit.inputs.stage_bytes == group * kit.inputs.payload.bytes
        plain_mma(kit)

    fields = {"k_group_size": group, "num_pipeline_stages": stages, "k_tiles": 3 * group}
    check(mma, plain_epilogue, **fields)


def test_a_role_that_has_produced_stays_until_every_stage_is_free():
    """Automatic or explicit, but once: a second time no consumer would release a stage."""

    def load(kit):
        with kit.roles.load:
            for tile in kit.work:
                for k in loop(kit.k_tiles):
                    with kit.inputs.produce() as stage:
                        stage.load(tile, k)
            kit.inputs.producer().drain()
            kit.inputs.drain_producer()

    fields = {"num_pipeline_stages": 3}
    by_itself = role_texts(check(plain_mma, plain_epilogue, **fields))["load"]
    by_hand = role_texts(check(plain_mma, plain_epilogue, load=load, **fields))["load"]
    assert by_itself.count("mbarrier.try_wait") == by_hand.count("mbarrier.try_wait") == 1 + 3


def test_parts_of_payloads():
    class Part:
        local = False

        def __init__(self, size):
            self.bytes = size

    a, b, c, d = (Part(size) for size in (1, 2, 4, 8))
    standard = StandardTilePayload(a, b)
    assert isinstance(standard, TilePayload)
    assert (standard.a, standard.b, standard.bytes) == (a, b, 3)
    scaled = BlockScaledTilePayload(a, b, c, d)
    assert (scaled.sfa, scaled.sfb, scaled.bytes) == (c, d, 15)
    assert BlockwiseFP8TilePayload(a, b, c).a_scales is c
    with pytest.raises(AttributeError, match="no `sfa`; it has a, b"):
        assert standard.sfa


def test_the_address_of_a_tile_of_a_stage():
    config = MatmulConfig(cta_group=1, mma_shape=(64, 16, 16))
    with building(Builder("k", "sm_100a", 192)):
        layout = OperandLayout(64, config.BK, 16)
        part = OperandTiles("a", SimpleNamespace(), layout, 4, lambda tile: literal(0, "s32"))
        payload = TilePayload(a=part)
        (place,) = payload.get_tile(literal(1, "u32"), 1, k_group_size=2)
        (first,) = payload.get_tile(literal(0, "u32"), 0, k_group_size=2)
        assert place.offset - first.offset == 3 * layout.tile_bytes


def test_counts_that_do_not_match_the_roles():
    def prepare(kit):
        kit.inputs.init_barriers(1, 7)  # HERE

    rejected("COUNT_MISMATCH", "`inputs` was given 7 arrivals of its consumer, but its roles make 1", prepare=prepare)


def test_a_stage_that_the_load_role_drops():
    def load(kit):
        with kit.roles.load:
            kit.inputs.acquire_producer()  # HERE

    rejected("STAGE_DROPPED", "producer stage of `inputs`", load=load)
