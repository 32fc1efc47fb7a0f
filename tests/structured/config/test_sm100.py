"""Blackwell configurations: derived values, memory plans, and the geometry of an accumulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from warploom.diagnostics import LaunchError
from warploom.hardware.tmem import PLACEMENTS
from warploom.heuristics.sm100 import choose_config
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    EpilogueConfig,
    MatmulConfig,
    OutputPipelineConfig,
    Problem,
    violations,
)

PAIR = MatmulConfig(mma_shape=(256, 256, 16))


def test_a_pair_has_these_numbers():
    assert (PAIR.MMA_M, PAIR.MMA_N, PAIR.MMA_K, PAIR.BM, PAIR.BN, PAIR.BK) == (256, 256, 16, 128, 128, 64)
    assert (PAIR.mma_kind, PAIR.accum_type, PAIR.epilogue_dtype) == ("f16", "f32", "f32")
    assert PAIR.output == OutputPipelineConfig(num_stages=2, stage_stride_cols=256, cta_group=2)
    assert PAIR.cluster_shape == (2, 1, 1)
    assert PAIR.roles == {"epilogue": 4, "scheduler": 1, "load": 1, "mma": 1}


def test_shared_bytes_are_the_sum_of_the_arrays():
    # A and B tiles with two barriers per stage, two C tiles, two barriers per accumulator, four barriers and a response
    # per CLC stage, the dealloc barrier and the TMEM address.
    assert PAIR.shared_bytes == 6 * (2 * 16384 + 16) + 2 * 16384 + 2 * 16 + 2 * (32 + 16) + 8 + 4
    small = MatmulConfig(mma_shape=(64, 8, 16), cta_group=1, k_group_size=4, num_clc_pipeline_stages=0)
    assert small.num_group_stages == 4
    assert small.shared_bytes == 16 * 72 * 128 + 4 * 16 + 2 * 64 * 8 * 2 + 2 * 16 + 8 + 4
    # Epilogue loads of subtiles: two buffers with two barriers each, and four barriers that order the loads.
    strips = MatmulConfig(mma_shape=(128, 128, 16), cta_group=1, use_tma_epilogue_load=True)
    assert strips.shared_bytes == 5 * (2 * 16384 + 16) + 2 * 16384 + 2 * (16384 + 16) + 32 + 32 + 96 + 12


@pytest.mark.parametrize("config", [PAIR, MatmulConfig(mma_shape=(64, 24, 16), cta_group=1, k_group_size=2)])
def test_one_more_group_of_stages_would_not_fit(config):
    most = config.most_stages()
    larger = replace(config, num_pipeline_stages=most + config.k_group_size)
    assert violations(replace(config, num_pipeline_stages=most)) == []
    assert [line.partition("=")[0] for line in violations(larger)] == ["num_pipeline_stages"]
    assert "a_tiles" in violations(larger)[0]


@pytest.mark.parametrize(("cta_group", "mma_m"), [(1, 64), (1, 128), (2, 128), (2, 256)])
@pytest.mark.parametrize("mma_n", [16, 48, 128, 256])
def test_subtiles_cover_the_accumulator_once(cta_group, mma_m, mma_n):
    """Compare warps, subtiles, fragments and registers with the placement of the MMA in TMEM."""
    config = MatmulConfig(mma_shape=(mma_m, mma_n, 16), cta_group=cta_group)
    epilogue, placement = config.epilogue, PLACEMENTS[cta_group, mma_m, False]
    seen = np.zeros((128, 512), int)
    for warp in range(4):
        for subtile in range(epilogue.num_stages):
            for half in range(2 if epilogue.is_lower_frag_required else 1):
                lane = 32 * warp + epilogue.data_paths * half
                column = subtile * epilogue.stageN
                seen[lane : lane + epilogue.data_paths, column : column + 8 * epilogue.rep] += 1
    expected = np.zeros((128, 512), int)
    for block in range(placement.blocks):
        columns = mma_n // 2 if placement.folded else mma_n
        expected[placement.pitch * block : placement.pitch * block + placement.height, :columns] = 1
    assert np.array_equal(seen, expected)
    assert epilogue.rep_frag_size * 32 == epilogue.data_paths * epilogue.stageN
    assert epilogue.num_col_warp_groups * epilogue.num_stages * epilogue.stageN == mma_n
    assert config.accumulator_columns == columns


def test_epilogue_config_fields():
    epilogue = EpilogueConfig.create(MMA_M=64, MMA_N=88, stageN=8, cta_group=1, transpose_c=True, BM=64, BN=88)
    assert (epilogue.num_stages, epilogue.is_lower_frag_required, epilogue.N_dim) == (11, False, 0)
    assert (epilogue.data_paths, epilogue.bits, epilogue.rep) == (16, 256, 1)
    assert (epilogue.fragment_size, epilogue.rep_frag_size) == (4, 4)
    assert PAIR.epilogue == EpilogueConfig.create(
        MMA_M=256, MMA_N=256, stageN=64, cta_group=2, transpose_c=False, BM=128, BN=128
    )


@pytest.mark.parametrize(
    ("a_type", "kind", "bk", "c_type"),
    [
        ("bf16", "f16", 64, "bf16"),
        ("f16", "f16", 64, "f16"),
        ("tf32", "tf32", 32, "f32"),
        ("f32", "tf32", 32, "f32"),
        ("e4m3", "f8f6f4", 128, "bf16"),
        ("e5m2", "f8f6f4", 128, "bf16"),
    ],
)
@pytest.mark.parametrize("output", ["bf16", "f16", "f32", "e4m3", "e5m2"])
def test_any_output_type_with_any_input_type(a_type, kind, bk, c_type, output):
    assert MatmulConfig(a_type=a_type).c_type == c_type
    for swapped in (False, True):
        config = MatmulConfig(a_type=a_type, c_type=output, AB_swapped=swapped)
        assert (config.mma_kind, config.BK, config.MMA_K) == (kind, bk, bk // 4)
        assert violations(config, Problem(300, 336, 512)) == []


@pytest.mark.parametrize(
    ("a_type", "rows", "swizzle"),
    [
        ("bf16", 64, "128B"),
        ("bf16", 96, "64B"),
        ("bf16", 48, "32B"),
        ("bf16", 72, "none"),
        ("e4m3", 128, "128B"),
        ("e4m3", 80, "none"),
        ("tf32", 96, "128B_32B_atom"),
    ],
)
def test_an_mn_major_operand_has_the_widest_swizzle_that_divides_its_rows(a_type, rows, swizzle):
    k = {"bf16": 16, "e4m3": 32, "tf32": 8}[a_type]
    config = MatmulConfig(a_type=a_type, mma_shape=(128, rows, k), cta_group=1, a_major="mn", b_major="mn")
    assert config.b_swizzle == swizzle
    assert violations(config) == []


def test_swapping_a_and_b_exchanges_types_majors_and_swizzles():
    config = MatmulConfig(
        a_type="e4m3", b_type="e5m2", a_major="mn", mma_shape=(128, 48, 32), cta_group=1, num_pipeline_stages=3
    )
    other = config.swap_AB_type()
    assert (other.a_type, other.b_type, other.a_major, other.b_major) == ("e5m2", "e4m3", "k", "mn")
    assert (config.a_swizzle, other.b_swizzle, other.num_pipeline_stages) == ("128B", "none", 3)
    assert other.swap_AB_type() == config


@pytest.mark.parametrize(
    ("cluster", "cta_group", "a_major", "a_slice", "b_slice"),
    [
        ((1, 1, 1), 1, "k", (128, 64), (64, 64)),
        ((4, 2, 1), 1, "k", (64, 64), (16, 64)),
        ((4, 4, 1), 2, "k", (32, 64), (32, 64)),
        ((4, 4, 1), 2, "mn", (128, 16), (32, 64)),
    ],
)
def test_slices_of_a_cluster(cluster, cta_group, a_major, a_slice, b_slice):
    config = MatmulConfig(
        mma_shape=(128 * cta_group, 64 * cta_group, 16), cta_group=cta_group, cluster_shape=cluster, a_major=a_major
    )
    assert (config.a_slice, config.b_slice) == (a_slice, b_slice)
    assert violations(config) == []


def test_the_grid_has_whole_clusters_and_every_tile():
    config = MatmulConfig(mma_shape=(256, 192, 16), cluster_shape=(4, 2, 1))
    assert config.grid(Problem(1000, 1000, 64, batch=3)) == (8, 6, 3)
    swapped = replace(config, AB_swapped=True)
    assert swapped.grid(Problem(1000, 100, 64)) == (4, 6, 1)
    assert replace(config, num_split_k=4).grid(Problem(1, 1, 640)) == (4, 2, 4)


def test_a_part_of_tmem_can_be_allocated():
    config = MatmulConfig(mma_shape=(128, 64, 16), cta_group=1, tensor_memory_columns=128)
    assert config.output.stage_stride_cols == 64
    assert violations(config) == []
    assert replace(config, tensor_memory_columns=64).num_accum_pipeline_stages == 1
    assert "overlap" in violations(replace(config, tensor_memory_columns=64, num_accum_pipeline_stages=2))[0]


@pytest.mark.parametrize(("fields", "accumulators"), [({"AB_swapped": True}, 1), ({}, 2)], ids=["swapped", ""])
def test_a_gate_and_up_pair_has_as_many_accumulators_as_fit(fields, accumulators):
    config = MatmulConfig(mma_shape=(256, 192, 16), **fields)
    assert config.num_accum_pipeline_stages == 2
    gated = config.replace(gated=True)
    assert (gated.num_accum_pipeline_stages, violations(gated)) == (accumulators, [])
    assert gated.written.output == gated.output


@pytest.mark.parametrize(
    ("a_type", "kind", "vector", "k_tiles", "bk"),
    [
        ("e4m3", "mxf8f6f4", 32, 1, 128),
        ("e5m2", "mxf8f6f4", 32, 1, 128),
        ("e2m1", "mxf4", 32, 2, 256),
        ("e2m1", "mxf4nvf4", 16, 4, 256),
    ],
)
@pytest.mark.parametrize("mma_n", [64, 128, 192, 256])
@pytest.mark.parametrize("cta_group", [1, 2])
def test_scale_factors_follow_the_accumulators_in_tmem(a_type, kind, vector, k_tiles, bk, mma_n, cta_group):
    shape = (128 * cta_group, mma_n, bk // 4)
    config = BlockScaledMatmulConfig(a_type=a_type, scaling_kind=kind, mma_shape=shape, cta_group=cta_group)
    assert (config.vec_sf_size, config.num_sf_k_tiles, config.BK, config.mma_kind) == (vector, k_tiles, bk, kind)
    assert config.num_accum_pipeline_stages == (2 if mma_n <= 128 else 1)
    assert config.output.stage_stride_cols == mma_n
    assert violations(config, Problem(300, 352, 512)) == []
    # The columns of accumulators and of atoms of 128 rows and four scale factors: none overlap, none are outside.
    taken = np.zeros(512, int)
    for stage in range(config.num_accum_pipeline_stages):
        taken[config.tmem.accum(stage) :][:mma_n] += 1
    for stage in range(config.num_pipeline_stages):
        taken[config.tmem.sfa(stage) :][: 4 * k_tiles] += 1
        taken[config.tmem.sfb(stage) :][: 4 * k_tiles * -(-mma_n // 128)] += 1
    assert taken.max() == 1
    assert taken.sum() == config.tmem.columns
    atoms = k_tiles * (1 + -(-mma_n // 128))
    stage_bytes = (128 + mma_n // cta_group) * 128 + atoms * 512 + 16
    rest = 2 * 128 * config.stageN * 2 + 16 * config.num_accum_pipeline_stages + 2 * 48 + 12
    assert config.shared_bytes == config.num_pipeline_stages * stage_bytes + rest


def test_grouped_kernels_have_their_own_warps():
    assert BlockScaledMatmulConfig(gemm_kind="gmm", cta_group=1, mma_shape=(128, 64, 32)).threads == 224
    small = BlockScaledMatmulConfig(gemm_kind="gmm", cta_group=1, mma_shape=(128, 8, 32), AB_swapped=True)
    assert small.threads == 224
    assert list(small.roles) == ["epilogue", "load", "mma", "scheduler"]
    assert violations(small) == []
    assert BlockwiseFP8MatmulConfig(gemm_kind="block_scaled_1d2d_fp8").threads == 192
    grouped = MatmulConfig(gemm_kind="gmm", AB_swapped=True)
    assert (grouped.scheduler, grouped.num_clc_pipeline_stages, grouped.c_swizzle) == ("static", 0, "32B")
    assert violations(grouped) == []


@pytest.mark.parametrize("family", [MatmulConfig, BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig])
@pytest.mark.parametrize("m", [1, 8, 31, 32, 77, 1000])
@pytest.mark.parametrize("n", [1, 100, 4097])
def test_every_problem_and_family_has_a_valid_choice(family, m, n):
    config = choose_config(m, n, 1024, family=family)
    assert isinstance(config, family)
    assert violations(config) == []
    assert config.use_tma_store == (n * 2 % 16 == 0)
    assert violations(config, Problem(m, n, 1024)) == []


@pytest.mark.parametrize("a_type", ["bf16", "tf32", "e4m3"])
@pytest.mark.parametrize("m", [16, 208])
def test_a_choice_keeps_majors_and_given_fields(a_type, m):
    config = choose_config(m, 320, 512, a_type=a_type, a_major="mn", b_major="k")
    assert ((config.b_major, config.a_major) if config.AB_swapped else (config.a_major, config.b_major)) == ("mn", "k")
    assert violations(config, Problem(m, 320, 512)) == []
    single = choose_config(m, 320, 512, a_type=a_type, cta_group=1, AB_swapped=False, num_pipeline_stages=2)
    assert (single.cta_group, single.AB_swapped, single.num_pipeline_stages) == (1, False, 2)
    assert violations(single) == []


@pytest.mark.parametrize(("a_type", "line"), [("bf16", 64), ("e4m3", 128), ("tf32", 32)])
@pytest.mark.parametrize(("m", "n"), [(4096, 4096), (1000, 3000), (513, 264), (40, 8192)])
@pytest.mark.parametrize("swapped", [False, True])
def test_mn_major_operands_are_loaded_in_whole_lines(m, n, a_type, line, swapped):
    """A line has 128 bytes; narrower matrices are exempt."""
    config = choose_config(m, n, 1024, a_type=a_type, a_major="mn", b_major="mn", AB_swapped=swapped)
    assert config.b_rows % line == 0 or (m if swapped else n) < line * config.cta_group


def test_fewer_sms_mean_more_waves():
    assert choose_config(512, 4096, 1024, sms=148).num_clc_pipeline_stages == 0
    assert choose_config(512, 4096, 1024, sms=16).num_clc_pipeline_stages == 2


def test_all_invalid_field_values_are_reported_at_once():
    with pytest.raises(LaunchError) as caught:
        MatmulConfig(a_type="int3", cta_group=3, mma_shape=(128, 0, 16), raster_order="diagonal", num_split_k=True)
    text = str(caught.value)
    assert caught.value.code == "BAD_CONFIG"
    assert "5 rule(s) violated" in text
    for subject in (
        "a_type='int3'",
        "cta_group=3",
        "mma_shape (128, 0, 16)",
        "raster_order='diagonal'",
        "num_split_k=True",
    ):
        assert subject in text
