"""Scaled GEMMs against float64: exact if the scales are powers of two, otherwise within the tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.references import BF16, E2M1, E4M3, E5M2, E8M0, close, exact, integers, poisoned, reals, rounded

from warploom.ops import (
    block_scaled_matmul,
    blockwise_matmul,
    interleave_scales,
    quantise_mxfp8,
    quantise_nvfp4,
)
from warploom.structured.config import BlockwiseFP8MatmulConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

RNG = np.random.default_rng()


def powers(*shape, dtype=np.float32):
    return (2.0 ** RNG.integers(-2, 3, shape)).astype(dtype)


def spread(scales, rows, columns, shape):
    """Scales for each element."""
    return np.repeat(np.repeat(exact(scales), rows, 0), columns, 1)[: shape[0], : shape[1]]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 16), (45, 130, 300), (128, 128, 128), (129, 257, 130)])
def test_blockwise_scales(m, n, k):
    a, b = integers(m, k, dtype=E4M3), integers(n, k, dtype=E4M3)
    of_a, of_b = powers(m, -(-k // 128)), powers(-(-n // 128), -(-k // 128))
    wanted = (exact(a) * spread(of_a, 1, 128, a.shape)) @ (exact(b) * spread(of_b, 128, 128, b.shape)).T
    np.testing.assert_array_equal(blockwise_matmul(a, b, of_a, of_b, out_dtype=np.float32), wanted)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=lambda d: np.dtype(d).name)
def test_scales_of_any_strides(order, dtype):
    a, b = integers(72, 300, dtype=E5M2), integers(40, 300, dtype=E4M3)
    of_a, of_b = np.asarray(powers(72, 3, dtype=dtype), order=order), np.asarray(powers(1, 3, dtype=dtype), order=order)
    wanted = (exact(a) * spread(of_a, 1, 128, a.shape)) @ (exact(b) * spread(of_b, 128, 128, b.shape)).T
    out = poisoned((72, 40), np.float32)
    blockwise_matmul(a, b, of_a, of_b, out=out, activation="relu", epilogue=lambda acc, at: acc + 1)
    np.testing.assert_array_equal(out, np.maximum(wanted, 0) + 1)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=lambda d: np.dtype(d).name)
def test_blockwise_with_empty_k(target, dtype):
    a, b, bias = np.zeros((45, 0), E4M3), np.zeros((130, 0), E4M3), integers(130)
    found = blockwise_matmul(a, b, np.zeros((45, 0), dtype), np.zeros((2, 0), dtype), bias=bias, target=target)
    np.testing.assert_array_equal(exact(found), np.broadcast_to(exact(bias), (45, 130)))


FORMATS = {
    "MXFP8": (E4M3, E8M0, 32, 1),
    "MXFP8 of e5m2": (E5M2, E8M0, 32, 1),
    "MXFP4": (E2M1, E8M0, 32, 1),
    "NVFP4": (E2M1, E4M3, 16, 3),
}


@pytest.mark.parametrize("name", FORMATS)
def test_block_scaled_with_empty_k(name):
    dtype, scale_type, *_ = FORMATS[name]
    factors = np.zeros((45, 0), dtype), np.zeros((24, 0), dtype)
    scales = np.zeros((45, 0), scale_type), np.zeros((24, 0), scale_type)
    bias = integers(24)
    found = block_scaled_matmul(*factors, *scales, bias=bias)
    np.testing.assert_array_equal(exact(found), np.broadcast_to(exact(bias), (45, 24)))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 7, 32), (130, 140, 352)])
def test_block_scaled(name, m, n, k):
    dtype, scale_type, run, odd = FORMATS[name]
    a, b = integers(m, k, dtype=dtype, largest=2), integers(n, k, dtype=dtype, largest=2)
    of_a, of_b = (exact(powers(rows, k // run)) * odd for rows in (m, n))
    given = of_a.astype(np.float32).astype(scale_type), of_b.astype(np.float32).astype(scale_type)
    wanted = 0.5 * (exact(a) * np.repeat(of_a, run, 1)) @ (exact(b) * np.repeat(of_b, run, 1)).T
    got = block_scaled_matmul(a, b, *given, alpha=0.5, out_dtype=np.float32)
    np.testing.assert_array_equal(exact(got), wanted)
    again = block_scaled_matmul(a, b, *map(interleave_scales, given), alpha=0.5, out_dtype=np.float32)
    np.testing.assert_array_equal(exact(again), wanted)


@pytest.mark.parametrize("quantise", [quantise_mxfp8, quantise_nvfp4], ids=lambda f: f.__name__)
def test_quantised_gemms(quantise):
    a, b = quantise(reals(66, 192, dtype=np.float32)), quantise(reals(40, 192, dtype=np.float32))
    got = block_scaled_matmul(a.values, b.values, a.scales, b.scales, alpha=a.scale * b.scale, out_dtype=np.float32)
    factors = (exact(q.values) * np.repeat(exact(q.scales), q.values.shape[1] // q.scales.shape[1], 1) for q in (a, b))
    left, right = factors
    assert close(got, left @ right.T * a.scale * b.scale, 192)


def test_epilogues_of_scaled_gemms():
    a, b = integers(45, 64, dtype=E4M3), integers(40, 64, dtype=E4M3)
    bias, residual = integers(40), integers(45, 40)
    options = {"bias": bias, "residual": residual, "beta": 2, "alpha": 3, "out_dtype": np.float32, "activation": "relu"}
    wanted = np.maximum(3 * exact(a) @ exact(b).T + exact(bias), 0) + 2 * exact(residual)
    ones = np.ones((45, 1), np.float32), np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(exact(blockwise_matmul(a, b, *ones, **options)), wanted)
    ones = np.ones((45, 2), np.float32).astype(E8M0), np.ones((40, 2), np.float32).astype(E8M0)
    np.testing.assert_array_equal(exact(block_scaled_matmul(a, b, *ones, **options)), wanted)


BLOCKWISE = {
    "cooperative": HopperBlockwiseConfig(tile=(128, 64)),
    "64s of rows in turn": HopperBlockwiseConfig(tile=(256, 64), num_output_stages=1),
    "one consumer": HopperBlockwiseConfig(tile=(64, 48), consumers=1),
    "a cluster": HopperBlockwiseConfig(tile=(128, 64), cluster_shape=(2, 1, 1)),
    "Blackwell": BlockwiseFP8MatmulConfig(cta_group=1),
    "Blackwell, two CTAs": BlockwiseFP8MatmulConfig(),
}


@pytest.mark.parametrize("n", [136, 75])
@pytest.mark.parametrize("name", BLOCKWISE)
def test_outputs_of_blockwise_gemms(name, n):
    a, b, bias = integers(133, 200, dtype=E4M3, largest=2), integers(n, 200, dtype=E4M3, largest=2), integers(n)
    of_a, of_b = powers(133, 2), powers(-(-n // 128), 2)
    kept = {"pre_activation": poisoned((133, n), np.float32), "double": poisoned((133, n), BF16)}
    got = blockwise_matmul(
        a, b, of_a, of_b, bias=bias, activation="relu", outputs=kept, config=BLOCKWISE[name], out_dtype=np.float32,
        epilogue=lambda acc, at: {"out": acc + 1, "double": acc * 2},
    )  # fmt: skip
    before = (exact(a) * spread(of_a, 1, 128, a.shape)) @ (exact(b) * spread(of_b, 128, 128, b.shape)).T + exact(bias)
    np.testing.assert_array_equal(kept["pre_activation"], before)
    np.testing.assert_array_equal(got, np.maximum(before, 0) + 1)
    np.testing.assert_array_equal(exact(kept["double"]), rounded(2 * np.maximum(before, 0), BF16))


@pytest.mark.parametrize("name", FORMATS)
def test_outputs_of_block_scaled_gemms(name):
    dtype, scale_type, run, _ = FORMATS[name]
    a, b = integers(45, 64, dtype=dtype, largest=2), integers(40, 64, dtype=dtype, largest=2)
    ones = (np.ones((rows, 64 // run), np.float32).astype(scale_type) for rows in (45, 40))
    before = poisoned((45, 40), np.float32)
    got = block_scaled_matmul(a, b, *ones, activation="relu", outputs={"pre_activation": before}, out_dtype=np.float32)
    np.testing.assert_array_equal(before, exact(a) @ exact(b).T)
    np.testing.assert_array_equal(got, np.maximum(before, 0))
