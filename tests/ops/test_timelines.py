"""`timeline`: time stamps of a call of an operation, on the emulator, and the same steps on a GPU that is a stand-in."""

from __future__ import annotations

import ctypes
import json
from contextlib import nullcontext
from types import SimpleNamespace

import ml_dtypes
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


def test_a_number_of_tiles_is_positive():
    with pytest.raises(LaunchError, match="`tiles` is 0; it must be a positive integer"):
        wl.timeline(wl.matmul, integers(64, 64), integers(64, 32), tiles=0)


ENDS = np.array([10, 40], np.int32)
BLOCKS = {"a_scale": np.ones((40, 2), np.float32), "b_scale": np.ones((1, 2), np.float32)}
E4M3, E8M0 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def small(rows, *of, dtype=BF16):
    """Weights of some rows; tokens are 40."""
    return integers(40, 256).astype(dtype), *(integers(*each, rows, 256).astype(dtype) for each in of)


def scaled(*shape):
    return np.ones((*shape, 256 // 32), E8M0)


def with_options(operation, *args, **options):
    return operation, args, options


CALLS = {
    "split-K, sm_90a": lambda: with_options(
        wl.linear, *small(72, ()), config=wl.HopperConfig(tile=(64, 32), consumers=1, num_split_k=2)
    ),
    "stream-K, sm_90a": lambda: with_options(
        wl.linear, *small(72, ()), config=wl.HopperConfig(tile=(64, 32), consumers=1, stream_k=True)
    ),
    "grouped, sm_90a": lambda: with_options(
        wl.grouped_matmul, *(each.mT if each.ndim > 2 else each for each in small(72, (2,))), ENDS, target="sm_90a"
    ),
    "grouped, sm_100a": lambda: with_options(
        wl.grouped_matmul, *(each.mT if each.ndim > 2 else each for each in small(72, (2,))), ENDS, target="sm_100a"
    ),
    "gated, sm_90a": lambda: with_options(wl.gated_linear, *small(72, (), ()), pair="reglu", target="sm_90a"),
    "gated, sm_100a": lambda: with_options(wl.gated_linear, *small(72, (), ()), pair="reglu", target="sm_100a"),
    "split-K, sm_100a": lambda: with_options(
        wl.linear, *small(72, ()), config=wl.MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=2)
    ),
    "epilogue loads, sm_100a": lambda: with_options(
        wl.linear, *small(72, ()), residual=integers(40, 72),
        config=wl.MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), use_tma_epilogue_load=True),
    ),
    "tf32x3, sm_90a": lambda: with_options(
        wl.linear, *small(72, (), dtype=np.float32), precision="tf32x3", target="sm_90a"
    ),
    "tf32x3, sm_100a": lambda: with_options(
        wl.linear, *small(72, (), dtype=np.float32), precision="tf32x3", target="sm_100a"
    ),
    "blockwise, sm_90a": lambda: with_options(wl.blockwise_matmul, *small(72, (), dtype=E4M3), **BLOCKS, target="sm_90a"),
    "blockwise, sm_100a": lambda: with_options(
        wl.blockwise_matmul, *small(72, (), dtype=E4M3), **BLOCKS, target="sm_100a"
    ),
    "grouped blockwise, sm_90a": lambda: with_options(
        wl.grouped_blockwise_matmul, *small(72, (2,), dtype=E4M3), np.ones((40, 2), np.float32),
        np.ones((2, 1, 2), np.float32), ENDS, target="sm_90a",
    ),
    "grouped blockwise, sm_100a": lambda: with_options(
        wl.grouped_blockwise_matmul, *small(72, (2,), dtype=E4M3), np.ones((40, 2), np.float32),
        np.ones((2, 1, 2), np.float32), ENDS, target="sm_100a",
    ),
    "block-scaled": lambda: with_options(
        wl.block_scaled_matmul, *small(72, (), dtype=E4M3), scaled(40), scaled(72), target="sm_100a"
    ),
    "grouped block-scaled": lambda: with_options(
        wl.grouped_block_scaled_matmul, *small(72, (2,), dtype=E4M3), scaled(40), scaled(2, 72), ENDS, target="sm_100a"
    ),
    "gated grouped block-scaled": lambda: with_options(
        wl.gated_grouped_block_scaled_matmul, *small(72, (2,), (2,), dtype=E4M3), scaled(40), scaled(2, 72),
        scaled(2, 72), ENDS, pair="reglu", target="sm_100a",
    ),
    "conv2d, sm_90a": lambda: with_options(wl.conv2d, integers(2, 7, 7, 16), integers(24, 3, 3, 16), target="sm_90a"),
    "conv2d, sm_100a": lambda: with_options(wl.conv2d, integers(2, 7, 7, 16), integers(24, 3, 3, 16), target="sm_100a"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_family_has_a_timeline(name):
    """Stamps change no result, every role that computes has spans, and a kernel without a buffer has no code for it."""
    operation, arrays, options = CALLS[name]()
    wanted = operation(*arrays, **options)
    out = np.zeros(wanted.shape, wanted.dtype)
    found = call(operation, *arrays, out=out, **options)
    np.testing.assert_array_equal(exact(out), exact(wanted))
    last = "consume" if "sm_90a" in name else "epilogue"
    assert {"load", last} <= {each.role for each in found}
    assert all(0 < each.begin < each.end for each in found)
    assert "globaltimer" not in wl.ptx_of(operation, *arrays, **options)


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

    class Prepared:
        def __init__(self, launched, arrays, *, device):
            assert device is fake
            made.append(launched)
            self.addresses = tuple(each.address for each in arrays)

        def launch_at(self, addresses, stream):
            assert (addresses, stream) == (self.addresses, 0)
            assert addresses == (4096, 8192, 12288, 1 << 20)

    monkeypatch.setattr(module, "Prepared", Prepared)
    found = call(wl.matmul, described["a"], described["b"], out=described["out"], tiles=3)
    (bound,) = made
    (trace,) = (each for each in bound.args if getattr(each, "address", 0) == 1 << 20)
    assert steps == [8 * np.prod(trace.shape), "cuStreamSynchronize", "cuMemcpyDtoH_v2"]
    assert len(found) == np.prod(trace.shape) // 2
    assert {each.begin for each in found} == {0x0707070707070707}


def test_the_first_argument_is_an_operation():
    with pytest.raises(LaunchError, match="the first argument is ndarray, not an operation"):
        wl.timeline(np.ones((2, 2)), np.ones((2, 2)))
