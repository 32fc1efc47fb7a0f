"""Grouped blockwise FP8 GEMMs against a loop over groups in float64, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from tests.assembly import assemble_ok
from tests.ops.references import BF16, E4M3, E5M2, exact, integers, poisoned

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.ops import grouped_blockwise_matmul
from warploom.structured.config import BlockwiseFP8MatmulConfig, HopperBlockwiseConfig

RNG = np.random.default_rng()
ENDS, IDS = np.array([3, 3, 20, 34, 163]), np.array([2, 0, -1, 2, 1])
ROWS, N, K = 167, 136, 200
CONFIGS = {
    "chosen": (None, "eager", np.float32),
    "one CTA": (BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(128, 64, 32), c_type="f32"), "lazy", BF16),
    "pairs": (BlockwiseFP8MatmulConfig(cta_group=2, mma_shape=(256, 96, 32), c_type="f32"), "reverse", np.float32),
    "Hopper": (HopperBlockwiseConfig(tile=(128, 64)), "lazy", np.float32),
    "Hopper, one consumer": (HopperBlockwiseConfig(tile=(64, 72), consumers=1), "reverse", BF16),
    "Hopper, cluster": (HopperBlockwiseConfig(tile=(128, 64), cluster_shape=(1, 2, 1)), "random", np.float32),
    "64 rows": (BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(64, 72, 32), c_type="f32"), "random", BF16),
}


def problem(dtype=np.float32):
    a, b = integers(ROWS, K, dtype=E4M3, largest=2), integers(3, N, K, dtype=E5M2, largest=2)
    scales = tuple((2.0 ** RNG.integers(-2, 3, shape)).astype(dtype) for shape in ((ROWS, 2), (3, 2, 2)))
    left = exact(a) * np.repeat(exact(scales[0]), 128, 1)[:, :K]
    blocks = np.repeat(np.repeat(exact(scales[1]), 128, 1)[:, :N], 128, 2)[..., :K]
    sums, start = np.full((ROWS, N), np.nan), 0
    for end, expert in zip(ENDS, IDS, strict=True):
        if expert >= 0:
            sums[start:end] = left[start:end] @ (exact(b[expert]) * blocks[expert]).T
        start = end
    return (a, b, *scales, ENDS), sums


@pytest.mark.parametrize("name", CONFIGS)
def test_groups(name):
    config, schedule, dtype = CONFIGS[name]
    given, sums = problem(dtype)
    bias, factors, out = integers(3, N), np.float32([1, 2, 0.5]), poisoned((ROWS, N), np.float32)
    options = {"expert_ids": IDS, "expert_scales": factors, "bias": bias, "activation": "relu", "config": config}
    bound = grouped_blockwise_matmul.bind(*given, out=out, **options)
    wl.launch(bound, schedule=schedule)
    experts = np.append(np.repeat(IDS, np.diff(ENDS, prepend=0)), [-1] * (ROWS - ENDS[-1]))
    wanted = np.maximum(sums * factors[experts][:, None] + exact(bias)[experts], 0)
    np.testing.assert_array_equal(out, wanted)


def test_invalid_scales_are_reported_together():
    (a, b, of_a, of_b, ends), _ = problem()
    with pytest.raises(WarploomError) as error:
        grouped_blockwise_matmul(a, b, of_a[:9], of_b[:, :1].astype(BF16), ends, expert_ids=IDS)
    message = str(error.value)
    assert "`a_scale` must be (167, 2), as `a` is (167, 200)" in message
    assert "`b_scale` must be (3, 2, 2), as `b` is (3, 136, 200)" in message
    assert "`b_scale` must have the element type of `a_scale`, float32" in message


def test_assembles_without_a_spill():
    given, _ = problem()
    bound = grouped_blockwise_matmul.bind(*given, expert_ids=IDS, activation="gelu", out_dtype=BF16)
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(bound).kernels)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "reverse", "random"])
def test_the_choice_for_hopper(schedule):
    given, sums = problem()
    out = poisoned((ROWS, N), np.float32)
    bound = grouped_blockwise_matmul.bind(*given, out=out, expert_ids=IDS, target="sm_90a")
    wl.launch(bound, schedule=schedule, sms=4)
    np.testing.assert_array_equal(out, sums)
    assemble_ok(bound)


def test_groups_on_hopper_are_proved():
    given, _ = problem()
    config = HopperBlockwiseConfig(tile=(64, 40), consumers=1)
    report = wl.check(grouped_blockwise_matmul.bind(*given, expert_ids=IDS, config=config), profile="strict")
    assert report.verdict == "PROVED", str(report)
