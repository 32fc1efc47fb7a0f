"""Split-K against NumPy: every accumulator layout, uneven splits, the same sum every time, buffers used again."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from tests.assembly import assemble_ok
from tests.kernels.plain_problems import arrays, cases, product, run, same, waits_before_it_reads

from warploom.kernels.sm100.split_k import split_k
from warploom.structured.config import MatmulConfig, Problem, violations
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.split_k.workspace import split_k_workspace

LAYOUTS = [(1, 64), (1, 128), (2, 128), (2, 256)]
SPLITS = [(9, 4), (5, 4), (7, 7), (1, 1), (8, 3), (13, 5), (3, 2), (6, 6)]
"""K tiles and splits."""


def buffers(config, problem):
    """A workspace with poison, and locks."""
    needed = split_k_workspace(config, problem)
    return np.full((needed.tiles, needed.rows * needed.columns), np.nan, np.float32), np.zeros(needed.tiles, np.int32)


def bound_to(made, workspace, locks, **options):
    problem = made.problem
    return made.bind(split_k, made.result, workspace, locks, problem.m, problem.n, problem.k, problem.batch, **options)


def check(config, m, n, k, schedule=("eager", 0), sms=32):
    made = arrays(config, m, n, k, seed=None)
    workspace, locks = buffers(config, made.problem)
    run(bound_to(made, workspace, locks, sms=sms), schedule, sms)
    assert same(made.d, made.sums)
    assert not locks.any()


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("group", "rows"), LAYOUTS)
def test_every_layout_is_reduced(group, rows, swapped):
    config = MatmulConfig(
        cta_group=group, mma_shape=(rows, 48, 16), AB_swapped=swapped, num_split_k=3, c_type="f16", a_type="f16"
    )
    m, n = (56, rows + 1) if swapped else (rows + 1, 56)
    check(config, m, n, 7 * config.BK - 3)


@pytest.mark.parametrize(("tiles", "splits"), SPLITS)
def test_splits_may_be_uneven_and_none_is_empty(tiles, splits):
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=splits)
    check(config, 65, 33, tiles * config.BK, ("lazy", 0))


@pytest.mark.parametrize("case", cases(7, seed=2, num_split_k=3, gemm_kind="gemm"), ids=str)
def test_any_configuration_is_reduced(case):
    check(case.config, case.m, case.n, case.k, case.schedule, case.sms)


def test_splits_may_arrive_in_any_order():
    check(MatmulConfig(cta_group=1, mma_shape=(64, 16, 16), num_split_k=3), 60, 16, 3 * 64, ("reverse", 0), sms=1)


@pytest.mark.parametrize("schedule", [("eager", 0), ("lazy", 0), ("random", 3), ("random", 4)], ids=str)
def test_splits_are_added_in_order_under_every_schedule(schedule):
    config = MatmulConfig(cta_group=2, mma_shape=(128, 32, 16), num_split_k=4, c_type="f32")
    made = arrays(config, 130, 40, 9 * 64, seed=None)
    ends = [9 * split // 4 * 64 for split in range(5)]
    parts = [slice(*each) for each in itertools.pairwise(ends)]
    for part, scale in zip(parts, (1, 1 << 20, 3, -(1 << 12)), strict=True):
        made.a[:, part] *= scale  # each part's sum is exact, but not the sum of the parts
    run(bound_to(made, *buffers(config, made.problem)), schedule, sms=32)  # all splits at once
    first, *others = (product(made.a[:, part], made.b[:, part]) for part in parts)
    in_order = functools.reduce(np.add, others, first)
    assert same(made.d, in_order)
    assert not same(made.d, functools.reduce(np.add, reversed(others)) + first)


def test_consecutive_launches_reuse_the_buffers():
    config = MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), num_split_k=4, scheduler="static")
    made = arrays(config, 200, 72, 9 * 64)
    workspace, locks = buffers(config, made.problem)
    for _ in range(2):
        made.d[...] = np.nan
        run(bound_to(made, workspace, locks))
        assert same(made.d, made.sums)
        assert not locks.any()


def test_only_the_final_split_has_an_epilogue():
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=3)
    made = arrays(config, 64, 32, 5 * 64)
    run(bound_to(made, *buffers(config, made.problem), epilogue=Epilogue(activation="squared_relu")))
    assert same(made.d, np.maximum(made.sums, 0) ** 2)


def test_more_splits_than_tiles_are_refused():
    config = MatmulConfig(num_split_k=5)
    assert any("each of 5 splits" in rejected for rejected in violations(config, Problem(256, 256, 4 * 64)))


def test_the_workspace_has_a_tile_for_every_cta_of_a_swapped_grid():
    config = MatmulConfig(mma_shape=(256, 256, 16), cluster_shape=(4, 4, 1), AB_swapped=True, num_split_k=2)
    grid = config.grid(Problem(512, 4096, 1024))
    assert split_k_workspace(config, Problem(512, 4096, 1024)).tiles == grid[0] * grid[1] == 128


def test_every_role_that_reads_waits_for_the_previous_grid():
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=2)
    made = arrays(config, 64, 32, 128)
    waits_before_it_reads(bound_to(made, *buffers(config, made.problem)), ("load", "epilogue"))


@pytest.mark.parametrize(("group", "rows"), LAYOUTS)
def test_it_assembles_without_a_spill(group, rows):
    config = MatmulConfig(cta_group=group, mma_shape=(rows, 256, 16), AB_swapped=rows == 128, num_split_k=2)
    made = arrays(config, 64, 64, 128)
    assemble_ok(bound_to(made, *buffers(config, made.problem)))
