"""Grouped matmul against NumPy, bit for bit: groups of any sizes, experts in any order, tokens along M or along N."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.kernels.plain_problems import SCHEDULES, arrays, cases, product, run, same, waits_before_it_reads

from warploom.kernels.sm100.grouped import grouped, grouped_grid
from warploom.kernels.sm100.grouped_decode import decode_config
from warploom.structured.config import MatmulConfig, violations
from warploom.structured.epilogue.epilogue import Epilogue, Operand

LAYOUTS = [(1, 64), (1, 128), (2, 128), (2, 256)]
SPARE = 5
"""Rows after the last group, which must not be written."""


def prepared(config, rows, n, k, experts=None):
    """Tokens of all groups, the weights of each expert, and where the groups end."""
    total = sum(rows) + SPARE
    count = len(rows) if experts is None else max(*experts, 0) + 1
    made = arrays(config, total, n, k, shapes=((total, k), (count, n, k)), seed=None)
    return made, np.cumsum(rows, dtype=np.int32)


def bound_to(made, ends, n, k, experts=None, scales=None, sms=4, **options):
    grid = grouped_grid(made.config, made.d.shape[0], len(ends), n, sms)
    ids = None if experts is None else np.array(experts, np.int32)
    factors = None if scales is None else np.array(scales, np.float32)
    return made.bind(grouped, made.result, made.d, ends, ids, factors, n, k, grid=grid, **options)


def expected(made, rows, experts=None, scales=None, after=lambda sums, start: sums):
    """Group by group; poison where no group is."""
    found, start = np.full(made.d.shape, np.nan, np.float32), 0
    for group, count in enumerate(rows):
        expert = group if experts is None else experts[group]
        if expert >= 0:
            sums = product(made.a[start : start + count], made.b[expert])
            factor = np.float32(1 if scales is None else scales[expert])
            found[start : start + count] = after(sums * factor, start)
        start += count
    return found


def check(config, rows, n, k, *, experts=None, scales=None, schedule=("eager", 0), sms=4):
    made, ends = prepared(config, rows, n, k, experts)
    bound = bound_to(made, ends, n, k, experts, scales, sms)
    run(bound, schedule, sms)
    assert same(made.d, expected(made, rows, experts, scales))
    return bound


@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
@pytest.mark.parametrize(("group", "rows"), LAYOUTS)
def test_every_layout_and_orientation(group, rows, swapped):
    config = MatmulConfig(gemm_kind="gmm", cta_group=group, mma_shape=(rows, 48, 16), AB_swapped=swapped)
    tile = 48 if swapped else rows
    assemble_ok(check(config, (0, 1, tile - 1, 0, tile, 2 * tile + 1, 3, 0), 100, 2 * config.BK - 3))


GROUPS = [(0, 0, 0), (1,), (0, 300, 0, 1), (7, 7, 7, 7, 7, 7, 7, 7), (131, 0, 2), (64, 64), (63, 65, 1)]


@pytest.mark.parametrize("case", cases(9, seed=5, gemm_kind="gmm"), ids=str)
def test_any_configuration(case):
    rows = GROUPS[(case.m + case.n) % len(GROUPS)]
    n = case.m if case.config.AB_swapped else case.n
    check(case.config, rows, n, case.k, schedule=case.schedule, sms=case.sms)


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_experts_may_be_shared_switched_off_and_scaled(number):
    schedule, swapped = SCHEDULES[number], number % 2 == 1
    config = MatmulConfig(gemm_kind="gmm", cta_group=2, mma_shape=(128, 32, 16), AB_swapped=swapped)
    experts, scales = (2, 0, -1, 2, 1, -1), (0.5, -1.0, 2.0, 100.0)
    check(config, (40, 3, 9, 129, 0, 1), 72, 64, experts=experts, scales=scales, schedule=schedule)


@settings(max_examples=8)
@given(st.lists(st.integers(0, 40), min_size=6, max_size=6))
@pytest.mark.parametrize("swapped", [False, True], ids=["", "swapped"])
def test_groups_of_any_sizes(swapped, rows):
    config = MatmulConfig(gemm_kind="gmm", cta_group=1, mma_shape=(64, 16, 16), AB_swapped=swapped)
    check(config, rows, 24, 16)


FEW = [
    ((1, 0, 2, 1), 136, "bf16"),
    ((8, 8, 3), 129, "f16"),
    ((17, 30, 0, 1), 64, "e4m3"),
    ((50, 47), 200, "e5m2"),
    ((9, 1, 0), 65, "bf16"),
]


@pytest.mark.parametrize(("rows", "n", "dtype"), FEW)
def test_a_few_rows_go_along_n_of_the_mma(rows, n, dtype):
    config = decode_config(max(rows), n, 512, len(rows), a_type=dtype)
    assert (config.AB_swapped, config.cta_group, violations(config)) == (True, 1, [])
    assert min(-(-max(rows) // 8) * 8, 48) == config.MMA_N
    check(config, rows, n, 512)


def test_a_decoding_configuration_follows_the_problem():
    many, few = decode_config(3, 4096, 4096, 64), decode_config(1000, 256, 64 * 7, 2)
    assert (many.mma_shape, many.k_group_size) == ((128, 8, 16), 4)
    assert (few.mma_shape, few.k_group_size) == ((64, 48, 16), 1)
    assert decode_config(3, 4096, 4096, a_type="e4m3", c_type="e4m3").MMA_N == 16
    assert decode_config(3, 4095, 4096, k_group_size=2).replace().k_group_size == 2
    assert not decode_config(3, 4095, 4096).use_tma_store


def test_an_epilogue_sees_rows_of_all_groups():
    config = MatmulConfig(gemm_kind="gmm", cta_group=1, mma_shape=(64, 32, 16), c_type="f32")
    rows, n, k = (5, 70, 0, 3), 40, 64
    made, ends = prepared(config, rows, n, k)
    bias = np.random.default_rng().integers(-9, 9, made.d.shape[0]).astype(np.float32)
    epilogue = Epilogue(function=lambda value, at, bias: value + bias, operands=(("bias", Operand("column")),))
    run(bound_to(made, ends, n, k, epilogue=epilogue, operands={"bias": bias}))
    assert same(made.d, expected(made, rows, after=lambda sums, start: sums + bias[start : start + len(sums), None]))


def test_a_grid_has_room_for_all_tiles_and_no_more_than_the_gpu():
    config = MatmulConfig(gemm_kind="gmm", cta_group=2, mma_shape=(256, 128, 16))
    assert grouped_grid(config, 0, 8, 128, 148) == (2, 1, 1)
    assert grouped_grid(config, 3, 8, 128, 148) == (6, 1, 1)
    assert grouped_grid(config, 1 << 20, 8, 4096, 148) == (148, 1, 1)


def test_every_role_that_reads_waits_for_the_previous_grid():
    config = MatmulConfig(gemm_kind="gmm", cta_group=1, mma_shape=(64, 32, 16))
    made, ends = prepared(config, (3, 4), 32, 64)
    waits_before_it_reads(bound_to(made, ends, 32, 64), ("load", "epilogue", "scheduler"))
