"""Rules of Blackwell configurations: a case for every rule, and random configurations."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from warploom.diagnostics import LaunchError
from warploom.hardware.targets import MACHINES
from warploom.heuristics.sm100 import choose_config
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    MatmulConfig,
    Problem,
    validate,
    violations,
)
from warploom.structured.config.fields import CHOICES, LISTS, MINIMUMS, SHAPES
from warploom.structured.config.sm100_rules import PROBLEM_RULES

MACHINE = MACHINES["sm_100a"]
SINGLE = {"cta_group": 1, "mma_shape": (128, 128, 16)}
CLASSES = (MatmulConfig, BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig)
MXFP8 = {"cta_group": 1, "mma_shape": (128, 128, 32)}

CONFIGS = [
    # types and majors
    (MatmulConfig, {"b_type": "f16"}, "b_type='f16'", "must equal a_type, which is bf16"),
    (MatmulConfig, {"a_type": "e2m1"}, "a_type='e2m1'", "gemm; supported: bf16, f16, tf32, f32, e4m3, e5m2"),
    (BlockwiseFP8MatmulConfig, {"a_type": "bf16"}, "a_type='bf16'", "blockwise_fp8; supported: e4m3, e5m2"),
    (BlockScaledMatmulConfig, {"a_type": "e2m1", "b_major": "mn"}, "b_major='mn'", "K-major operands only"),
    # MMA shapes
    (MatmulConfig, {"mma_shape": (64, 128, 16)}, "mma_shape (64, 128, 16)", "has M = 64; kind::f16 with cta_group 2 supports 128, 256"),
    (MatmulConfig, {"mma_shape": (256, 24, 16)}, "mma_shape (256, 24, 16)", "16 to 256 in steps of 16"),
    (MatmulConfig, {**SINGLE, "mma_shape": (128, 12, 16)}, "mma_shape (128, 12, 16)", "8 to 256 in steps of 8"),
    (MatmulConfig, {"mma_shape": (256, 256, 32)}, "mma_shape (256, 256, 32)", "has K = 32; kind::f16 with cta_group 2 needs 16"),
    (MatmulConfig, {"a_type": "e4m3", "mma_shape": (256, 48, 32), "b_major": "mn"}, "mma_shape (256, 48, 32)", "multiple of 32"),
    # clusters
    (MatmulConfig, {"cluster_shape": (3, 1, 1)}, "cluster_shape (3, 1, 1)", "multiple of cta_group"),
    (MatmulConfig, {"cluster_shape": (8, 4, 1)}, "cluster_shape (8, 4, 1)", "has 32 CTAs; sm_100a supports at most 16"),
    (MatmulConfig, {"cluster_shape": (2, 1, 2)}, "cluster_shape (2, 1, 2)", "must have z = 1"),
    (MatmulConfig, {"cluster_shape": (2, 3, 1)}, "cluster_shape (2, 3, 1)", "128 rows of A equally among 3"),
    (MatmulConfig, {"cluster_shape": (2, 3, 1), "a_major": "mn"}, "cluster_shape (2, 3, 1)", "64 K elements of A equally among 3"),
    (MatmulConfig, {**SINGLE, "mma_shape": (128, 8, 16), "cluster_shape": (16, 1, 1)}, "cluster_shape (16, 1, 1)", "8 rows of B equally among 16"),
    (MatmulConfig, {"gemm_kind": "gmm", "cluster_shape": (4, 1, 1)}, "cluster_shape (4, 1, 1)", "must be (2, 1, 1)"),
    # swizzles
    (MatmulConfig, {"a_swizzle": "128B_64B_atom"}, "a_swizzle='128B_64B_atom'", "not supported by the tensor core"),
    (MatmulConfig, {"b_swizzle": "128B_32B_atom"}, "b_swizzle='128B_32B_atom'", "MN-major 32-bit"),
    (MatmulConfig, {"a_type": "tf32", "a_major": "mn", "a_swizzle": "64B"}, "a_swizzle='64B'", "MN-major 32-bit"),
    (MatmulConfig, {**SINGLE, "mma_shape": (128, 96, 16), "b_major": "mn", "b_swizzle": "128B"}, "b_swizzle='128B'", "192 bytes"),
    (MatmulConfig, {"c_swizzle": "128B", "output_tile_shape": (128, 32)}, "c_swizzle='128B'", "64 bytes"),
    (
        MatmulConfig,
        {"use_tma_epilogue_load": True, "epi_load_swizzle": "128B", "output_tile_shape": (128, 32)},
        "epi_load_swizzle='128B'",
        "64 bytes",
    ),
    # output tiles
    (MatmulConfig, {"output_tile_shape": (64, 64)}, "output_tile_shape (64, 64)", "must have the accumulator's 128 rows"),
    (MatmulConfig, {"output_tile_shape": (128, 96)}, "output_tile_shape (128, 96)", "does not divide"),
    (MatmulConfig, {"mma_shape": (256, 192, 16), "output_tile_shape": (128, 48)}, "output_tile_shape (128, 48)", "tcgen05.ld reads 8 times"),
    (MatmulConfig, {**SINGLE, "output_tile_shape": (128, 4)}, "output_tile_shape (128, 4)", "tcgen05.ld reads 8 times"),
    (MatmulConfig, {**SINGLE, "mma_shape": (128, 8, 16), "c_type": "e4m3"}, "output_tile_shape (128, 8)", "has rows of 8 bytes"),
    # stream-K
    (MatmulConfig, {"stream_k": True, "scheduler": "clc"}, "scheduler='clc'", "must be 'static' with stream_k=True"),
    (MatmulConfig, {"stream_k": True, "num_split_k": 2}, "num_split_k=2", "tiles are divided already"),
    (BlockScaledMatmulConfig, {"stream_k": True}, "stream_k=True", "is not supported in block_scaled"),
    # TMEM
    (MatmulConfig, {"tensor_memory_columns": 384}, "tensor_memory_columns=384", "power of two from 32 to 512"),
    (MatmulConfig, {"tensor_memory_columns": 1024}, "tensor_memory_columns=1024", "power of two from 32 to 512"),
    (MatmulConfig, {"num_accum_pipeline_stages": 3}, "num_accum_pipeline_stages=3", "170 columns apart"),
    (
        MatmulConfig,
        {**SINGLE, "tensor_memory_columns": 64, "num_accum_pipeline_stages": 1},
        "num_accum_pipeline_stages=1",
        "needs 128 columns of TMEM, but 64 are allocated",
    ),
    (
        BlockScaledMatmulConfig,
        {"mma_shape": (256, 256, 32), "num_accum_pipeline_stages": 2, "num_pipeline_stages": 1},
        "num_accum_pipeline_stages=2",
        "524 columns",
    ),
    # shared memory and stages
    (MatmulConfig, {"num_pipeline_stages": 7}, "num_pipeline_stages=7", "a_tiles 114688"),
    (MatmulConfig, {"num_pipeline_stages": 5, "k_group_size": 2}, "num_pipeline_stages=5", "multiple of k_group_size, which is 2"),
    (MatmulConfig, {"k_group_size": 8}, "num_pipeline_stages=0", "no group of input stages fits"),
    (MatmulConfig, {"reserved_shared_bytes": 40000, "num_pipeline_stages": 6}, "num_pipeline_stages=6", "reserved 40000"),
    (MatmulConfig, {"prefetch_tiles_n": 7}, "prefetch_tiles_n=7", "has 6 stages"),
    (MatmulConfig, {**SINGLE, "k_group_size": 2, "prefetch_tiles_n": 4}, "prefetch_tiles_n=4", "has 3 stages"),
    # modes
    (MatmulConfig, {"scheduler": "static", "num_clc_pipeline_stages": 2}, "num_clc_pipeline_stages=2", "must be 0"),
    (MatmulConfig, {"epilogue_is_1d": True}, "epilogue_is_1d=True", "needs use_tma_epilogue_load=True"),
    (
        MatmulConfig,
        {
            **SINGLE, "mma_shape": (128, 200, 16), "c_type": "e4m3", "use_tma_store": False, "use_tma_epilogue_load": True,
            "epilogue_is_1d": True,
        },
        "epilogue_is_1d=True",
        "200 bytes",
    ),
    (MatmulConfig, {"gemm_kind": "gmm", "num_split_k": 2}, "num_split_k=2", "must be 1 in gmm"),
    (MatmulConfig, {"gemm_kind": "gmm", "use_tma_epilogue_load": True}, "use_tma_epilogue_load=True", "clipped to their group"),
    (MatmulConfig, {"gemm_kind": "gmm", "scheduler": "clc"}, "scheduler='clc'", "known on the device"),
    (MatmulConfig, {"gemm_kind": "gmm", "a_major": "mn"}, "a_major='mn'", "groups begin at any row"),
    (MatmulConfig, {"gemm_kind": "gmm", "AB_swapped": True, "b_major": "mn"}, "b_major='mn'", "groups begin at any row"),
    (MatmulConfig, {"gemm_kind": "gmm", "prefetch_tiles_n": 1}, "prefetch_tiles_n=1", "known on the device"),
    (MatmulConfig, {"gemm_kind": "block_scaled_1d2d_fp8"}, "gemm_kind='block_scaled_1d2d_fp8'", "BlockwiseFP8MatmulConfig"),
    (BlockwiseFP8MatmulConfig, {"k_group_size": 2}, "k_group_size=2", "each K tile has its own accumulator"),
    (BlockwiseFP8MatmulConfig, {"gemm_kind": "block_scaled_1d2d_fp8", "AB_swapped": True}, "AB_swapped=True", "rows are along M"),
    (BlockScaledMatmulConfig, {"num_pipeline_stages": 3, "k_group_size": 2}, "num_pipeline_stages=3", "multiple of k_group_size, which is 2"),
    (BlockScaledMatmulConfig, {"gemm_kind": "gmm", "prefetch_tiles_n": 1}, "prefetch_tiles_n=1", "known on the device"),
    # gated GEMMs and auxiliary outputs
    (MatmulConfig, {**SINGLE, "gated": True, "mma_shape": (128, 24, 16)}, "mma_shape (128, 24, 16)", "multiple of 16"),
    (MatmulConfig, {**SINGLE, "gated": True, "use_tma_epilogue_load": True, "epilogue_is_1d": True}, "epilogue_is_1d=True", "must be False with gated=True"),
    (BlockScaledMatmulConfig, {"gemm_kind": "gmm", "gated": True, "AB_swapped": True, "mma_shape": (256, 256, 32)}, "AB_swapped=True", "must be False with gated=True"),
    (BlockwiseFP8MatmulConfig, {"num_split_k": 3}, "num_split_k=3", "dense and block-scaled GEMMs only"),
    (BlockwiseFP8MatmulConfig, {"gated": True}, "gated=True", "is not supported in blockwise_fp8"),
    (MatmulConfig, {"output_types": ("f32",), "use_tma_store": False}, "output_types ('f32',)", "need use_tma_store=True"),
    (MatmulConfig, {**SINGLE, "mma_shape": (128, 8, 16), "output_types": ("e4m3",)}, "output_types ('e4m3',)", "rows of 8 elements"),
    # scale factors
    (BlockScaledMatmulConfig, {"a_type": "e2m1", "scaling_kind": "mxf8f6f4"}, "scaling_kind='mxf8f6f4'", "does not support e2m1"),
    (BlockScaledMatmulConfig, {"scaling_kind": "mxf4"}, "scaling_kind='mxf4'", "does not support e4m3"),
    (BlockScaledMatmulConfig, {"scale_type": "ue4m3"}, "scale_type='ue4m3'", "kind::mxf8f6f4 has ue8m0"),
    (BlockScaledMatmulConfig, {"vec_sf_size": 16}, "vec_sf_size=16", "blocks of 32"),
    (BlockScaledMatmulConfig, {"mma_shape": (128, 128, 32)}, "mma_shape (128, 128, 32)", "128 rows of each CTA: 256"),
    (BlockScaledMatmulConfig, {**MXFP8, "mma_shape": (128, 136, 32)}, "mma_shape (128, 136, 32)", "up to 128, and of 32"),
    (BlockScaledMatmulConfig, {**MXFP8, "gemm_kind": "gmm", "mma_shape": (128, 48, 32)}, "mma_shape (128, 48, 32)", "8, 16 and"),
    (BlockScaledMatmulConfig, {**MXFP8, "b_type": "bf16"}, "b_type='bf16'", "is not an operand type"),
    (BlockScaledMatmulConfig, {"gemm_kind": "gmm", "gated": True, "mma_shape": (256, 128, 32)}, "mma_shape (256, 128, 32)", "256"),
    (BlockScaledMatmulConfig, {"gated": True, "mma_shape": (256, 256, 32)}, "gated=True", "not supported in block_scaled"),
    (BlockwiseFP8MatmulConfig, {"scale_type": "ue8m0"}, "scale_type='ue8m0'", "f32 or bf16"),
    (BlockwiseFP8MatmulConfig, {"scale_granularity": 100}, "scale_granularity=100", "a multiple of 8"),
]  # fmt: skip

PROBLEMS = [
    ({}, Problem(0, 64, 64), "m=0", "at least 1"),
    ({}, Problem(64, 64, 64, batch=0), "batch=0", "at least 1"),
    ({}, Problem(64, 64, 100), "k=100", "rows of A 200 bytes apart"),
    ({}, Problem(64, 65, 64), "n=65", "rows of C 130 bytes apart"),
    ({"use_tma_store": False, "use_tma_epilogue_load": True}, Problem(64, 65, 64), "n=65", "rows of C 130 bytes apart"),
    ({"a_major": "mn"}, Problem(65, 64, 64), "m=65", "rows of A 130 bytes apart"),
    ({"a_major": "mn", "AB_swapped": True}, Problem(64, 65, 64), "n=65", "rows of B 130 bytes apart"),
    ({}, Problem(64, 64, 64, b_stride=68), "b_stride=68", "rows of B 136 bytes apart"),
    ({}, Problem(64, 64, 64, a_stride=56), "a_stride=56", "rows of A overlap, which have 64 elements"),
    ({"num_split_k": 5}, Problem(64, 64, 256), "k=256", "has 4 groups of K tiles; each of 5 splits"),
    ({"num_split_k": 3, "k_group_size": 2}, Problem(64, 64, 256), "k=256", "has 2 groups of K tiles; each of 3 splits"),
    ({"gemm_kind": "gmm"}, Problem(64, 64, 256, batch=2), "batch=2", "the groups are the batch"),
    ({}, Problem(64, 64, 256, batch=65536), "batch=65536", "65536 CTAs"),
    (SINGLE, Problem(64, 128 * 65536, 64), "n=8388608", "65536 CTAs"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "asked", "named", "reason"), CONFIGS, ids=lambda value: str(value)[:40])
def test_a_broken_rule_names_its_field_and_reason(family, asked, named, reason):
    found = violations(family(**asked))
    assert [line for line in found if line.startswith(f"{named} ") and reason in line], found


@pytest.mark.parametrize(("asked", "problem", "named", "reason"), PROBLEMS, ids=lambda value: str(value)[:40])
def test_a_broken_problem_rule_names_its_field_and_reason(asked, problem, named, reason):
    config = MatmulConfig(**asked)
    assert violations(config) == []
    found = violations(config, problem)
    assert [line for line in found if line.startswith(f"{named} ") and reason in line], found


def test_scale_factors_need_whole_blocks():
    config = BlockScaledMatmulConfig(a_type="e2m1")
    assert violations(config, Problem(64, 64, 1024)) == []
    assert violations(config, Problem(64, 64, 1032)) == [
        "k=1032 puts rows of A 516 bytes apart; TMA needs a multiple of 16",
        "k=1032 puts rows of B 516 bytes apart; TMA needs a multiple of 16",
        "k=1032 must be a multiple of vec_sf_size, which is 16",
    ]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"num_split_k": 4}, Problem(64, 64, 9 * 64)),  # the reference system hangs: its last split is empty
        ({"num_split_k": 4}, Problem(64, 64, 5 * 64)),
        ({**SINGLE, "mma_shape": (64, 128, 16), "num_split_k": 2}, Problem(64, 64, 128)),  # it reduces half the columns
        ({**SINGLE, "register_based_epilogue": False}, Problem(64, 64, 64)),  # it passes wrong coordinates
        ({"register_based_epilogue": False, "c_type": "f32"}, Problem(64, 64, 64)),
        ({"AB_swapped": True, "c_swizzle": "64B"}, Problem(64, 64, 64)),
        ({"use_tma_epilogue_load": True, "c_type": "f32"}, Problem(63, 64, 64)),
        ({"use_tma_store": False}, Problem(63, 61, 64)),
        ({}, Problem(63, 61, 61, a_stride=64, b_stride=72, c_stride=64)),
    ],
)
def test_configurations_that_only_the_reference_system_rejects(asked, problem):
    assert violations(MatmulConfig(**asked), problem) == []


def test_all_violations_are_reported_at_once():
    config = MatmulConfig(mma_shape=(256, 24, 16), cluster_shape=(3, 1, 1), num_split_k=2, gemm_kind="gmm")
    with pytest.raises(LaunchError) as caught:
        validate(config, Problem(64, 64, 100, batch=2))
    text = str(caught.value)
    assert caught.value.code == "BAD_CONFIG"
    for subject in ("mma_shape (", "cluster_shape (", "num_split_k=2", "k=100", "batch=2"):
        assert subject in text
    assert f"{len(violations(config, Problem(64, 64, 100, batch=2)))} rule(s) violated" in text
    validate(MatmulConfig(), Problem(64, 64, 64))


def test_every_rule_is_broken_by_a_case():
    cases = [family(**asked) for family, asked, _, _ in CONFIGS]
    broken = {rule for config in cases for rule in config.rules if list(rule(config))}
    assert broken == {rule for family in CLASSES for rule in family.rules}
    pairs = [(MatmulConfig(**asked), problem) for asked, problem, _, _ in PROBLEMS]
    assert {rule for config, problem in pairs for rule in PROBLEM_RULES if list(rule(config, problem))} == set(
        PROBLEM_RULES
    )


def test_every_field_has_allowed_values():
    for family in CLASSES:
        assert {
            field.name for field in fields(family)
        } - CHOICES.keys() - MINIMUMS.keys() - LISTS.keys() - SHAPES.keys() == {"derived"}


MMA_SHAPES = st.tuples(
    st.sampled_from([64, 128, 256]), st.integers(1, 34).map(lambda n: 8 * n), st.sampled_from([8, 16, 32, 64])
)
FIELDS = {
    **{name: st.sampled_from(list(choices)) for name, choices in CHOICES.items()},
    **{name: st.integers(least, least + 5) for name, least in MINIMUMS.items()},
    "num_pipeline_stages": st.integers(1, 18),
    "tensor_memory_columns": st.sampled_from([32, 64, 128, 192, 256, 512, 1024]),
    "reserved_shared_bytes": st.sampled_from([0, 100, 100000]),
    "mma_shape": MMA_SHAPES,
    "output_types": st.lists(st.sampled_from(LISTS["output_types"]), max_size=2).map(tuple),
    "cluster_shape": st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 3, 4]), st.integers(1, 2)),
    "output_tile_shape": st.tuples(st.sampled_from([8, 16, 24, 32, 64, 128]), st.sampled_from([4, 8, 32, 48, 64, 128])),
    "vec_sf_size": st.sampled_from([16, 32]),
    "scale_granularity": st.sampled_from([64, 96, 128]),
}
SIZES = st.integers(1, 40).flatmap(lambda size: st.sampled_from([size, 8 * size, 64 * size, 0]))
FAMILIES = st.sampled_from(CLASSES)


@st.composite
def configs(draw, most=6):
    family = draw(FAMILIES)
    names = [field.name for field in fields(family) if field.name != "derived"]
    chosen = draw(st.lists(st.sampled_from(names), max_size=most, unique=True))
    return family(**{name: draw(FIELDS[name]) for name in chosen})


@settings(max_examples=300, deadline=None)
@given(configs(), st.builds(Problem, SIZES, SIZES, SIZES, st.integers(1, 3)))
def test_a_violation_names_its_field_and_value(config, problem):
    for line in violations(config, problem):
        name = re.match(r"\w+", line)[0]
        value = getattr(problem if hasattr(problem, name) else config, name)
        subject = f"{name} {value} " if isinstance(value, tuple) else f"{name}={value!r} "
        assert line.startswith(subject)
        assert len(line) > len(subject) + 8


@settings(max_examples=300, deadline=None)
@given(configs(most=3))
@example(MatmulConfig(gated=True))
@example(MatmulConfig(AB_swapped=True, gated=True))
def test_valid_configurations_fit_into_the_hardware(config):
    assume(not violations(config))
    assert config.num_group_stages >= 1
    assert config.num_pipeline_stages % config.k_group_size == 0
    assert config.shared_bytes <= MACHINE.shared_per_block
    last = (config.num_accum_pipeline_stages - 1) * config.stage_stride_cols
    assert last + config.accumulator_columns <= config.tensor_memory_columns <= MACHINE.tensor_columns
    accumulators = 2 if config.gated else 1  # gate and up; the writer makes one column of both
    assert accumulators * config.written.epilogue.num_stages * config.stageN == config.accumulator_columns
    assert config.threads <= MACHINE.threads_per_block
    raw = config.num_pipeline_stages * (config.BM + config.BN) * 128
    assert config.shared_bytes >= raw + config.num_output_stages * config.stageN * 64 * config.c_bytes
    assert replace(config) == config
    assert (
        type(config)(**{field.name: getattr(config, field.name) for field in fields(config) if field.name != "derived"})
        == config
    )


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 10000),
    st.integers(1, 10000),
    st.integers(1, 10000),
    st.integers(1, 3),
    st.sampled_from(["bf16", "f16", "tf32", "f32", "e4m3", "e5m2"]),
    st.sampled_from(["bf16", "f16", "f32", "e4m3", "e5m2"]),
    st.sampled_from([("k", "k"), ("mn", "k"), ("k", "mn"), ("mn", "mn")]),
)
@example(1, 1, 1, 1, "tf32", "bf16", ("mn", "mn"))
def test_every_choice_validates(m, n, k, batch, a_type, c_type, majors):
    config = choose_config(m, n, k, batch, a_type=a_type, c_type=c_type, a_major=majors[0], b_major=majors[1])
    assert violations(config) == []
    padded = Problem(m, n, k, batch, *(64 * -(-max(m, n, k) // 64) for _ in "abc"))
    assert violations(config, padded) == []
