"""Timelines on a Hopper GPU: nanoseconds of each role and tile, in order, and results that they do not change."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.gpu.here import needs_hopper, torch

import warploom as wl

pytestmark = needs_hopper

FP8 = torch.float8_e4m3fn if torch is not None else None
LONGEST = 50_000_000
"""Nanoseconds that no launch here takes, even on a busy GPU."""


def ints(*shape, dtype=None):
    return torch.randint(-2, 3, shape, device="cuda").to(dtype or torch.bfloat16)


def of_linear(**options):
    return lambda: (wl.linear, {"x": ints(2048, 1024), "w": ints(2048, 1024), **options}, (2048, 2048))


def of_groups():
    ends = torch.tensor([100, 1000, 2000], dtype=torch.int32, device="cuda")
    return wl.grouped_matmul, {"a": ints(2000, 512), "b": ints(3, 512, 1024), "ends": ends}, (2000, 1024)


def of_blocks():
    scales = torch.ones(8, 1024, device="cuda").T, torch.ones(8, 8, device="cuda")
    a, b = ints(1024, 1024, dtype=FP8), ints(1024, 1024, dtype=FP8)
    return wl.blockwise_matmul, {"a": a, "b": b, "a_scale": scales[0], "b_scale": scales[1]}, (1024, 1024)


def of_pairs():
    return wl.gated_linear, {"x": ints(512, 1024), "w_gate": ints(1024, 1024), "w_up": ints(1024, 1024)}, (512, 1024)


def of_images():
    x, w = (ints(*shape).permute(0, 3, 1, 2) for shape in ((8, 28, 28, 64), (128, 3, 3, 64)))
    return wl.conv2d, {"x": x, "w": w, "padding": 1}, (8, 28, 28, 128)


CALLS = {
    "GEMM": of_linear(),
    "ping-pong": of_linear(config=wl.HopperConfig(tile=(64, 128), pingpong=True)),
    "splits in a cluster": of_linear(config=wl.HopperConfig(tile=(128, 128), num_split_k=2)),
    "stream-K": of_linear(config=wl.HopperConfig(tile=(128, 128), stream_k=True)),
    "grouped": of_groups,
    "blockwise": of_blocks,
    "gated": of_pairs,
    "conv2d": of_images,
}


@pytest.mark.parametrize("name", CALLS)
def test_roles_take_their_tiles_in_order(name):
    operation, given, shape = CALLS[name]()
    out, plain = (torch.full(shape, torch.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    if name == "conv2d":
        out, plain = (each.permute(0, 3, 1, 2) for each in (out, plain))
    operation(**given, out=plain)
    found = wl.timeline(operation, **given, out=out, tiles=32)
    assert torch.equal(out, plain)
    assert {each.role for each in found} == {"load", "consume"}
    assert all(0 < each.begin <= each.end for each in found)
    assert 500 < max(each.end for each in found) - min(each.begin for each in found) < LONGEST
    of_role = {}
    for each in found:
        of_role.setdefault((each.cta, each.role), []).append(each)
    for (cta, role), one in of_role.items():
        one.sort(key=lambda each: each.tile)
        assert [each.tile for each in one] == list(range(len(one)))
        turns = [one[::2], one[1::2]] if role == "consume" else [one]  # ping-pong warpgroups alternate
        for of_group in turns:
            assert all(before.end <= after.begin for before, after in pairwise(of_group))
        loads = of_role[cta, "load"]
        assert len(one) == len(loads)
        for each, load in zip(one, loads, strict=True):  # a tile is complete only after its loads have begun
            assert each.end >= load.begin
