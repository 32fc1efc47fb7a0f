"""Splits of one tile are added in order, through a workspace and a lock, in any order of arrival."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests.structured.writing import (
    ONE_OF_EACH,
    SCHEDULES,
    THREADS,
    accumulator,
    aligned,
    assemble,
    c_map,
    config_of,
    tiles_of,
    user,
    writing,
)
from tests.structured.writing import run as writing_run

from warploom import launch
from warploom.diagnostics import TraceError
from warploom.structured import Epilogue
from warploom.structured.split_k.workspace import split_range
from warploom.trace import cta_index, s32


def work_of(tile, total, splits, columns):
    """A scheduler's tile: which k-groups, and which place in the workspace."""
    split = cta_index("z").to(s32)
    start, count = split_range(total, splits, split)
    return SimpleNamespace(
        coord=(*tile, 0),
        k_start=start,
        k_tiles=count,
        is_first=split == 0,
        is_final=split == splits - 1,
        number=tile[0] * columns + tile[1],
    )


def run(config, m, n, splits, *, total=None, schedule="eager", epilogue=None, partials=None, runs=1):
    """Write all tiles by `splits` CTAs, each with sums of its own; gives C and those sums."""
    total = total or splits
    tiles = tiles_of(config, m, n)

    def body(writer, stage, tile, shape, operands):
        work = work_of(tile, total, splits, tiles[1])
        scheduler = SimpleNamespace(locks=operands["locks"])
        writer.write_splitk(stage, scheduler, operands["workspace"], work, shape)

    sums = np.stack([accumulator(config, m, n, -3, 4) for _ in range(splits)]) if partials is None else partials
    d, _ = aligned((m, n), config.c_type)
    count = tiles[0] * tiles[1]
    workspace = np.full((count, config.BM * config.MMA_N), np.nan, np.float32)
    locks = np.zeros(count, np.int32)
    options = {} if epilogue is None else {"epilogue": epilogue}
    bound = writing.bind(
        sums,
        c_map(config, d),
        d,
        {"workspace": workspace, "locks": locks},
        m,
        n,
        grid=(1, 1, splits),
        block=(THREADS, 1, 1),
        config=config,
        tiles=tiles,
        body=body,
        options=lambda operands: options,
    )
    for _ in range(runs):
        launch(bound, schedule=schedule)
        assert not locks.any(), "the locks are left as they were found"
    return d, user(config, sums, m, n), bound


@pytest.mark.parametrize("swapped", [False, True], ids=["plain", "swapped"])
@pytest.mark.parametrize("layout", ONE_OF_EACH, ids=str)
def test_splits_are_reduced_in_every_layout(layout, swapped):
    config = config_of(layout, swapped=swapped)
    d, sums, _ = run(config, 40, 56, 3, total=7)
    np.testing.assert_array_equal(d.astype(np.float32), sums.sum(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_order_of_the_splits_decides_the_sum(schedule):
    """Sums that depend on their order: ((p0 + p1) + p2) + p3, always."""
    config = config_of((64, 16, 1), c_type="f32")
    m, n = 50, 16
    shape = accumulator(config, m, n).shape
    partials = (np.random.default_rng().standard_normal((4, *shape)) * 10 ** np.arange(4)[:, None, None]).astype(
        np.float32
    )
    d, sums, _ = run(config, m, n, 4, total=9, schedule=schedule, partials=partials)
    expected = ((sums[0] + sums[1]) + sums[2]) + sums[3]
    np.testing.assert_array_equal(d, expected)
    assert (expected != sums[::-1].cumsum(0)[-1]).any()


def test_one_split_waits_for_no_other():
    d, sums, _ = run(config_of((64, 16, 1)), 20, 24, 1)
    np.testing.assert_array_equal(d.astype(np.float32), sums[0])


def test_consecutive_launches_reuse_the_workspace():
    d, sums, _ = run(config_of((128, 48, 2)), 70, 50, 3, runs=2)
    np.testing.assert_array_equal(d.astype(np.float32), sums.sum(0))


def test_only_the_final_split_sees_the_epilogue():
    epilogue = Epilogue(function=lambda acc, at: acc * acc + at.column.to("f32"))
    for register in (True, False):
        config = config_of((64, 16, 1), c_type="f32", register_based_epilogue=register)
        d, sums, bound = run(config, 30, 20, 3, epilogue=epilogue)
        np.testing.assert_array_equal(d, sums.sum(0) ** 2 + np.arange(20))
        assemble(bound)


def test_a_workspace_of_another_type_and_shape_is_refused():
    config = config_of((64, 16, 1))

    def body(writer, stage, tile, shape, operands):
        work = work_of(tile, 1, 1, 1)
        writer.write_splitk(stage, None, operands["workspace"], work, shape, locks=operands["workspace"])

    from tests.structured.writing import run as run_plain

    with pytest.raises(TraceError, match=r"workspace \.f16") as found:
        run_plain(config, 16, 16, body=body, operands={"workspace": np.zeros((1, 64, 16), np.float16)})
    assert "two axes" in str(found.value)


def test_locks_are_needed():
    config = config_of(ONE_OF_EACH[0])

    def body(writer, stage, tile, shape, operands):
        work = work_of(tile, 1, 1, 1)
        writer.write_splitk(stage, SimpleNamespace(locks=None), operands["workspace"], work, shape)  # HERE

    with pytest.raises(TraceError, match="split-K needs `locks`"):
        writing_run(config, 16, 16, body=body, tiles=(1, 1), operands={"workspace": np.zeros((1, 4), np.float32)})
