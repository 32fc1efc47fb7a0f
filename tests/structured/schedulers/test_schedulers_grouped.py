"""Grouped schedules: the tiles of groups of any sizes, in order, whether every role finds them or one warp does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.structured.scheduling import SCHEDULES, Recorder, counts

from warploom.structured import GroupedScheduler
from warploom.structured.schedulers.raster import linear_raster

FIELDS = ("m_abs", "n_abs", "group", "expert", "m_start", "m_end", "scale", "k_start", "k_tiles")
SEVEN = (("epilogue", 4), ("load", 1), ("mma", 1), ("scheduler", 1))
TWELVE = (("epilogue", 4), ("load", 1), ("mma", 1), ("sfb_load", 1), ("sfb_store", 4), ("scheduler", 1))
SHAPE, K_TILES = (128, 48), 11
AWKWARD = (
    (0,), (1,), (0, 0, 0), (128,), (127, 1, 129), (0, 5, 0, 0, 300, 0), (64, 0, 64), (1, 1, 1, 1, 1), (0, 257),
)  # fmt: skip
"""Rows of the groups."""


def grouped(published, *, with_experts=False, **options):
    def make(roles, cluster, sizes, arrays):
        ends, experts, scales = arrays
        given = options | ({"experts": experts, "scales": scales} if with_experts else {})
        given |= {"roles": roles} if published else {}
        return GroupedScheduler(ends, cluster=cluster, columns=sizes[1], tile_shape=SHAPE, k_tiles=sizes[3], **given)

    return make


def expected(rows, columns, experts=None, scales=None, swizzle_size=0):
    """All tiles, in order, by brute force."""
    found, start = [], 0
    for group, count in enumerate(rows):
        expert = group if experts is None else int(experts[group])
        grid = (-(-count // SHAPE[0]), -(-columns // SHAPE[1]))
        for index in range(grid[0] * grid[1] if expert >= 0 else 0):
            m, n = linear_raster(index, grid, swizzle_size)
            scale = np.float32(1 if scales is None else scales[expert])
            place = (start + m * SHAPE[0], n * SHAPE[1], group, expert, start, start + count)
            found.append((*place, int(scale.view(np.int32)), 0, K_TILES))
        start += count
    return found


def check(recorder, rows, columns, clusters, want, arrays=(), **options):
    ends = np.cumsum(rows, dtype=np.int32)
    experts, scales = arrays or (np.zeros(1, np.int32), np.zeros(1, np.float32))
    x, y = recorder.cluster
    seen = recorder.run((clusters * x, y, 1), (0, columns, 0, K_TILES), (ends, experts, scales), **options)
    for cta, found in seen.items():
        assert found == want[cta // x % clusters :: clusters], f"CTA {cta}"
    assert len(seen) == clusters * x * y


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("rows", AWKWARD)
def test_groups_of_awkward_sizes(published, rows):
    columns, clusters = (1, 1) if len(rows) == 1 else (97, 3)
    check(Recorder(grouped(published), FIELDS, SEVEN), rows, columns, clusters, expected(rows, columns))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_published_tiles_reach_all_roles_under_every_schedule(schedule, seed):
    rows, columns = (130, 0, 1, 0, 257, 128), 100
    for slots, warps, cluster in ((1, SEVEN, (1, 1)), (2, TWELVE, (1, 1)), (3, SEVEN, (2, 1))):
        recorder = Recorder(grouped(True, num_slots=slots), FIELDS, warps, cluster, cluster[0])
        check(recorder, rows, columns, 2, expected(rows, columns), schedule=schedule, seed=seed)


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("swizzle_size", [0, 2])
def test_experts_scales_and_tile_swizzle(published, swizzle_size):
    """A group without an expert is disabled; the others have their expert's scale."""
    rng = np.random.default_rng()
    rows, columns = (400, 10, 300, 129, 5), 200
    experts, scales = np.array([3, -1, 0, 3, 1], np.int32), rng.normal(size=4).astype(np.float32)
    recorder = Recorder(grouped(published, with_experts=True, swizzle_size=swizzle_size), FIELDS, SEVEN)
    want = expected(rows, columns, experts, scales, swizzle_size)
    check(recorder, rows, columns, 4, want, (experts, scales), schedule="random", seed=int(rng.integers(1 << 20)))


@settings(max_examples=12)
@given(
    rows=st.lists(st.integers(0, 300), min_size=1, max_size=9),
    columns=st.integers(1, 150),
    clusters=st.integers(1, 5),
    published=st.booleans(),
)
def test_any_groups(rows, columns, clusters, published):
    check(Recorder(grouped(published), FIELDS, SEVEN), rows, columns, clusters, expected(rows, columns))


@pytest.mark.parametrize(("warps", "empty"), [(SEVEN, 6), (TWELVE, 11)])
def test_counts_are_the_warps_that_work(warps, empty):
    text = Recorder(grouped(True), FIELDS, warps).text()
    assert counts(text) == [1, 1, empty, empty]


def test_roles_that_search_for_their_tiles_need_no_barrier():
    assert counts(Recorder(grouped(False), FIELDS, SEVEN).text()) == []


@pytest.mark.parametrize("published", [False, True])
def test_arrays_of_a_previous_grid_are_read_after_a_wait(published):
    text = Recorder(grouped(published, dependent=True), FIELDS, SEVEN).text()
    assert text.count("griddepcontrol.wait") == (1 if published else 3)
    assert text.index("griddepcontrol.wait") < text.index("ld.global")
