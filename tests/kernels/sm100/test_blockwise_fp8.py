"""Blockwise FP8: each K tile promoted with its own factors, against NumPy, to the bit."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from tests.assembly import assemble_ok, sass_of
from tests.kernels.scaled_problems import blockwise

import warploom as wl
from warploom.ptx.syntax.printer import print_module
from warploom.structured.config import BlockwiseFP8MatmulConfig, violations
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.tensor_cores.blockwise import scale_blocks

SCHEDULES = [("eager", 0), ("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2)]
K = 32
"""Of one MMA."""


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(
    ("cta_group", "shape", "cluster"),
    [(1, (128, 64), (1, 1, 1)), (2, (256, 96), (2, 1, 1)), (2, (128, 192), (2, 1, 1)), (1, (64, 40), (2, 2, 1))],
)
def test_every_layout_under_every_schedule(cta_group, shape, cluster, schedule, seed):
    blockwise(131, 100, 300, cta_group=cta_group, mma_shape=(*shape, K), cluster_shape=cluster).check(schedule, seed)


@pytest.mark.parametrize("columns", [152, 168, 176, 184, 200, 208, 216, 224, 232, 240, 248])
def test_a_tile_may_span_three_blocks_of_scales(columns):
    tile = next(tile for tile in range(16) if scale_blocks(tile * columns, columns, 128) == 3)
    blockwise(17, (tile + 1) * columns - 5, 100, mma_shape=(64, columns, K), c_type="bf16").check()


@pytest.mark.parametrize(("granularity", "columns"), [(32, 128), (64, 80), (96, 256), (256, 96), (8, 112)])
def test_blocks_of_other_widths(granularity, columns):
    blockwise(65, 300, 130, mma_shape=(64, columns, K), c_type="bf16", scale_granularity=granularity).check()


def test_touched_blocks_by_counting():
    for start in range(0, 300, 8):
        for width in (8, 64, 120, 256):
            expected = len({column // 128 for column in range(start, start + width)})
            assert scale_blocks(start, width, 128) == expected


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 257, 127), (128, 64, 128), (129, 65, 129), (127, 63, 800), (257, 8, 16)],
)
@pytest.mark.parametrize("cta_group", [1, 2])
def test_awkward_sizes(m, n, k, cta_group):
    blockwise(m, n, k, cta_group=cta_group, mma_shape=(128 * cta_group, 64, K), c_type="bf16").check()


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("accumulators", [1, 2, 4])
def test_stages(stages, accumulators):
    fields = {"num_pipeline_stages": stages, "num_accum_pipeline_stages": accumulators}
    problem = blockwise(200, 120, 800, cta_group=2, mma_shape=(256, 64, K), **fields)
    problem.check("random", stages)


@pytest.mark.parametrize("store", [True, False])
def test_types_of_operands_and_scales(store):
    fields = {"a_type": "e5m2", "b_type": "e4m3", "scale_type": "bf16", "use_tma_store": store}
    blockwise(100, 75, 260, mma_shape=(64, 128, K), **fields).check()


def test_larger_clusters_and_other_schedulers():
    blockwise(200, 250, 260, mma_shape=(64, 64, K), cluster_shape=(2, 4, 1), c_type="bf16").check("random", 3)
    fields = {"cta_group": 2, "mma_shape": (256, 64, K), "num_clc_pipeline_stages": 0}
    blockwise(500, 120, 260, cluster_shape=(4, 2, 1), **fields).check("reverse")
    blockwise(600, 120, 260, scheduler="static", **fields).check("random", 6)


def test_batches():
    blockwise(70, 90, 300, batch=(3,), mma_shape=(64, 64, K)).check("lazy")


def test_epilogue():
    ramp = Epilogue(alpha=0.5, activation="relu", function=lambda value, at: value + at.column.to("f32"))
    problem = blockwise(90, 130, 200, mma_shape=(64, 64, K), epilogue=ramp)
    problem.check(then=lambda exact: np.maximum(0.5 * exact, 0) + np.arange(130))


def test_scales_are_applied_with_full_precision():
    """Scales that are not powers of two, against the same roundings step by step: one for each fused addition."""
    problem = blockwise(64, 96, 384, mma_shape=(64, 96, K))
    problem.a_scales = problem.rng.random(problem.a_scales.shape).astype(np.float32)
    problem.b_scales = problem.rng.random(problem.b_scales.shape).astype(np.float32)
    total = np.zeros((64, 96), np.float32)
    for tile in range(3):
        part = np.s_[:, 128 * tile : 128 * tile + 128]
        product = problem.a[part].astype(float) @ problem.b[part].T
        factor = problem.a_scales[tile][:, None] * problem.b_scales[:, tile].repeat(128)[None, :96]
        total = (total.astype(float) + product * factor.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(problem.run("random", 5), total)


COUNTS = [
    ((1, 1), 1, 5), ((2, 1), 1, 10), ((2, 1), 2, 9), ((4, 2), 1, 37), ((4, 4), 1, 71), ((4, 4), 2, 69), ((8, 2), 1, 73),
    ((8, 2), 2, 69), ((2, 4), 2, 36),
]  # fmt: skip


@pytest.mark.parametrize(("cluster", "cta_group", "count"), COUNTS)
def test_arrivals_that_free_an_input_stage(cluster, cta_group, count):
    problem = blockwise(
        10, 10, 10, cta_group=cta_group, mma_shape=(128 * cta_group, 64, K), cluster_shape=(*cluster, 1)
    )
    text = print_module(problem.launch.program)
    (place,) = re.findall(r"barrier inputs\.empty shared_memory\+(\d+)", text)
    (register,) = re.findall(rf"mov\.u32 (%r\d+), shared_memory\+{place};", text)
    counts = set(re.findall(rf"mbarrier\.init\S* \[{register}[+\d]*\], (\d+);", text))
    assert counts == {str(count)}


def test_groups_of_k_tiles_are_refused():
    found = violations(BlockwiseFP8MatmulConfig(k_group_size=2))
    assert any("k_group_size=2" in each and "accumulator" in each for each in found)


def test_tiles_that_leave_no_registers_are_summed_in_tmem():
    """The widest of the others is assembled below."""
    config = BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(128, 208, K))
    wider = dataclasses.replace(config, mma_shape=(128, 216, K))
    assert not violations(config)
    assert not violations(wider)
    assert (config.accumulates_in_tmem, wider.accumulates_in_tmem) == (False, True)


ASSEMBLED = [
    (1, (128, 128), (1, 1, 1), "bf16"),
    (2, (256, 128), (4, 2, 1), "f32"),
    (2, (128, 256), (2, 1, 1), "bf16"),
    (1, (64, 248), (1, 2, 1), "f32"),
    (2, (256, 208), (2, 1, 1), "bf16"),
]


@pytest.mark.parametrize(("cta_group", "shape", "cluster", "c_type"), ASSEMBLED)
def test_assembles_without_a_spill(cta_group, shape, cluster, c_type):
    fields = {"cta_group": cta_group, "mma_shape": (*shape, K), "cluster_shape": cluster, "c_type": c_type}
    problem = blockwise(300, 500, 300, **fields)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(problem.launch).kernels)
    sass = sass_of(problem.launch)
    for name in ("UTCQMMA", "LDTM", "UTMALDG", "UTMASTG", "FFMA"):
        assert sass.count(name)
    assert not sass.count("STL")


LARGE = {
    "pairs, 256 x 256": {"cta_group": 2, "mma_shape": (256, 256, K)},
    "128 x 256": {"cta_group": 1, "mma_shape": (128, 256, K)},
    "pairs, swapped": {"cta_group": 2, "mma_shape": (256, 64, K), "AB_swapped": True},
    "pairs, swapped, 256 x 256": {"cta_group": 2, "mma_shape": (256, 256, K), "AB_swapped": True},
    "folded, swapped": {"cta_group": 2, "mma_shape": (128, 96, K), "AB_swapped": True},
    "swapped, few rows": {"cta_group": 1, "mma_shape": (64, 8, K), "AB_swapped": True},
    "swapped, cluster": {"cta_group": 1, "mma_shape": (128, 40, K), "AB_swapped": True, "cluster_shape": (2, 2, 1)},
}


@pytest.mark.parametrize("name", LARGE)
def test_large_and_swapped_tiles(name):
    problem = blockwise(67, 136, 300, c_type="bf16", **LARGE[name])
    problem.check(*SCHEDULES[list(LARGE).index(name) % len(SCHEDULES)])
    assert problem.config.accumulates_in_tmem == ("256" in name)
    assert ("tcgen05.st" in print_module(problem.launch.program)) == ("256" in name)
    assemble_ok(problem.launch)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("fields", [{"mma_shape": (64, 8, K), "AB_swapped": True}, {"mma_shape": (128, 216, K)}])
def test_swapped_tiles_and_sums_in_tmem_under_every_schedule(fields, schedule, seed):
    blockwise(17, 72, 270, c_type="bf16", **fields).check(schedule, seed)


@pytest.mark.parametrize("fields", [{"mma_shape": (64, 8, K), "AB_swapped": True}, {"mma_shape": (128, 216, K)}])
def test_swapped_tiles_and_sums_in_tmem_are_proved(fields):
    report = wl.check(blockwise(9, 40, 256, c_type="bf16", **fields).launch, profile="strict")
    assert report.verdict == "PROVED", str(report)


@pytest.mark.parametrize(("granularity", "batch"), [(8, ()), (24, (3,)), (96, ()), (128, (2,))])
def test_swapped_tiles_with_blocks_of_other_heights(granularity, batch):
    fields = {"mma_shape": (128, 16, K), "AB_swapped": True, "scale_granularity": granularity}
    blockwise(17, 300, 270, batch=batch, c_type="f32", **fields).check("random", 3)


def test_sums_in_tmem_leave_room_for_one_accumulator():
    config = BlockwiseFP8MatmulConfig(cta_group=2, mma_shape=(256, 256, K))
    assert (config.num_accum_pipeline_stages, config.sums_column, config.columns_used(1)) == (1, 256, 512)
    wrong = violations(config.replace(num_accum_pipeline_stages=2))
    assert any("overlap" in line for line in wrong)
