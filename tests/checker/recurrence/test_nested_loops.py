"""A kernel in the shape of attention: a query for each tile, a ring of keys, a ring of results, and three roles."""

from __future__ import annotations

import numpy as np

import warploom
from warploom import TensorMap
from warploom.checker.report import Verdict
from warploom.trace import (
    Variable,
    barriers,
    f32,
    fence_barrier_init,
    kernel,
    loop,
    s32,
    select,
    shared,
    sync_threads,
    thread,
    u32,
    warp_roles,
    when,
)
from warploom.trace.isa import cp, fence

WIDTH = 64


class Ring:
    """The stage and the parity of a role in a ring."""

    def __init__(self, stages: int, parity: int) -> None:
        self.stages, self.stage, self.parity = stages, Variable(u32, 0), Variable(u32, parity)

    def advance(self) -> None:
        ends = (self.stage + 1) == self.stages
        self.parity.set(select(ends, self.parity ^ 1, self.parity))
        self.stage.set(select(ends, 0, self.stage + 1))


@kernel(target="sm_90a")
def attend(
    queries: TensorMap, keys: TensorMap, out: TensorMap, tiles: s32, steps: s32, *, stages: int, defect: str
) -> None:
    query, key, result = (shared(f32, (rows, WIDTH), name=name) for name, rows in (("q", 1), ("k", stages), ("r", 2)))
    asked, read = barriers("asked"), barriers("read")
    full, empty = barriers("full", stages), barriers("empty", stages)
    done, free = barriers("done", 2), barriers("free", 2)
    roles = warp_roles(compute=2, load=1, store=1)
    with when(thread() == 0):
        for each, count in ((asked, 1), (read, WIDTH), (full, 1), (empty, WIDTH), (done, WIDTH), (free, 1)):
            each.init(count)
        fence_barrier_init()
    sync_threads()
    with roles.load, when(roles.load.first_thread):
        ring, parity = Ring(stages, 1), Variable(u32, 1)
        for tile in loop(tiles):
            read[0].wait(parity)  # the loop begins with a wait, which is a loop of the same head
            parity.set(parity ^ 1)
            asked[0].arrive_and_expect(queries.box_bytes)
            cp.async_bulk_tensor_load(query, queries.at(tile, 0), asked[0])
            for step in loop(steps):
                empty[ring.stage].wait(ring.parity)
                full[ring.stage].arrive_and_expect(keys.box_bytes)
                cp.async_bulk_tensor_load(key[ring.stage], keys.at(step, 0), full[ring.stage])
                ring.advance()
            if defect == "stage":
                ring.stage.set(0)
    with roles.compute:
        ring, results, parity, own = Ring(stages, 0), Ring(2, 1), Variable(u32, 0), roles.compute.thread
        for _ in loop(tiles):
            asked[0].wait(parity)
            parity.set(parity ^ 1)
            total, factor = Variable(f32, 0.0), query[0, own]
            for _ in loop(steps):
                full[ring.stage].wait(ring.parity)
                total += factor * key[ring.stage, own]
                empty[ring.stage].arrive()
                ring.advance()
            read[0].arrive()
            free[results.stage].wait(results.parity)
            result[results.stage, own] = total + 0.0
            fence.proxy_async(space="shared::cta")
            done[results.stage].arrive()
            results.advance()
    with roles.store, when(roles.store.first_thread):
        results = Ring(2, 0)
        for tile in loop(tiles):
            done[results.stage].wait(results.parity)
            cp.async_bulk_tensor_store(out.at(tile, 0), result[results.stage])
            cp.async_bulk_commit_group()
            cp.async_bulk_wait_group(1 if defect == "store" else 0, read=True)
            free[results.stage].arrive()
            results.advance()
        cp.async_bulk_wait_group(0)


def bound(tiles: int, steps: int, stages: int, defect: str = "") -> tuple[warploom.Launch, list[np.ndarray]]:
    draw = np.random.default_rng(1)
    arrays = [draw.integers(-3, 4, (rows, WIDTH)).astype(np.float32) for rows in (tiles, steps, tiles)]
    maps = (TensorMap(each, box=(1, WIDTH)) for each in arrays)
    return attend.bind(*maps, tiles, steps, grid=1, stages=stages, defect=defect), arrays


def test_the_kernel_is_right() -> None:
    launch, (queries, keys, out) = bound(3, 4, 3)
    warploom.launch(launch)
    assert np.array_equal(out, queries * keys.sum(0))


def test_all_numbers_of_tiles_and_steps_are_proved() -> None:
    report = warploom.check(bound(40, 6, 1)[0], profile="lenient", sizes="pairs", budget=0)
    assert report.verdict is Verdict.PROVED
    assert report.covers.generalised[0].startswith("attend_steps >= 1 with any number of tiles of a cluster >= 1")
    report = warploom.check(bound(40, 6, 3)[0], profile="lenient", sizes="all", budget=0)
    assert [each.partition(" (")[0] for each in report.covers.generalised] == [
        "attend_steps >= 1 with one tile of a cluster", "tiles of a cluster >= 1 with 3 K steps",
    ]  # fmt: skip


def test_a_stage_that_is_reset_is_right_for_whole_laps_only() -> None:
    """The launch has whole laps, and the next tile does not."""
    launch = bound(40, 6, 3, "stage")[0]
    assert warploom.check(launch, profile="lenient", budget=0).verdict is Verdict.PROVED
    assert warploom.check(launch, profile="lenient", sizes="pairs", budget=0).verdict is Verdict.REFUTED


def test_a_result_that_is_stored_late_is_found() -> None:
    launch = bound(40, 6, 3, "store")[0]
    assert warploom.check(launch, profile="lenient", sizes="all", budget=0).verdict is Verdict.REFUTED
