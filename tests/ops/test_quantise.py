"""Block formats against brute force: every element is the nearest value of the format, and layouts are as specified."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.references import BF16, E2M1, E4M3, E5M2, E8M0, reals

from warploom.ops import interleave_scales, quantise_mxfp8, quantise_nvfp4


def numbers(dtype):
    """All finite numbers of a small type, those with even codes marked."""
    bits = 4 if np.dtype(dtype) == E2M1 else 8
    codes = np.arange(1 << bits, dtype=np.uint8)
    values = codes.view(dtype).astype(np.float64)
    return [(Fraction(value), code % 2 == 0) for value, code in zip(values, codes, strict=True) if np.isfinite(value)]


def nearest(value, table):
    """Round to the nearest value, ties to even; saturate at the largest."""
    return min(table, key=lambda each: (abs(each[0] - value), not each[1]))[0]


def mxfp8_by_brute_force(run, dtype):
    largest = max(abs(Fraction(float(x))) for x in run)
    top = max(value for value, _ in numbers(dtype))
    exponent = floor_log2(largest) - floor_log2(top) if largest else -127
    factor = Fraction(2) ** max(-127, min(exponent, 127))
    table = numbers(dtype)
    return factor, [nearest(Fraction(float(x)) / factor, table) for x in run]


def floor_log2(value):
    exponent = 0
    while Fraction(2) ** exponent > value:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= value:
        exponent += 1
    return exponent


@pytest.mark.parametrize("dtype", [E4M3, E5M2], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("source", [np.float32, BF16, np.float64, np.float16], ids=lambda d: np.dtype(d).name)
def test_mxfp8_by_brute_force(dtype, source):
    x = (reals(3, 64, dtype=np.float64) * np.exp2(np.arange(3) * 5 - 6)[:, None]).astype(source)
    x[0, :32] = 0
    got = quantise_mxfp8(x, dtype)
    assert got.values.dtype == dtype
    assert got.scales.dtype == E8M0
    assert got.scales.shape == (3, 2)
    for row in range(3):
        for block in range(2):
            part = np.s_[row, 32 * block : 32 * block + 32]
            factor, values = mxfp8_by_brute_force(x[part], dtype)
            assert Fraction(float(got.scales[row, block])) == factor
            assert [Fraction(float(v)) for v in got.values[part]] == values


def test_mxfp8_ties_and_extremes():
    x = np.zeros((1, 32))
    x[0, :6] = [256, 17, 19, 500, -500, 0.4999]  # at scale 1: ties between 16, 18 and 20; more than the largest, 448
    got = quantise_mxfp8(x)
    assert got.scales[0, 0] == 1
    assert got.values[0, :5].astype(float).tolist() == [256, 16, 20, 448, -448]
    huge = quantise_mxfp8(np.full((1, 32), 2.0**300))
    assert float(huge.scales[0, 0]) == 2.0**127
    assert (huge.values.astype(float) == 448).all()


def test_a_block_with_a_nan_is_nan():
    x = np.ones((1, 64), np.float32)
    x[0, 3] = np.inf
    got = quantise_mxfp8(x)
    assert np.isnan(got.values[0, :32].astype(float)).all()
    assert np.isnan(got.scales.astype(np.float32)).tolist() == [[True, False]]
    assert (got.dequantised()[0, 32:] == 1).all()


def nvfp4_by_brute_force(x):
    e4m3, e2m1 = numbers(E4M3), numbers(E2M1)
    largest = Fraction(float(np.abs(x).max()))
    scale = Fraction(float(np.float32(float(largest) / (448 * 6)))) if largest else Fraction(1)
    scales, values = [], []
    for run in x.reshape(-1, 16):
        factor = nearest(max(abs(Fraction(float(v))) for v in run) / 6 / scale, e4m3)
        scales.append(factor)
        values += [nearest(Fraction(float(v)) / (factor * scale), e2m1) if factor else Fraction(0) for v in run]
    return scale, scales, values


def test_nvfp4_by_brute_force():
    x = reals(2, 48, dtype=np.float32) * np.float32(3.7)
    x[0, :16] = 0
    x[1, :16] *= np.float32(1e-6)
    got = quantise_nvfp4(x)
    scale, scales, values = nvfp4_by_brute_force(x)
    assert got.values.dtype == E2M1
    assert Fraction(got.scale) == scale
    assert [Fraction(float(s)) for s in got.scales.ravel()] == scales
    assert [Fraction(float(v)) for v in got.values.ravel()] == values
    assert quantise_nvfp4(np.zeros((2, 16))).scale == 1


@settings(max_examples=60)
@given(st.lists(st.floats(-1e30, 1e30, width=64), min_size=16, max_size=16))
def test_nvfp4_rounds_doubles_once(row):
    x = np.array([row])
    got = quantise_nvfp4(x)
    factor = Fraction(float(got.scales[0, 0])) * Fraction(got.scale)
    if factor:
        exactly = [nearest(Fraction(float(np.float64(v) / float(factor))), numbers(E2M1)) for v in row]
        assert [Fraction(float(v)) for v in got.values[0]] == exactly


@pytest.mark.parametrize(("rows", "runs"), [(1, 1), (128, 4), (129, 5), (300, 11)])
def test_interleaved_scales_have_the_layout_of_the_tensor_core(rows, runs):
    scales = np.random.default_rng().integers(1, 255, (rows, runs), np.uint8).view(E8M0)
    atoms = interleave_scales(scales)
    down, along = -(-rows // 128), -(-runs // 4)
    assert atoms.shape == (down, along, 32, 4, 4)
    flat = atoms.view(np.uint8).reshape(down, along, 512)
    for row in range(rows):
        for run in range(runs):
            byte = (row % 32) * 16 + (row % 128 // 32) * 4 + run % 4
            assert flat[row // 128, run // 4, byte] == scales.view(np.uint8)[row, run]
    assert np.count_nonzero(flat) == rows * runs


def test_dequantised_arrays_are_close_to_the_original():
    x = reals(5, 7, 64, dtype=np.float32)
    for made, error in ((quantise_mxfp8(x), 0.13), (quantise_nvfp4(x), 0.27)):
        size = np.abs(x).reshape(5, 7, -1, 16).max(-1).repeat(16, -1)
        assert made.dequantised().shape == x.shape
        assert (np.abs(made.dequantised() - x) <= error * np.maximum(size, np.abs(x).max() / 400)).all()
    assert ml_dtypes.finfo(E4M3).max == 448
