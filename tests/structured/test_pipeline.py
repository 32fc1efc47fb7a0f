"""Pipelines on the emulator: order, back-pressure, every way to hold a stage, and under every schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warploom import launch
from warploom.diagnostics import TraceError
from warploom.structured import (
    CopyAsync,
    EpiLoadPipeline,
    EveryThread,
    FirstLanes,
    LoadOrderBarrier,
    OncePerWarp,
    ProducerConsumerPipeline,
)
from warploom.trace import Array, emit, f32, kernel, lane, loop, s32, shared, u32, warp_roles, when

SCHEDULES = [("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2)]


@kernel(target="sm_90a")
def hand_over(x: Array[f32], y: Array[f32], n: s32, *, stages: int, form: str) -> None:
    """Rows of x through a ring to y, doubled; by each form of holding a stage."""
    roles = warp_roles(use=2, load=1)
    ring = shared(f32, (stages, 32), name="ring")
    consumer: Any = EveryThread(roles.use)
    if form == "once per warp":
        consumer = OncePerWarp(roles.use)
    elif form in ("explicit", "arrive"):
        consumer = FirstLanes(roles.use, first=3)
    producer: Any = CopyAsync(roles.load) if form == "copy" else EveryThread(roles.load)
    pipeline = ProducerConsumerPipeline(stages, producer=producer, consumer=consumer, name="rows")

    with roles.load:
        for i in loop(n):
            if form == "linear":
                stage = pipeline.acquire_producer()
                ring[stage.index(), lane()] = x[i, lane()]
                stage.release()
            elif form == "steps":
                pipeline.wait_consumer()
                ring[pipeline.producer_stage(), lane()] = x[i, lane()]
                pipeline.producer_mbar().arrive()
                pipeline.producer_step()
            elif form == "if needed":
                ready = pipeline.try_wait_consumer()
                pipeline.wait_consumer_if_needed(ready)
                ring[pipeline.producer_stage(), lane()] = x[i, lane()]
                pipeline.producer_mbar().arrive()
                pipeline.producer_step()
            else:
                with pipeline.produce() as stage:
                    if form == "copy":
                        emit("cp.async.ca.shared.global", ring.at(stage.index(), lane()), x.at(i, lane()), 4)
                    else:
                        ring[stage.index(), lane()] = x[i, lane()]
                    if form == "by hand":
                        stage.mbar().arrive()

    with roles.use:
        for i in loop(n):
            if form == "linear":
                held = pipeline.acquire_consumer()
                value = ring[held.index(), lane()]
                held.release()
            elif form in ("steps", "if needed"):
                if form == "steps":
                    pipeline.wait_producer()
                else:
                    pipeline.wait_producer_if_needed(pipeline.try_wait_producer())
                value = ring[pipeline.consumer_stage(), lane()]
                pipeline.consumer_mbar().arrive()
                pipeline.consumer_step()
            elif form in ("explicit", "arrive"):
                with pipeline.consume_explicit() as held:
                    value = ring[held.index(), lane()]
                    emit("bar.warp.sync", -1)
                    with when(lane() < 3):
                        if form == "arrive":
                            held.mbar().arrive()
                        else:
                            held.arrive()
            else:
                with pipeline.consume() as held:
                    value = ring[held.index(), lane()]
                    if form == "early":
                        held.release()
            y[roles.use.warp, i, lane()] = value * 2.0


@pytest.mark.parametrize(
    "form", ["with", "linear", "steps", "if needed", "once per warp", "explicit", "arrive", "early", "by hand", "copy"]
)
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rows_arrive_in_order_in_every_form(form: str, stages: int) -> None:
    rows = 2 * stages + 1
    x = np.random.default_rng().random((rows, 32), np.float32)
    for schedule, seed in SCHEDULES:
        y = np.full((2, rows, 32), np.nan, np.float32)
        bound = hand_over.bind(x, y, rows, grid=(1, 1, 1), block=(96, 1, 1), stages=stages, form=form)
        launch(bound, schedule=schedule, seed=seed)
        assert (y == 2 * x).all()


def test_the_producer_waits_with_the_parities_of_the_reference() -> None:
    """Two stages: the producer waits at (0, 1) (1, 1) (0, 0) (1, 0), the consumer at (0, 0) (1, 0) (0, 1) (1, 1)."""

    @kernel(target="sm_90a")
    def rejected(seen: Array[u32], n: s32) -> None:
        roles = warp_roles(load=1, use=1)
        pipeline = ProducerConsumerPipeline(2, producer=EveryThread(roles.load), consumer=EveryThread(roles.use))
        for role, side, name in (
            (roles.load, pipeline.producer_side, "producer"),
            (roles.use, pipeline.consumer_side, "consumer"),
        ):
            with role:
                for i in loop(n):
                    place = 0 if name == "producer" else 1
                    seen[place, i, 0] = side.state.stage
                    seen[place, i, 1] = side.state.parity
                    (pipeline.producer_signal_and_step if place == 0 else pipeline.consumer_signal_and_step)()
                if place == 0:
                    pipeline.drain_producer()

    assert ProducerConsumerPipeline.smem_bytes(2) == 2 * 2 * 8
    seen = np.full((2, 9, 2), 99, np.uint32)
    launch(rejected.bind(seen, 9, grid=(1, 1, 1), block=(64, 1, 1)), schedule="random", seed=3)
    laps = [(i % 2, i // 2 % 2) for i in range(9)]
    assert [tuple(row) for row in seen[1]] == laps
    assert [tuple(row) for row in seen[0]] == [(stage, 1 - lap) for stage, lap in laps]


@kernel(target="sm_90a")
def ordered(y: Array[u32], n: s32, *, ahead: int) -> None:
    """A main load that runs ahead of the loads of the epilogue, and says for each tile that it has begun."""
    roles = warp_roles(main=1, epilogue_load=1, epilogue=4)
    order = LoadOrderBarrier(first=roles.main, then=roles.epilogue_load)
    loads = EpiLoadPipeline(
        2, producer=roles.epilogue_load, consumer=roles.epilogue, signal=EveryThread(roles.epilogue_load)
    )
    slots = shared(u32, 2, name="slots")
    with roles.main:
        for _ in loop(n):
            order.arrive_and_step()
    with roles.epilogue_load:
        for i in loop(n):
            order.wait_and_step()
            with loads.produce() as stage, when(lane() == 0):
                slots[stage.index()] = i.to(u32) + 7
    with roles.epilogue:
        for i in loop(n):
            with loads.consume() as stage:
                value = slots[stage.index()]
            with when(roles.epilogue.thread == 0):
                y[i] = value


@pytest.mark.parametrize("tiles", [1, 2, 3, 8])
def test_two_early_arrivals_do_not_look_like_none(tiles: int) -> None:
    for schedule, seed in (*SCHEDULES, *(("random", seed) for seed in range(10, 16))):
        y = np.zeros(tiles, np.uint32)
        launch(ordered.bind(y, tiles, grid=(1, 1, 1), block=(192, 1, 1), ahead=2), schedule=schedule, seed=seed)
        assert y.tolist() == [7 + i for i in range(tiles)]


def test_counts_that_are_given_are_checked() -> None:
    @kernel(target="sm_90a")
    def counted(n: s32, *, count: int) -> None:
        roles = warp_roles(load=1, epilogue=4)
        loads = EpiLoadPipeline(2, producer=roles.load, consumer=roles.epilogue)
        loads.init_barriers(1, count)
        with roles.load, loads.produce():
            pass
        with roles.epilogue, loads.consume():
            pass

    assert "mbarrier.init.shared::cta.b64" in counted.ptx(1, block=(160, 1, 1), count=128)
    with pytest.raises(
        TraceError, match=r"COUNT_MISMATCH: .*given 64 arrivals of its consumer, but its roles make 128"
    ):
        counted.ptx(1, block=(160, 1, 1), count=64)
