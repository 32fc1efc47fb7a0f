"""wgmma: every type, shape, layout and source of operands."""

from __future__ import annotations

import numpy as np
import pytest
from tests.machine.wgmma_case import SCHEDULES, SPANS, Case, Data, check

TYPES = [
    Case(n=8, a_type="f16"),
    Case(n=256, a_type="f16"),
    Case(n=40, a_type="f16", d_type="f16"),
    Case(n=8, a_type="f16", d_type="f16", a_registers=True),
    Case(n=256, a_type="bf16", steps=4),
    Case(n=24, a_type="bf16", a_registers=True, steps=2),
    Case(n=16, a_type="tf32", steps=4),
    Case(n=104, a_type="tf32", a_registers=True, steps=2),
    Case(n=8, a_type="e4m3", steps=2),
    Case(n=48, a_type="e4m3", b_type="e5m2", steps=4),
    Case(n=32, a_type="e5m2", b_type="e4m3", d_type="f16"),
    Case(n=72, a_type="e5m2", a_registers=True),
    Case(n=24, a_type="s8", d_type="s32", steps=3),
    Case(n=256, a_type="u8", d_type="s32", steps=4),
    Case(n=64, a_type="s8", b_type="u8", d_type="s32", a_registers=True, suffix=".satfinite"),
    Case(n=8, a_type="u8", b_type="s8", d_type="s32"),
]


@pytest.mark.parametrize("case", TYPES, ids=str)
def test_types_and_shapes(case):
    check(case, ("eager", "lazy"))


@pytest.mark.parametrize("swizzle", SPANS)
@pytest.mark.parametrize("mn_major", [False, True], ids=["k-major", "mn-major"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_layouts(swizzle, mn_major, side):
    options = {f"{side}_swizzle": swizzle, f"{side}_mn": mn_major}
    check(Case(n=128, a_type="f16" if side == "a" else "bf16", steps=4, **options), seed=1)


@pytest.mark.parametrize("a_swizzle", ["none", "32B"])
def test_both_operands_mn_major(a_swizzle):
    check(Case(n=64, steps=2, a_swizzle=a_swizzle, b_swizzle="64B", a_mn=True, b_mn=True), SCHEDULES)


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B"])
def test_types_in_narrow_swizzles(swizzle):
    check(Case(n=16, a_type="e4m3", steps=4, a_swizzle=swizzle, b_swizzle=swizzle))
    check(Case(n=16, a_type="tf32", steps=3, a_swizzle=swizzle, b_swizzle="128B"))


@pytest.mark.parametrize(("scale_a", "scale_b"), [(-1, 1), (1, -1), (-1, -1)])
@pytest.mark.parametrize("accumulate", ["0", "1"])
def test_negative_scales(scale_a, scale_b, accumulate):
    for d_type in ("f32", "f16"):
        check(Case(n=16, a_type="f16", d_type=d_type, steps=2, scale_a=scale_a, scale_b=scale_b, accumulate=accumulate))


@pytest.mark.parametrize("accumulate", ["0", "%p"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_scale_d_the_accumulator_is_not_read(accumulate, schedule):
    data = Data.make(Case(n=32, steps=3, accumulate=accumulate))
    got = data.run(schedule, d=np.full((64, 32), np.nan, np.float32))
    np.testing.assert_array_equal(got, data.expected())


def test_tf32_ignores_the_low_bits():
    data = Data.make(Case(n=8, a_type="tf32"), exact=False)
    got = data.run()
    rounded = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64) for x in (data.a, data.b)]
    np.testing.assert_allclose(got, rounded[0] @ rounded[1].T + data.d, rtol=1e-5, atol=1e-5)


def test_a_half_accumulator_is_rounded_once_per_instruction():
    data = Data.make(Case(n=8, a_type="f16", d_type="f16", steps=2), exact=False)
    got = data.run()
    total = data.d
    for step in range(2):
        part = slice(16 * step, 16 * step + 16)
        product = data.a[:, part].astype(np.float32) @ data.b[:, part].astype(np.float32).T
        total = (total.astype(np.float32) + product).astype(np.float16)
    np.testing.assert_array_equal(got, total)


@pytest.mark.parametrize("saturate", ["", ".satfinite"])
def test_integers_wrap_or_saturate(saturate):
    case = Case(n=8, a_type="u8", d_type="s32", suffix=saturate)
    data = Data.make(case)
    data.d[:] = np.iinfo(np.int32).max - 1000
    got = data.run()
    exact = data.expected().astype(np.int64)
    assert (exact > np.iinfo(np.int32).max).any()
    wanted = np.minimum(exact, np.iinfo(np.int32).max) if saturate else exact.astype(np.int32)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "case",
    [
        Case(n=128, steps=4),
        Case(n=64, a_type="f16", steps=3, a_registers=True),
        Case(n=40, steps=4, a_mn=True, b_mn=True),
    ],
    ids=str,
)
def test_every_schedule_gives_the_same_bits(case):
    """Merging the reads of a run must not change the order in which its products are added."""
    data = Data.make(case, exact=False)
    results = [
        data.run(schedule, seed=seed) for schedule in SCHEDULES for seed in range(2 if schedule == "random" else 1)
    ]
    np.testing.assert_allclose(results[0], data.expected(), rtol=1e-3, atol=1e-3)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("d_type", ["f16", "f32"])
def test_nan_is_that_of_the_hardware(d_type):
    data = Data.make(Case(n=16, a_type="f16", d_type=d_type))
    data.d[7, 2], data.d[9, 3] = -np.nan, np.inf
    got = data.run()
    bits = got.view({"f16": np.uint16, "f32": np.uint32}[d_type])
    nan = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}[d_type]
    assert bits[7, 2] == nan
    assert (bits == nan).sum() == 1
    assert np.isposinf(got[9, 3])
