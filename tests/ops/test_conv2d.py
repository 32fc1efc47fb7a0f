"""Convolutions against a plain loop over taps in float64, to the bit."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.assembly import assemble_ok
from tests.ops.references import BF16, exact, integers, poisoned, rounded

import warploom as wl
from warploom.diagnostics import WarploomError
from warploom.host.tensor_map import TensorMap

RNG = np.random.default_rng()
BLACKWELL, HOPPER = wl.MatmulConfig, wl.HopperConfig


def convolved(x, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1)):
    """The convolution of images (n, h, w, c) with filters (k, r, s, c), tap by tap."""
    images = np.pad(exact(x), ((0, 0), *((pad, pad) for pad in padding), (0, 0)))
    reach = [step * (extent - 1) for step, extent in zip(dilation, w.shape[1:3], strict=True)]
    down, along = (
        (extent - far - 1) // step + 1 for extent, far, step in zip(images.shape[1:3], reach, stride, strict=True)
    )
    made = np.zeros((x.shape[0], down, along, w.shape[0]))
    for r, s in np.ndindex(*w.shape[1:3]):
        top, left = r * dilation[0], s * dilation[1]
        taken = images[:, top :: stride[0], left :: stride[1]][:, :down, :along]
        made += taken @ exact(w[:, r, s]).T
    return made


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


CASES = {
    "1x1": ((3, 5, 7, 64), (40, 1, 1), {}),
    "3x3": ((1, 9, 8, 72), (136, 3, 3), {"padding": 1}),
    "7x7, stride 2": ((1, 17, 13, 8), (24, 7, 7), {"stride": 2, "padding": 3}),
    "dilation": ((2, 11, 9, 24), (8, 3, 3), {"dilation": 2, "padding": 2}),
    "all different": ((3, 10, 13, 136), (72, 2, 3), {"stride": (3, 2), "padding": (0, 2), "dilation": (2, 3)}),
    "rows of pixels": ((1, 1, 150, 16), (16, 1, 5), {"padding": (0, 2)}),
    "padding alone": ((1, 1, 1, 16), (16, 2, 2), {"padding": 3}),
    "strides beyond the filter": ((2, 9, 9, 16), (16, 1, 1), {"stride": 8}),
    "columns of K": ((1, 4, 4, 8), (13, 2, 2), {}),
    "few channels": ((1, 9, 9, 3), (16, 3, 3), {"padding": 1}),
}
SCHEDULES = ("eager", "lazy", "reverse", "random")


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_sizes(name, target):
    images, filters, options = CASES[name]
    x, w = integers(*images, largest=2), integers(*filters, images[-1], largest=2)
    wanted = convolved(x, w, **{key: pair(value) for key, value in options.items()})
    out = poisoned(wanted.shape, np.float32)
    bound = wl.conv2d.bind(x, w, out=out, target=target, **options)
    wl.launch(bound, schedule=SCHEDULES[list(CASES).index(name) % 4], seed=int(RNG.integers(1 << 30)))
    np.testing.assert_array_equal(out, wanted)


CONFIGS = {
    "one CTA": (BLACKWELL(cta_group=1, mma_shape=(128, 64, 16), use_tma_epilogue_load=True), "lazy"),
    "64 rows": (BLACKWELL(cta_group=1, mma_shape=(64, 72, 16)), "reverse"),
    "pair": (BLACKWELL(cta_group=2, mma_shape=(256, 64, 16), use_tma_epilogue_load=True), "random"),
    "swapped": (BLACKWELL(cta_group=1, mma_shape=(128, 48, 16), AB_swapped=True), "eager"),
    "multicast": (BLACKWELL(cta_group=1, mma_shape=(128, 64, 16), cluster_shape=(2, 2, 1)), "reverse"),
    "grouped K tiles": (BLACKWELL(cta_group=1, mma_shape=(64, 32, 16), k_group_size=2), "eager"),
    "warpgroups": (HOPPER(tile=(128, 64), residual_in_place=True), "random"),
    "ping-pong": (HOPPER(tile=(64, 64), pingpong=True), "lazy"),
    "Hopper, swapped": (HOPPER(tile=(64, 48), consumers=1, AB_swapped=True), "reverse"),
    "Hopper, multicast": (HOPPER(tile=(64, 64), consumers=1, cluster_shape=(2, 2, 1)), "eager"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_with_an_epilogue(name):
    config, schedule = CONFIGS[name]
    x, w = integers(3, 9, 7, 72, largest=2), integers(80, 3, 3, 72, largest=2)
    bias, residual = integers(80), integers(3, 5, 4, 80)
    out = poisoned(residual.shape, BF16)
    options = {"bias": bias, "residual": residual, "beta": 2.0, "activation": "relu", "stride": 2, "padding": 1}
    wl.launch(wl.conv2d.bind(x, w, out=out, config=config, **options), schedule=schedule, seed=5)
    wanted = np.maximum(convolved(x, w, (2, 2), (1, 1)) + exact(bias), 0) + 2 * exact(residual)
    np.testing.assert_array_equal(exact(out), rounded(wanted, BF16))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.float8_e4m3fn])
def test_element_types(dtype):
    x, w = integers(2, 5, 5, 48, dtype=dtype, largest=2), integers(16, 3, 3, 48, dtype=dtype, largest=2)
    np.testing.assert_array_equal(wl.conv2d(x, w, padding=1, out_dtype=np.float32), convolved(x, w, padding=(1, 1)))


def test_arrays_of_any_strides():
    x = integers(2, 24, 6, 5).transpose(0, 2, 3, 1)
    w = integers(16, 3, 3, 48)[..., ::2]
    out = poisoned((16, 2, 4, 3), np.float32).transpose(1, 2, 3, 0)
    assert wl.conv2d(x, w, out=out) is out
    np.testing.assert_array_equal(out, convolved(x, w))
    assert wl.conv2d(x[:0], w).shape == (0, 4, 3, 16)


def test_functions_see_the_pixels_of_all_images():
    x, w = integers(3, 4, 5, 16), integers(8, 1, 1, 16)
    got = wl.conv2d(x, w, epilogue=lambda acc, at: acc + (at.row * 100).to("f32"), out_dtype=np.float32)
    np.testing.assert_array_equal(got, convolved(x, w) + 100.0 * np.arange(60).reshape(3, 4, 5, 1))


def test_channels_beyond_the_last_are_zeros_in_both_operands():
    """A K tile that read on into the next tap would multiply its infinity by a zero of A."""
    x, w = np.ones((1, 4, 4, 72), BF16), np.ones((8, 2, 2, 72), BF16)
    w[:, 1, 0, :8] = np.inf
    assert (wl.conv2d(x, w) == np.inf).all()


@settings(max_examples=8)
@given(data=st.data())
def test_random_convolutions(data):
    """Fresh sizes, strides, paddings, dilations, schedules and targets."""
    draw = data.draw
    two = st.tuples(st.integers(1, 4), st.integers(1, 4))
    filters, stride, dilation = draw(two), draw(two), draw(two)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    reach = [step * (extent - 1) + 1 - 2 * pad for step, extent, pad in zip(dilation, filters, padding, strict=True)]
    extents = [draw(st.integers(max(least, 1), max(least, 1) + 9)) for least in reach]
    images, channels, columns = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from((3, 8, 56, 64, 72))),
        draw(st.integers(1, 99)),
    )
    x, w = integers(images, *extents, channels, largest=2), integers(columns, *filters, channels, largest=2)
    wanted = convolved(x, w, stride, padding, dilation)
    out, options = poisoned(wanted.shape, np.float32), {"stride": stride, "padding": padding, "dilation": dilation}
    bound = wl.conv2d.bind(x, w, out=out, target=draw(st.sampled_from(("sm_100a", "sm_90a"))), **options)
    wl.launch(bound, schedule=draw(st.sampled_from(SCHEDULES)), seed=draw(st.integers(0, 1 << 30)))
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
def test_no_interleaving_is_wrong(target):
    x, w, residual = integers(1, 6, 5, 72), integers(24, 2, 2, 72), integers(1, 4, 3, 24)
    options = {"stride": 2, "padding": 1, "bias": integers(24), "residual": residual, "target": target}
    report = wl.check(wl.conv2d.bind(x, w, **options))
    assert report.verdict is wl.Verdict.PROVED, str(report)


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
def test_one_launch_reads_the_images_in_place(target):
    x, w = integers(2, 6, 6, 64), integers(32, 3, 3, 64)
    residual, out = integers(2, 6, 6, 32), poisoned((2, 6, 6, 32), BF16)
    plan = wl.conv2d.plan(x, w, padding=1, bias=integers(32), residual=residual, out=out, target=target)
    maps = [each for each in plan.launch.args if isinstance(each, TensorMap)]
    assert plan.staged is None
    assert {id(each.array.base if each.array.base is not None else each.array) for each in maps} >= {id(x), id(w)}
    modes = {each.geometry.mode: each.array for each in maps}
    assert modes["im2col"] is x
    text = wl.ptx_of(wl.conv2d, x, w, padding=1, bias=integers(32), residual=residual, target=target)
    assert re.search(r"cp\.async\.bulk\.tensor\.4d\.im2col\.shared::cluster\.global\.", text)
    arrays = [each for each in plan.launch.args if isinstance(each, np.ndarray)]
    assert sum(each.size for each in arrays) <= 32  # the bias; all else are views of the caller's arrays


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
def test_assembles_without_a_spill(target):
    x, w = integers(2, 16, 16, 64), integers(256, 3, 3, 64)
    residual = integers(2, 16, 16, 256)
    options = {"bias": integers(256), "residual": residual, "activation": "gelu", "padding": 1, "target": target}
    assert all(kernel.spill_stores == 0 for kernel in assemble_ok(wl.conv2d.bind(x, w, **options)).kernels)


REFUSED = {
    "`w` must have 16 channels, those of `x`": {"w": (8, 3, 3, 24)},
    "`x` must have 4 axes, not 3": {"x": (5, 5, 16)},
    "`w` must have pixels and channels": {"w": (8, 0, 3, 16)},
    "the result would be (-1, 3) pixels": {"w": (8, 7, 3, 16)},
    "`stride` must be a whole number of at least 1, or two of them": {"stride": 0},
    "`padding` must be a whole number of at least 0, or two of them": {"padding": (1, -1)},
    "`dilation` must be a whole number of at least 1, or two of them": {"dilation": (1, 1, 1)},
    "`stride` must be at most 8, the limit of im2col maps": {"stride": 9},
    "`padding` must be below 128, the limit of im2col maps": {"padding": 130},
    "`dilation` must reach at most 178 pixels": {"dilation": 100, "padding": 50, "x": (1, 150, 150, 16)},
    "num_split_k=2: a convolution is not split along K": {"config": BLACKWELL(num_split_k=2)},
    "stream_k=True: a convolution is not split along K": {"config": HOPPER(tile=(128, 128), stream_k=True)},
    "`bias` must broadcast to D, which is (1, 3, 3, 8)": {"bias": np.zeros(7, np.float32)},
}


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_arguments(words):
    options = dict(REFUSED[words])
    x, w = (integers(*options.pop(name, shape)) for name, shape in (("x", (1, 5, 5, 16)), ("w", (8, 3, 3, 16))))
    with pytest.raises(WarploomError) as error:
        wl.conv2d(x, w, **options)
    assert words in str(error.value)


def test_all_wrong_arguments_are_reported_together():
    with pytest.raises(WarploomError) as error:
        wl.conv2d(integers(2, 3, 4), integers(8, 3, 3, 16), stride=0, padding=0.5, dilation="2", activation="soft")
    for name in ("x", "stride", "padding", "dilation", "activation"):
        assert f"`{name}` must" in str(error.value)
