"""Convolutions on a Hopper GPU against PyTorch's in float64, to the bit: im2col tensor maps of the driver's encoder."""

from __future__ import annotations

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom as wl

pytestmark = needs_hopper


def ints(*shape, dtype=None):
    made = torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)
    return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made


def convolved(x, w, **options):
    return torch.nn.functional.conv2d(x.double(), w.double(), **options)


def same(found, want):
    torch.testing.assert_close(found.double(), want.double(), rtol=0, atol=0)


CASES = [
    ((3, 64, 5, 7), (40, 1, 1), {}),
    ((1, 72, 9, 8), (136, 3, 3), {"padding": 1}),
    ((2, 8, 57, 43), (24, 7, 7), {"stride": 2, "padding": 3}),
    ((2, 24, 11, 9), (8, 3, 3), {"dilation": 2, "padding": 2}),
    ((3, 136, 10, 13), (72, 2, 3), {"stride": (3, 2), "padding": (0, 2), "dilation": (2, 3)}),
    ((1, 16, 1, 150), (16, 1, 5), {"padding": (0, 2)}),
    ((1, 16, 1, 1), (16, 2, 2), {"padding": 3}),
    ((2, 16, 17, 17), (16, 1, 1), {"stride": 8}),
    ((1, 8, 4, 4), (13, 2, 2), {}),
    ((2, 3, 30, 31), (64, 3, 3), {"padding": 1}),
    ((8, 64, 56, 56), (64, 3, 3), {"padding": 1}),
    ((4, 256, 28, 28), (512, 3, 3), {"stride": 2, "padding": 1}),
    ((1, 32, 200, 160), (48, 3, 3), {"dilation": 40, "padding": 40}),
]


@pytest.mark.parametrize(("images", "filters", "options"), CASES)
def test_sizes(images, filters, options):
    x, w = ints(*images), ints(filters[0], images[1], *filters[1:])
    for _ in range(2):  # planned, then launched from the cache
        same(wl.conv2d(x, w, out_dtype=torch.float32, **options), convolved(x, w, **options))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float8_e4m3fn"])
def test_types(dtype):
    x, w = ints(2, 64, 14, 14, dtype=getattr(torch, dtype)), ints(96, 64, 3, 3, dtype=getattr(torch, dtype))
    same(wl.conv2d(x, w, padding=1, out_dtype=torch.float32), convolved(x, w, padding=1))


CONFIGS = {
    "chosen": None,
    "warpgroups": wl.HopperConfig(tile=(128, 128), residual_in_place=True),
    "ping-pong": wl.HopperConfig(tile=(64, 128), pingpong=True),
    "swapped": wl.HopperConfig(tile=(64, 96), consumers=1, AB_swapped=True),
    "multicast": wl.HopperConfig(tile=(128, 128), cluster_shape=(2, 2, 1)),
    "multicast, swapped": wl.HopperConfig(tile=(64, 96), consumers=1, AB_swapped=True, cluster_shape=(2, 1, 1)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_epilogues(name):
    x, w, bias, residual = ints(5, 72, 19, 23), ints(200, 72, 3, 3), ints(200), ints(5, 200, 10, 12)
    out = torch.full_like(residual, torch.nan)
    given = {"bias": bias, "residual": residual, "beta": 2.0, "activation": "relu", "config": CONFIGS[name]}
    assert wl.conv2d(x, w, stride=2, padding=1, out=out, **given) is out
    wanted = torch.relu(convolved(x, w, stride=2, padding=1) + bias.double()[:, None, None]) + 2 * residual.double()
    same(out, wanted.bfloat16())


def test_layouts_and_graphs():
    x, w = ints(2, 32, 9, 9).contiguous(), ints(24, 32, 3, 3).contiguous()  # NCHW in memory: by way of a copy
    same(wl.conv2d(x, w, out_dtype=torch.float32), convolved(x, w))
    x, w = ints(4, 64, 14, 14), ints(64, 64, 3, 3)
    wl.conv2d(x, w, padding=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = wl.conv2d(x, w, padding=1)
    x.copy_(ints(4, 64, 14, 14))
    graph.replay()
    same(made, convolved(x, w, padding=1).bfloat16())
