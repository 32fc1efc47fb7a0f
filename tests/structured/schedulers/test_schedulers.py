"""Static schedules and split-K: every tile once, all roles alike, no split empty; and how tiles may be walked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.structured.scheduling import SCHEDULES, Recorder, counts, everything

from warploom.diagnostics import TraceError
from warploom.structured import (
    Cluster,
    MatmulConfig,
    Problem,
    StaticScheduler,
    TileScheduler,
    launch_grid,
    persistent_grid,
    split_k_workspace,
)
from warploom.structured.schedulers.raster import raster
from warploom.structured.split_k.workspace import split_range
from warploom.trace import Array, kernel, s32, warp_roles

PLACE = ("m", "n", "batch")
SPLIT = (*PLACE, "k_start", "k_tiles", "split", "is_first", "is_final", "number")


def static(**options):
    return lambda roles, cluster, sizes, arrays: StaticScheduler(
        sizes[:3], cluster=cluster, k_tiles=sizes[3], **options
    )


def whole(extents):
    return sorted(itertools.product(*map(range, extents)))


def rounded(tiles, cluster):
    """The grid with whole clusters."""
    return tuple(-(-count // size) * size for count, size in zip(tiles[:2], cluster, strict=True)) + tiles[2:]


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(
    ("tiles", "cluster", "sms"),
    [
        ((1, 1, 1), (1, 1), 4),
        ((5, 7, 3), (1, 1), 4),
        ((7, 5, 1), (2, 1), 7),
        ((3, 9, 2), (2, 2), 8),
        ((5, 2, 2), (4, 4), 33),
    ],
)
def test_a_static_schedule_gives_every_tile_once(schedule, seed, tiles, cluster, sms):
    grid = persistent_grid(tiles, cluster, sms)
    assert grid[0] * grid[1] <= max(sms, cluster[0] * cluster[1])
    recorder = Recorder(static(), PLACE, cluster=cluster)
    seen = recorder.run(grid, (*tiles, 1), schedule=schedule, seed=seed)
    assert everything(seen) == whole(rounded(tiles, cluster))
    shares = {len(rows) for rows in seen.values()}
    assert max(shares) - min(shares) <= 1


def test_a_static_schedule_counts_through_the_raster():
    """Cluster after cluster in the order of a raster, whatever the shape of the launch."""
    tiles, order, size = (7, 9, 2), "along_n", 2
    recorder = Recorder(static(order=order, block_swizzle=size), PLACE, cluster=(1, 1))
    seen = recorder.run((2, 3, 2), (*tiles, 1))
    places = [(*raster(i % 7, i // 7 % 9, tiles[:2], order, size), i // 63) for i in range(7 * 9 * 2)]
    assert [seen[cta] for cta in range(12)] == [places[cta::12] for cta in range(12)]
    assert everything(seen) == whole(tiles)


def test_a_static_schedule_needs_no_barriers_and_assembles():
    text = Recorder(static(block_swizzle=4, splits=3), SPLIT, cluster=(2, 1), cta_group=2).text()
    assert counts(text) == []
    assert "clusterlaunchcontrol" not in text


def test_no_split_is_empty_and_all_are_alike():
    """Also where giving each the same, rounded up, would leave the last with nothing: 9 groups in 4 splits."""
    for total, splits in itertools.product(range(1, 65), repeat=2):
        ranges = [split_range(total, splits, split) for split in range(splits)]
        assert [start for start, _ in ranges] == list(np.cumsum([0, *(count for _, count in ranges)]))[:-1]
        assert sum(count for _, count in ranges) == total
        sizes = {count for _, count in ranges}
        assert max(sizes) - min(sizes) <= 1
        assert total < splits or min(sizes) >= 1


@pytest.mark.parametrize(("total", "splits"), [(1, 1), (9, 4), (5, 4), (7, 7), (64, 6), (3, 2)])
def test_split_tiles_carry_their_share(total, splits):
    batch, tiles = 3, (2, 3)
    recorder = Recorder(static(splits=splits), SPLIT)
    seen = everything(recorder.run((4, 1, 1), (*tiles, batch * splits, total)))
    expected = [
        (m, n, b, *split_range(total, splits, split), split, split == 0, split == splits - 1, (b * 2 + m) * 3 + n)
        for m, n, b, split in itertools.product(range(2), range(3), range(batch), range(splits))
    ]
    assert seen == sorted(expected)


def test_the_workspace_has_a_tile_for_every_tile_of_the_swapped_grid():
    """From the caller's m and n there would be 64; the numbers go up to 127."""
    config = MatmulConfig(
        mma_shape=(256, 256, 16), cluster_shape=(4, 4, 1), AB_swapped=True, num_split_k=2, scheduler="static"
    )
    problem = Problem(512, 4096, 640)
    workspace = split_k_workspace(config, problem)
    assert workspace.shape == (128, 128, 256)

    def make(roles, cluster, sizes, arrays):
        return TileScheduler(config, roles, cluster, m=sizes[0], n=sizes[1], k=sizes[3], batch=sizes[2])

    recorder = Recorder(make, (*PLACE, "number", "k_tiles"), cluster=(4, 4), cta_group=2)
    grid = launch_grid(config, problem, 32)
    assert grid == (8, 4, 1)
    seen = everything(recorder.run(grid, (512, 4096, 1, 640)))
    assert {row[:3] for row in seen} == set(whole((32, 4, 1)))
    assert sorted(row[3] for row in seen) == sorted([*range(128)] * 2)
    assert {row[4] for row in seen} == {5}


@pytest.mark.parametrize("scheduler", ["static", "clc"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_configuration_gets_the_tiles_of_its_grid(scheduler, swapped):
    config = MatmulConfig(
        cta_group=1,
        mma_shape=(64, 48, 16),
        AB_swapped=swapped,
        scheduler=scheduler,
        k_group_size=2,
        block_swizzle_size=2,
    )
    problem = Problem(193, 95, 450, batch=2)

    def make(roles, cluster, sizes, arrays):
        return TileScheduler(config, roles, cluster, m=sizes[0], n=sizes[1], k=sizes[3], batch=sizes[2])

    recorder = Recorder(make, (*PLACE, "k_tiles"))
    seen = everything(recorder.run(launch_grid(config, problem, 5), (193, 95, 2, 450), sms=5))
    assert [row[:3] for row in seen] == whole(config.grid(problem))
    assert config.grid(problem) == ((2, 5, 2) if swapped else (4, 2, 2))
    assert {row[3] for row in seen} == {4}


def traced(body):
    """Trace a kernel with a static schedule; gives the error."""

    @kernel(target="sm_100a")
    def wrong(out: Array[s32]):
        roles = warp_roles(load=1, mma=1)
        body(roles, StaticScheduler((2, 2, 1), cluster=Cluster(), k_tiles=1), out)

    with pytest.raises(TraceError) as caught:
        wrong.bind(np.zeros(4, np.int32), grid=(1, 1, 1), block=(64, 1, 1))
    assert caught.value.loc is not None
    assert caught.value.loc.file == __file__
    return caught.value


def test_tiles_are_walked_in_a_role():
    def body(roles, tiles, out):
        for tile in tiles:
            out[0] = tile.m

    error = traced(body)
    assert error.code == "BAD_TILE_LOOP"
    assert "no role is open" in error.what


def test_tiles_are_walked_once_in_each_role():
    def body(roles, tiles, out):
        with roles.load:
            for tile in tiles:
                out[0] = tile.m
        with roles.mma:
            for tile in tiles:
                out[1] = tile.m
            for tile in tiles:
                out[2] = tile.m

    error = traced(body)
    assert error.code == "BAD_TILE_LOOP"
    assert "role `mma` has already iterated over them" in error.what


def test_a_loop_over_tiles_has_no_early_exit():
    def body(roles, tiles, out):
        with roles.load:
            for _ in tiles:
                break

    assert traced(body).code == "LEFT_LOOP_EARLY"


def test_a_tile_lives_in_its_loop():
    def body(roles, tiles, out):
        with roles.load:
            for tile in tiles:
                kept = tile
            out[0] = kept.m

    assert traced(body).code == "VALUE_OUT_OF_SCOPE"
