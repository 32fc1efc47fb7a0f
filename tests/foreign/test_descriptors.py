"""Descriptors and tensor maps of the library against those of Gluon's and Triton's kernels for the same layouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.foreign.descriptors import FILE, recorded

import warploom as wl
from warploom.host.launch import Launch
from warploom.structured.config import BlockScaledMatmulConfig

HELD: Mapping[str, Any] = json.loads(FILE.read_text("utf-8"))["kernels"]
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def zeros(*shape: int, dtype: Any) -> Any:
    return np.zeros(shape, dtype)


def linear(m: int, n: int, k: int, dtype: Any, config: Any) -> Launch:
    return wl.linear.bind(zeros(m, k, dtype=dtype), zeros(n, k, dtype=dtype), config=config)


def blackwell(cta_group: int, m: int, n: int, k: int) -> wl.MatmulConfig:
    return wl.MatmulConfig(cta_group=cta_group, mma_shape=(m, n, k))


def two_ctas() -> Launch:
    a, b = zeros(256, 128, dtype=np.float16), zeros(128, 256, dtype=np.float16)
    return wl.matmul.bind(a, b, config=blackwell(2, 256, 128, 16))


def scaled(values: Any, scales: Any) -> Launch:
    """128 × 128 × 256: elements of 8 bits, or of 4, two in a byte."""
    k = 32 * 128 // values.shape[1] * 2
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, 128, k))
    return wl.block_scaled_matmul.bind(values, values, scales, scales, config=config)


def weights_of_four_bits() -> Launch:
    """8-bit activations times 4-bit weights, which TMA pads to bytes."""
    a, b = zeros(128, 256, dtype=E4M3), zeros(128, 128, dtype=np.uint8)
    scales = zeros(128, 8, dtype=E8M0)
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, 128, 32), b_type="e2m1")
    return wl.block_scaled_matmul.bind(a, b, scales, scales, config=config)


OURS: Mapping[str, Callable[[], Launch]] = {
    "wgmma_ring_sm90": lambda: linear(128, 128, 256, np.float16, wl.HopperConfig(tile=(64, 64), consumers=1)),
    "wgmma_ring_e4m3_sm90": lambda: linear(64, 96, 256, E4M3, wl.HopperConfig(tile=(64, 32), consumers=1)),
    "tcgen05_ring_sm100": lambda: linear(128, 128, 256, np.float16, blackwell(1, 128, 64, 16)),
    "tcgen05_ring_m64_sm100": lambda: linear(64, 128, 192, BF16, blackwell(1, 64, 128, 16)),
    "tcgen05_ring_16x256b_sm100": lambda: linear(128, 64, 256, E4M3, blackwell(1, 128, 64, 32)),
    "two_cta_matmul_sm100": two_ctas,
    "block_scaled_mxfp8_sm100": lambda: scaled(zeros(128, 256, dtype=E4M3), zeros(128, 8, dtype=E8M0)),
    "block_scaled_mxfp4_sm100": lambda: scaled(zeros(128, 128, dtype=np.uint8), zeros(128, 8, dtype=E8M0)),
    "block_scaled_nvfp4_sm100": lambda: scaled(zeros(128, 128, dtype=np.uint8), zeros(128, 16, dtype=E4M3)),
}


def test_every_recorded_kernel_is_compared():
    assert {f"gluon_{name}" for name in OURS} | {"triton_scaled_mixed_sm100"} == set(HELD)


def test_descriptors_of_weights_with_four_bits_are_those_of_triton():
    found = recorded(lambda: wl.launch(weights_of_four_bits()))
    held = HELD["triton_scaled_mixed_sm100"]
    assert found["mmas"] == held["mmas"]
    assert found["steps"] == held["steps"]


@pytest.mark.parametrize("name", OURS)
def test_descriptors_and_maps_are_those_of_gluon(name):
    bound, held = OURS[name](), HELD[f"gluon_{name}"]
    found = recorded(lambda: wl.launch(bound))
    assert found == {key: held[key] for key in found}
    for operand, map_ in zip("ab", bound.args, strict=False):
        rows = map_.geometry.box[0]
        assert [rows, map_.geometry.box_bytes // rows, map_.geometry.swizzle.name] == held[f"{operand}_box"]


def test_a_wrong_stride_is_noticed():
    held = HELD["gluon_tcgen05_ring_sm100"]
    other = recorded(lambda: wl.launch(linear(128, 128, 256, np.float16, blackwell(1, 128, 128, 16))))
    assert other["mmas"] != held["mmas"]
