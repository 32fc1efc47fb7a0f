"""`timeline`: time stamps of a call of an operation, on the emulator, and the same steps on a GPU that is a stand-in."""

from __future__ import annotations

import ctypes
import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
from tests.ops.references import BF16, exact, integers, poisoned, rounded

import warploom as wl
from warploom.diagnostics import LaunchError
from warploom.ops import timeline as call
from warploom.ops import timelines as module
from warploom.ops.planning.arrays import ArrayDescriptor
from warploom.runtime.gpu.driver import Gpu
from warploom.runtime.gpu.workspace import Block
from warploom.structured import chrome_trace


@pytest.mark.parametrize(
    ("target", "roles"), [("sm_90a", {"load", "consume"}), ("sm_100a", {"load", "mma", "epilogue"})]
)
def test_every_role_of_a_call_is_in_its_timeline(target, roles):
    a, b, bias, out = integers(150, 72), integers(72, 104), integers(104), poisoned((150, 104), BF16)
    found = call(wl.matmul, a, b, bias=bias, activation="relu", out=out, target=target)
    np.testing.assert_array_equal(exact(out), rounded(np.maximum(exact(a) @ exact(b) + exact(bias), 0), BF16))
    assert {each.role for each in found} == roles
    assert all(0 < each.begin <= each.end for each in found)
    tiles = {role: {(each.cta, each.tile) for each in found if each.role == role} for role in roles}
    assert len({frozenset(each) for each in tiles.values()}) == 1  # all roles have the same tiles
    events = json.loads(chrome_trace(found))["traceEvents"]
    assert len(events) == len(found)


def test_tiles_that_do_not_fit_are_left_out():
    options = {"config": wl.HopperConfig(tile=(64, 16), consumers=1)}
    a, b = integers(64 * 140, 8), integers(8, 16)
    assert {each.tile for each in wl.timeline(wl.matmul, a, b, tiles=1, **options)} == {0}
    assert {each.tile for each in wl.timeline(wl.matmul, a, b, tiles=2, **options)} == {0, 1}


def test_kernels_without_time_stamps_are_refused():
    config = wl.HopperConfig(tile=(64, 32), consumers=1, num_split_k=2)
    with pytest.raises(LaunchError, match="`matmul_split_k`, records no time stamps"):
        wl.timeline(wl.matmul, integers(64, 256), integers(256, 32), config=config)
    with pytest.raises(LaunchError, match="`tiles` is 0; it must be a positive integer"):
        wl.timeline(wl.matmul, integers(64, 64), integers(64, 32), tiles=0)


def test_on_a_gpu_the_buffer_is_memory_of_its_own(monkeypatch):
    """The launch gets a zeroed buffer of the GPU, is waited for, and the buffer is copied back."""
    made, steps = [], []
    arrays = {"a": integers(150, 72), "b": integers(72, 104), "out": poisoned((150, 104), BF16)}
    described = {
        name: ArrayDescriptor(name, each.shape, each.strides, each.dtype, 4096 * number, "cuda:0")
        for number, (name, each) in enumerate(arrays.items(), 1)
    }

    def driver_call(name, *args):
        steps.append(name)
        if name == "cuMemcpyDtoH_v2":
            to, _, size = args
            ctypes.memset(to, 7, size.value)

    def allocated(device, stream, size, *, zero):
        assert zero
        steps.append(size)
        return Block(1 << 20, size, None)

    gpu = Gpu("NVIDIA H200", (9, 0), 132, 1 << 37)
    fake = SimpleNamespace(
        gpu=gpu, target="sm_90a", stream=lambda: 0, current=nullcontext, driver=SimpleNamespace(call=driver_call)
    )
    monkeypatch.setattr(module, "device_of", lambda name, address: fake)
    monkeypatch.setattr(module, "allocated", allocated)
    monkeypatch.setattr(module, "launch", made.append)
    found = call(wl.matmul, described["a"], described["b"], out=described["out"], tiles=3)
    (bound,) = made
    (trace,) = (each for each in bound.args if getattr(each, "address", 0) == 1 << 20)
    assert steps == [8 * np.prod(trace.shape), "cuStreamSynchronize", "cuMemcpyDtoH_v2"]
    assert len(found) == np.prod(trace.shape) // 2
    assert {each.begin for each in found} == {0x0707070707070707}
