"""Cluster launch control: every tile once, to all roles of all CTAs alike, and barrier counts that are derived."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from tests.structured.schedulers.test_schedulers import PLACE, SPLIT, whole
from tests.structured.scheduling import SCHEDULES, WARPS, Recorder, counts, everything

from warploom import launch
from warploom.diagnostics import Stuck, TraceError
from warploom.structured import ClcScheduler, Cluster
from warploom.structured.pipelines.start_up import start_up
from warploom.structured.schedulers.raster import raster
from warploom.structured.split_k.workspace import split_range
from warploom.trace import Array, barriers, kernel, s32, warp_roles, when

SEVEN = tuple(WARPS.items())
EIGHT = (*SEVEN, ("epilogue_load", 1))
EMPTY = {
    ((1, 1), 1): (224, 256),
    ((2, 1), 1): (416, 480),
    ((2, 1), 2): (416, 480),
    ((4, 2), 1): (1568, 1824),
    ((4, 4), 1): (3104, 3616),
    ((4, 4), 2): (3104, 3616),
    ((8, 2), 1): (3104, 3616),
    ((8, 2), 2): (3104, 3616),
    ((2, 4), 2): (1568, 1824),
}
"""Arrivals on `clc.empty`, without and with a role that loads for the epilogue, by cluster and CTA group."""


def clc(num_stages, **options):
    return lambda roles, cluster, sizes, arrays: ClcScheduler(
        roles, cluster=cluster, k_tiles=sizes[3], num_stages=num_stages, **options
    )


@pytest.mark.parametrize(("cluster", "cta_group"), EMPTY)
def test_counts_are_the_sum_over_roles_and_ctas(cluster, cta_group):
    for stages, warps, empty in zip((2, 3), (SEVEN, EIGHT), EMPTY[cluster, cta_group], strict=True):
        text = Recorder(clc(stages), PLACE, warps, cluster, cta_group).text()
        assert counts(text) == [1] * stages + [empty] * stages + [32] * stages + [32] * stages


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
@pytest.mark.parametrize(
    ("grid", "cluster", "cta_group", "sms"),
    [
        ((1, 1, 1), (1, 1), 1, 1),
        ((5, 3, 2), (1, 1), 1, 3),
        ((6, 5, 1), (2, 1), 2, 5),
        ((4, 6, 2), (2, 2), 1, 9),
        ((8, 8, 1), (4, 4), 2, 16),
        ((8, 4, 1), (4, 4), 1, 148),
    ],
)
def test_every_tile_is_given_once(number, grid, cluster, cta_group, sms):
    (schedule, seed), stages = SCHEDULES[number], 1 + number % 3
    recorder = Recorder(clc(stages), PLACE, cluster=cluster, cta_group=cta_group)
    seen = recorder.run(grid, (1, 1, 1, 1), schedule=schedule, seed=seed, sms=sms)
    assert everything(seen) == whole(grid)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_ring_of_any_length_goes_round(stages):
    recorder = Recorder(clc(stages), PLACE)
    for schedule, seed in SCHEDULES:
        seen = recorder.run((4, 2, 1), (1, 1, 1, 1), schedule=schedule, seed=seed, sms=2)
        assert everything(seen) == whole((4, 2, 1))


@pytest.mark.parametrize("cluster", [(1, 1), (2, 2)])
def test_answers_are_read_before_they_are_freed_and_all_are_waited_for(cluster):
    """Behind each read there is a fence and then the arrival; the scheduler stays until every slot is free."""
    stages = 3
    text = Recorder(clc(stages), PLACE, cluster=cluster).text()
    words = re.findall(r"ld\.shared\.b128|fence\.proxy\.async\S*|mbarrier\.arrive\.(?!expect)", text)
    reads = [at for at, word in enumerate(words) if word == "ld.shared.b128"]
    assert len(reads) == 4
    for at in reads:
        assert words[at + 1 : at + 3] == ["fence.proxy.async.shared::cta;", "mbarrier.arrive."]
    scheduler = text.partition("role scheduler")[2].partition("$end_scheduler_0:")[0]
    assert scheduler.count("mbarrier.try_wait") == 3 + stages
    multicast = "multicast::cluster::all" in scheduler
    assert multicast == (cluster != (1, 1))


def test_one_cluster_takes_over_all_that_was_not_launched():
    """In the order of launching, through the raster; the CTAs of a cluster stay together."""
    order, size, grid = "along_n", 2, (10, 6, 2)
    recorder = Recorder(clc(2, order=order, block_swizzle=size), PLACE, cluster=(2, 2))
    seen = recorder.run(grid, (1, 1, 1, 1), sms=4)
    launched = [(m, n, z) for z in range(2) for n in range(3) for m in range(5)]
    for cta, (x, y) in ((0, (0, 0)), (1, (1, 0)), (10, (0, 1)), (11, (1, 1))):
        places = [(*raster(m, n, (5, 3), order, size), z) for m, n, z in launched]
        assert seen[cta] == [(2 * m + x, 2 * n + y, z) for m, n, z in places]
    assert len(seen) == 4


def test_without_stages_each_cta_has_its_own_tile_only():
    recorder = Recorder(clc(0), PLACE, cluster=(2, 1), cta_group=2)
    assert everything(recorder.run((4, 3, 1), (1, 1, 1, 1), sms=4)) == whole((4, 3, 1))
    text = recorder.text()
    assert counts(text) == []
    assert "clusterlaunchcontrol" not in text
    assert "role scheduler" not in text


def test_splits_come_with_the_grid():
    splits, total, grid = 4, 9, (3, 2, 8)
    seen = Recorder(clc(2, splits=splits), SPLIT).run(grid, (1, 1, 1, total), sms=2, schedule="random", seed=5)
    expected = [
        (m, n, b, *split_range(total, splits, split), split, split == 0, split == splits - 1, (b * 3 + m) * 2 + n)
        for m, n, b, split in itertools.product(range(3), range(2), range(2), range(splits))
    ]
    assert everything(seen) == sorted(expected)


def test_roles_that_do_not_work_are_not_counted():
    def make(roles, cluster, sizes, arrays):
        workers = (roles.load, roles.mma)
        return ClcScheduler(roles, cluster=cluster, k_tiles=1, num_stages=2, workers=workers, paced_by=roles.mma)

    recorder = Recorder(make, PLACE, silent=("scheduler", "epilogue"))
    assert counts(recorder.text())[2:4] == [96, 96]
    assert everything(recorder.run((3, 3, 1), (1, 1, 1, 1), sms=2, schedule="random")) == whole((3, 3, 1))


def traced(body):
    """Trace a kernel of two roles; gives the error."""

    @kernel(target="sm_100a")
    def wrong(out: Array[s32]):
        body(warp_roles(scheduler=1, load=1, mma=1), out)

    with pytest.raises(TraceError) as caught:
        wrong.bind(np.zeros(4, np.int32), grid=(1, 1, 1), block=(96, 1, 1))
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__
    return caught.value


def tiles_of(roles, **options):
    return ClcScheduler(roles, cluster=Cluster(), k_tiles=1, num_stages=2, **options)


def test_a_worker_that_never_walks_is_an_error():
    def body(roles, out):
        tiles = tiles_of(roles)
        with roles.load:
            for tile in tiles:
                out[0] = tile.m

    error = traced(body)
    assert error.code == "SIDE_UNUSED"
    assert "`mma`" in error.what


def test_a_role_that_iterates_must_be_a_worker():
    def body(roles, out):
        tiles = tiles_of(roles, workers=(roles.load,))
        for role in (roles.load, roles.mma):
            with role:
                for tile in tiles:
                    out[0] = tile.m

    error = traced(body)
    assert error.code == "STAGE_WRONG_ROLE"
    assert "Role `mma`" in error.what


def test_every_thread_of_a_role_walks():
    def body(roles, out):
        tiles = tiles_of(roles)
        with roles.load, when(roles.load.elected):
            for tile in tiles:
                out[0] = tile.m

    error = traced(body)
    assert error.code == "BAD_TILE_LOOP"
    assert "every thread must take part" in error.what


def test_the_requesting_role_is_no_worker_and_the_throttling_role_is():
    error = traced(lambda roles, out: tiles_of(roles, workers=(roles.scheduler, roles.mma)))
    assert error.code == "BAD_KERNEL"
    assert "`scheduler` requests tiles" in error.what
    assert "`load` throttles" in error.what


@pytest.mark.parametrize("tile", [1, 2])
def test_the_next_cluster_is_asked_for_when_the_last_is_begun(tile):
    """While a role is at its first tile there comes a second for the others, but no third."""

    @kernel(target="sm_100a")
    def slow(out: Array[s32]):
        roles = warp_roles(scheduler=1, load=1, mma=1)
        tiles, gate = tiles_of(roles), barriers("gate")
        start_up().barriers.append((gate, lambda: 1))
        with roles.load:
            for each in tiles:
                with when(each.m == 0):
                    gate[0].wait(0)
        with roles.mma:
            for each in tiles:
                with when((each.m == tile) & roles.mma.elected):
                    gate[0].arrive()
                    out[0] = each.m

    out = np.zeros(1, np.int32)
    bound = slow.bind(out, grid=(5, 1, 1), block=(96, 1, 1))
    if tile == 1:
        launch(bound, sms=1)
        assert out[0] == 1
        return
    with pytest.raises(Stuck) as caught:
        launch(bound, sms=1)
    assert caught.value.code == "DEADLOCK"
    assert "clc_throttle.full" in str(caught.value)
