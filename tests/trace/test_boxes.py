"""Tensor copies: the map and the shared array must agree, and the trace says where they do not."""

from __future__ import annotations

import linecache

import ml_dtypes
import numpy as np
import pytest

from warploom import TensorMap, launch
from warploom.diagnostics import TraceError
from warploom.trace import barriers, bf16, elect, f32, kernel, s32, shared, thread, u8, u16, warp_roles, when
from warploom.trace.isa import cp, mbarrier

RNG = np.random.default_rng()


def copy(dtype, shape, swizzle, *, part=None, store=False):
    """A kernel that fills a shared array by one box, and the line that does."""

    @kernel
    def traced(source: TensorMap, out):
        warp_roles(only=1)
        tile, full = shared(dtype, shape, name="tile", swizzle=swizzle), barriers("full")
        filled = tile if part is None else tile[part]
        with when(elect()):
            full.init(1)
            mbarrier.arrive_expect_tx(full[0], source.box_bytes)
            if store:
                cp.async_bulk_tensor_store(source.at(0, 0), filled)
            else:
                cp.async_bulk_tensor_load(filled, source.at(0, 0), full[0])
            full[0].wait(0)
            for row in range(4):
                out[row] = filled[row, 3].to(f32) if len(filled.shape) == 2 else 0.0

    return traced


def bound(function, array, **options):
    return function.bind(TensorMap(array, **options), np.full(4, np.nan, np.float32), grid=(1, 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize(
    ("dtype", "shape", "swizzle", "part"),
    [
        (bf16, (8, 64), "128B", None),
        (bf16, (3, 8, 64), "128B", 1),
        (bf16, (16, 64), "128B", slice(8, 16)),
        (u16, (8, 64), "128B", None),
        (u8, (8, 128), "128B", None),
        (bf16, 8 * 64, "128B", None),
        (bf16, (2, 4, 64), "128B", None),
    ],
)
def test_arrays_that_agree_with_the_map(dtype, shape, swizzle, part):
    x = RNG.integers(-9, 9, (32, 128)).astype(ml_dtypes.bfloat16)
    ready = bound(copy(dtype, shape, swizzle, part=part), x, box=(8, 64), swizzle="128B")
    if dtype == bf16 and part != slice(8, 16) and shape not in (8 * 64, (2, 4, 64)):
        launch(ready)
        np.testing.assert_array_equal(ready.args[1], x[:4, 3].astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "shape", "swizzle", "says"),
    [
        ("f16", (8, 64), "128B", "the map has elements of bf16, the array of f16"),
        ("f32", (8, 32), "128B", "the map has elements of bf16, the array of f32"),
        ("u32", (8, 32), "128B", "the map has elements of 2 bytes, the array of 4"),
        (bf16, (8, 64), "none", "the map has swizzle 128B, the array none"),
        (bf16, (8, 64), "64B", "the map has swizzle 128B, the array 64B"),
        (bf16, (64, 8), "128B", "boxes of (8, 64), which take 1024 bytes, the array has (64, 8), 1024 bytes"),
        (bf16, (16, 64), "128B", "boxes of (8, 64), which take 1024 bytes, the array has (16, 64), 2048 bytes"),
        (bf16, (4, 64), "128B", "boxes of (8, 64), which take 1024 bytes, the array has (4, 64), 512 bytes"),
    ],
)
@pytest.mark.parametrize("store", [False, True])
def test_arrays_that_do_not(dtype, shape, swizzle, says, store):
    x = np.zeros((32, 128), ml_dtypes.bfloat16)
    function = copy(dtype, shape, swizzle, store=store)
    with pytest.raises(TraceError) as caught:
        bound(function, x, box=(8, 64), swizzle="128B")
    error = caught.value
    assert error.code == "BOX_MISMATCH"
    assert "tensor map `source` and shared array `tile`" in error.what
    assert says in error.what
    assert linecache.getline(__file__, error.loc.line).strip().startswith("cp.async_bulk_tensor_")


def test_rows_narrower_than_the_swizzle_take_its_span():
    x = np.zeros((32, 128), ml_dtypes.bfloat16)
    bound(copy(bf16, (8, 64), "128B"), x, box=(8, 32), swizzle="128B")
    with pytest.raises(TraceError, match="which take 1024 bytes in rows of 128 bytes"):
        bound(copy(bf16, (8, 32), "128B"), x, box=(8, 32), swizzle="128B")


def test_a_computed_address_is_not_checked():
    @kernel
    def halves(source: TensorMap, n: s32):
        tile, full = shared(bf16, (16, 64), swizzle="128B"), barriers("full")
        with when(thread() == 0):
            for half in range(2):
                cp.async_bulk_tensor_load(tile.place + half * 1024, source.at(half * 8, 0), full[0])

    x = np.zeros((32, 128), ml_dtypes.bfloat16)
    halves.bind(TensorMap(x, box=(8, 64), swizzle="128B"), 3, grid=(1, 1, 1), block=(32, 1, 1))
