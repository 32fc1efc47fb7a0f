"""Block-scaled matmul: MXFP8, MXFP4 and NVFP4 against NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.assembly import assemble_ok, sass_of
from tests.kernels.scaled_problems import scaled

from warploom.structured.config import BlockScaledMatmulConfig, Problem, violations
from warploom.structured.epilogue.epilogue import Epilogue
from warploom.structured.tensor_cores.block_scaled import scale_layouts

SCHEDULES = [("lazy", 0), ("reverse", 0), ("random", 1), ("random", 2)]
KINDS = {
    "mxfp8": ({"a_type": "e4m3"}, 32),
    "mxfp4": ({"a_type": "e2m1", "scaling_kind": "mxf4"}, 64),
    "nvfp4": ({"a_type": "e2m1", "scaling_kind": "mxf4nvf4"}, 64),
}
WIDTHS = (64, 128, 192, 256)


def problem(kind, cta_group, columns, m, n, k, **more):
    fields, depth = KINDS[kind]
    return scaled(m, n, k, cta_group=cta_group, mma_shape=(128 * cta_group, columns, depth), **{**fields, **more})


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("cta_group", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_and_width(kind, cta_group, columns):
    """Two tiles of columns, so that one of 64 or 192 begins in the middle of a chunk of factors; none is whole."""
    problem(kind, cta_group, columns, 130, 2 * columns - 7, 352, c_type="bf16", alpha=0.5).check()


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize("cta_group", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_schedules(kind, cta_group, schedule, seed):
    problem(kind, cta_group, 64, 140, 150, 544).check(schedule, seed)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 32), (128, 128, 128), (129, 127, 160), (7, 300, 1024), (300, 3, 96)])
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_sizes(kind, m, n, k):
    problem(kind, 1, 128, m, n, k, c_type="f16").check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [1, 2, None])
def test_stages(kind, stages):
    problem(kind, 2, 192, 200, 200, 1120, num_pipeline_stages=stages, num_accum_pipeline_stages=1).check("random", 4)


@pytest.mark.parametrize(
    ("kind", "cta_group", "cluster"), [("mxfp8", 1, (2, 2, 1)), ("nvfp4", 2, (4, 2, 1)), ("mxfp4", 2, (2, 2, 1))]
)
def test_clusters_share_operands_but_not_scales(kind, cta_group, cluster):
    problem(kind, cta_group, 64, 500, 250, 320, cluster_shape=cluster, num_clc_pipeline_stages=1).check("random", 5)


def test_8_bit_operands_of_different_types_and_majors():
    problem("mxfp8", 1, 64, 144, 80, 224, a_type="e5m2", b_type="e4m3").check()
    problem("mxfp8", 2, 128, 144, 80, 224, a_major="mn", b_major="mn").check("reverse")


def test_mxfp4_with_blocks_of_sixteen():
    problem("nvfp4", 1, 64, 100, 100, 320, scale_type="ue8m0", vec_sf_size=16).check()
    problem("nvfp4", 2, 64, 100, 100, 320, scale_type="ue8m0", vec_sf_size=32).check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_transpose(kind):
    problem(kind, 2, 64, 70, 150, 320, AB_swapped=True, c_type="bf16").check("lazy")


def test_a_static_scheduler():
    fields = {"scheduler": "static", "num_clc_pipeline_stages": 0}
    problem("nvfp4", 2, 64, 520, 200, 320, **fields).check("random", 7)


def test_batches():
    problem("mxfp8", 1, 64, 140, 70, 192, batch=(3,)).check()


def test_rows_that_tma_cannot_store():
    problem("nvfp4", 2, 64, 130, 67, 320, use_tma_store=False).check()


@pytest.mark.parametrize("register_based", [True, False])
def test_epilogue(register_based):
    ramp = Epilogue(activation="relu", function=lambda value, at: value * 2.0 + at.row.to("f32"))
    given = problem("mxfp8", 1, 64, 130, 90, 160, alpha=0.25, epilogue=ramp, register_based_epilogue=register_based)
    given.check(then=lambda exact: 2 * np.maximum(exact, 0) + np.arange(130)[:, None])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("cta_group", [1, 2])
def test_tmem_regions_do_not_overlap(kind, columns, cta_group):
    fields, depth = KINDS[kind]
    config = BlockScaledMatmulConfig(cta_group=cta_group, mma_shape=(128 * cta_group, columns, depth), **fields)
    assert not violations(config)
    plan, (of_a, of_b) = config.tmem, scale_layouts(config)
    taken = [
        *(range(plan.accum(s), plan.accum(s) + columns) for s in range(config.num_accum_pipeline_stages)),
        *(range(plan.sfa(s), plan.sfa(s) + of_a.columns) for s in range(config.num_pipeline_stages)),
        *(range(plan.sfb(s), plan.sfb(s) + of_b.columns) for s in range(config.num_pipeline_stages)),
    ]
    columns_taken = [column for part in taken for column in part]
    assert len(columns_taken) == len(set(columns_taken))
    assert max(columns_taken) < 512
    for layout, rows in ((of_a, 128), (of_b, columns)):
        assert layout.across * 128 >= rows + (64 if rows % 128 else 0)
        places = [layout.column(across, along) for along in range(layout.along) for across in range(layout.across)]
        assert places == list(range(0, layout.columns, 4))


def test_more_columns_than_tmem_has_are_rejected():
    fields = {"mma_shape": (256, 256, 64), "num_accum_pipeline_stages": 2, "num_pipeline_stages": 1}
    found = violations(BlockScaledMatmulConfig(a_type="e2m1", **fields))
    assert any("columns of TMEM" in each for each in found)


NARROW = [("mxfp8", 1, 8), ("nvfp4", 1, 16), ("mxfp4", 2, 16), ("mxfp8", 2, 32), ("nvfp4", 1, 96), ("mxfp4", 2, 160)]


@pytest.mark.parametrize(("kind", "cta_group", "columns"), NARROW)
def test_widths_that_start_inside_a_chunk(kind, cta_group, columns):
    """Several tiles, so that scale factors start in every group of 32 rows of a chunk, or inside one."""
    tiles = 5 if columns < 96 else 2
    problem(kind, cta_group, columns, 20, tiles * columns - 3, 160, c_type="bf16").check("random", 3)


@pytest.mark.parametrize("columns", [24, 48])
def test_widths_that_only_the_first_tile_can_have(columns):
    problem("mxfp8", 1, columns, 20, columns - 1, 160, c_type="bf16").check()
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, columns, 32))
    assert not violations(config, Problem(128, columns, 128))
    found = violations(config, Problem(128, columns + 8, 128))
    assert any(f"must be at most {columns}" in each for each in found)


@pytest.mark.parametrize(("a_type", "b_type"), [("e4m3", "e2m1"), ("e2m1", "e5m2")])
def test_8_bits_times_4(a_type, b_type):
    fields = {"a_type": a_type, "b_type": b_type, "AB_swapped": a_type == "e2m1"}
    scaled(40, 60, 256, cta_group=1, mma_shape=(128, 32, 32), **fields).check("random", 6)


@pytest.mark.parametrize(
    ("kind", "name", "cta_group"),
    [
        ("mxfp8", "UTCQMMA", 1),
        ("mxfp8", "UTCQMMA", 2),
        ("mxfp4", "UTCOMMA", 2),
        ("nvfp4", "UTCOMMA", 1),
        ("nvfp4", "UTCOMMA", 2),
    ],
)
def test_assembles_without_a_spill(kind, name, cta_group):
    given = problem(kind, cta_group, 256, 300, 700, 512, c_type="bf16")
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(given.launch).kernels)
    sass = sass_of(given.launch)
    pair = ("2CTA",) if cta_group == 2 else ()
    assert sass.count(name, *pair) == 4
    chunks = sum(layout.across * layout.along for layout in scale_layouts(given.config))
    assert sass.count("UTCCP", *pair) == chunks
    assert sass.count("LDTM")
