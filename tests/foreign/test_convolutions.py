"""im2col maps and descriptors of `conv2d` against those of Gluon's convolution for the same layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.foreign.descriptors import recorded

import warploom as wl

HELD = json.loads(Path(__file__).with_name("convolutions.json").read_text("utf-8"))["rows"]
BF16 = ml_dtypes.bfloat16


def bound(row: dict[str, Any], config: Any) -> wl.Launch:
    x, w = np.zeros(row["images"], BF16), np.zeros(row["filters"], BF16)
    return wl.conv2d.bind(x, w, stride=row["stride"], padding=row["padding"], config=config)


def pixels(map_: dict[str, Any]) -> list[list[int]]:
    """The places of an axis that the box of pixels steps on: an upper corner between two of them changes nothing."""
    axes = zip(
        map_["shape"][1:3], map_["lower_corner"], map_["upper_corner"], map_["element_strides"][1:3], strict=True
    )
    return [list(range(low, extent + high, step)) for extent, low, high, step in axes]


@pytest.mark.parametrize("number", range(len(HELD)))
def test_im2col_maps_and_descriptors_are_those_of_gluon(number):
    row = HELD[number]
    launched = bound(row, wl.MatmulConfig(cta_group=1, mma_shape=(128, 128, 16)))
    geometry = launched.args[0].geometry
    found = {
        "box": list(geometry.box),
        "swizzle": geometry.swizzle.name,
        "shape": list(geometry.shape),
        "strides": [*geometry.strides, 2],
        "dtype": geometry.element.name,
        "mode": geometry.mode,
        "lower_corner": list(geometry.lower_corner),
        "element_strides": list(geometry.element_strides),
    }
    assert found == {key: row["map"][key] for key in found}
    ours = {**found, "upper_corner": list(geometry.upper_corner)}
    assert pixels(ours) == pixels(row["map"])
    is_whole = all((extent + high - low - 1) % step == 0 for extent, low, high, step in zip(
        found["shape"][1:3], found["lower_corner"], ours["upper_corner"], found["element_strides"][1:3], strict=True
    ))  # fmt: skip
    assert (ours["upper_corner"] == row["map"]["upper_corner"]) == is_whole
    descriptors = recorded(lambda: wl.launch(launched))
    assert (descriptors["mmas"], descriptors["steps"]) == (row["mmas"], row["steps"])


def test_another_padding_is_noticed():
    geometry = bound({**HELD[0], "padding": 0}, wl.MatmulConfig(cta_group=1, mma_shape=(128, 128, 16))).args[0].geometry
    assert list(geometry.lower_corner) != HELD[0]["map"]["lower_corner"]
