"""Descriptors, scale layouts and im2col maps of the library against those that nvcc makes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.foreign.descriptors import recorded
from tests.foreign.nvcc import FILE, digest
from tests.foreign.test_descriptors import OURS as OF_GLUON
from tests.foreign.test_descriptors import blackwell, linear, weights_of_four_bits, zeros

import warploom as wl
from warploom.host.launch import Launch
from warploom.ops import interleave_scales

HELD: Mapping[str, Any] = json.loads(FILE.read_text("utf-8"))
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


OURS: Mapping[str, Callable[[], Launch]] = {
    "wgmma": lambda: linear(64, 96, 128, np.float16, wl.HopperConfig(tile=(64, 96), consumers=1)),
    "wgmma e4m3": lambda: linear(64, 48, 256, E4M3, wl.HopperConfig(tile=(64, 48), consumers=1)),
    "f16": OF_GLUON["tcgen05_ring_sm100"],
    "bf16 M=64": OF_GLUON["tcgen05_ring_m64_sm100"],
    "f8f6f4": OF_GLUON["tcgen05_ring_16x256b_sm100"],
    "f16 pair": OF_GLUON["two_cta_matmul_sm100"],
    "tf32": lambda: linear(128, 64, 64, np.float32, blackwell(1, 128, 64, 8)),
    "mxfp8": OF_GLUON["block_scaled_mxfp8_sm100"],
    "mxfp4": OF_GLUON["block_scaled_mxfp4_sm100"],
    "nvfp4": OF_GLUON["block_scaled_nvfp4_sm100"],
    "w4a8": weights_of_four_bits,
}


def test_every_layout_is_compared():
    assert set(OURS) == set(HELD["layouts"])


@pytest.mark.parametrize("name", OURS)
def test_descriptors_are_those_of_nvcc(name):
    bound, held = OURS[name](), HELD["layouts"][name]
    found = recorded(lambda: wl.launch(bound))
    assert found["mmas"]
    if "instruction" not in held:
        assert (
            [each["operand"] for each in found["mmas"]]
            == [held["a"]] * len(found["mmas"])
            == [held["b"]] * len(found["mmas"])
        )
        return
    for each in found["mmas"]:  # the MMAs of a K tile differ in the scale factors that they select
        selected = {field for field in each["instruction"] if field.endswith("_id")}
        fields = {field: value for field, value in each["instruction"].items() if field not in selected}
        assert fields == {field: value for field, value in held["instruction"].items() if field not in selected}
        assert {side: each[side] for side in "ab"} == {side: held[side] for side in "ab"}
    assert all(each == held["copy"] for each in found["copies"])
    assert bool(found["copies"]) == ("copy" in held)


@pytest.mark.parametrize("held", HELD["scales"], ids=lambda held: f"runs of {held['run']}")
def test_scales_are_in_the_order_of_cutlass(held):
    """Interleaved numbers say where each scale factor went."""
    count = held["k"] // held["run"]
    numbers = np.arange(held["rows"] * count).reshape(held["rows"], count)
    low, high = (interleave_scales((part).astype(np.uint8).view(E8M0)).view(np.uint8).ravel() for part in (numbers % 251, numbers // 251))  # fmt: skip
    offsets = np.empty(numbers.size, np.int32)
    offsets[low.astype(int) + 251 * high.astype(int)] = np.arange(low.size)
    assert digest(offsets) == held["offsets"]


CONVOLUTIONS = (
    ((2, 57, 43, 64), 3, {"padding": 1}, BF16),
    ((2, 57, 43, 72), 7, {"stride": 2, "padding": 3}, BF16),
    ((3, 40, 31, 136), 3, {"stride": 3, "padding": 4, "dilation": 2}, BF16),
    ((2, 14, 14, 144), 1, {"stride": 2}, E4M3),
)
"""The convolutions of `descriptors.cu`."""


@pytest.mark.parametrize("number", range(len(CONVOLUTIONS)))
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_im2col_maps_are_those_of_cutlass(number, target):
    shape, taps, moves, dtype = CONVOLUTIONS[number]
    config = (
        wl.HopperConfig(tile=(128, 64))
        if target == "sm_90a"
        else blackwell(1, 128, 64, 16 * 2 // np.dtype(dtype).itemsize)
    )
    x, w = zeros(*shape, dtype=dtype), zeros(64, taps, taps, shape[-1], dtype=dtype)
    map_ = wl.conv2d.bind(x, w, **moves, config=config).args[0]
    held = HELD["im2col"][number]
    geometry = map_.geometry
    found = {
        "box": list(geometry.box),
        "lower_corner": list(geometry.lower_corner),
        "upper_corner": list(geometry.upper_corner),
        "element_strides": list(geometry.element_strides),
        "swizzle": geometry.swizzle.name,
        "dtype": geometry.element.name,
        "shape": list(geometry.shape),
        "strides": [*geometry.strides, np.dtype(dtype).itemsize],
    }
    assert found == {key: held[key] for key in found}
