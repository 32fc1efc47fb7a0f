"""`matmul` against NumPy: bit-exact on integers, over awkward sizes, types, strides and batches."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ops.references import BF16, E4M3, E5M2, close, exact, integers, poisoned, reals, rounded

from warploom.ops import linear, matmul
from warploom.structured.config import MatmulConfig
from warploom.structured.config.sm90 import HopperConfig


def agree(got, a, b):
    wanted = rounded(exact(a) @ exact(b), got.dtype)
    np.testing.assert_array_equal(exact(got), wanted)


@pytest.mark.parametrize(
    ("m", "n"), [(1, 1), (1, 129), (7, 300), (63, 7), (64, 64), (65, 1), (131, 129), (257, 128), (129, 257)]
)
def test_awkward_sizes(m, n):
    for k in (1, 64, 131):
        a, b = integers(m, k), integers(k, n)
        agree(matmul(a, b), a, b)


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32, E4M3, E5M2], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_types_and_transposes(dtype, orders):
    a = np.asarray(integers(72, 48, dtype=dtype), order=orders[0])
    b = np.asarray(integers(48, 80, dtype=dtype), order=orders[1])
    got = matmul(a, b)
    assert got.dtype == (BF16 if np.dtype(dtype).itemsize == 1 else dtype)
    agree(got, a, b)


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32, E4M3, E5M2], ids=lambda d: np.dtype(d).name)
def test_result_types(dtype):
    a, b = integers(70, 40, largest=1), integers(40, 33, largest=1)
    got = matmul(a, b, out_dtype=dtype)
    assert got.dtype == dtype
    agree(got, a, b)


@pytest.mark.parametrize(("config", "target"), [(MatmulConfig(), "sm_100a"), (HopperConfig(), "sm_90a")])
def test_a_configuration_serves_other_types_than_it_was_derived_for(config, target):
    """For bfloat16 the derived result type is bfloat16; a float32 result must be requested."""
    a, b = integers(70, 40, dtype=np.float32, largest=1), integers(40, 33, dtype=np.float32, largest=1)
    got = matmul(a, b, out_dtype=BF16, config=config, target=target)
    assert got.dtype == BF16
    agree(got, a, b)


def test_both_fp8_types_in_one_gemm():
    a, b = integers(20, 64, dtype=E4M3), integers(64, 40, dtype=E5M2)
    agree(matmul(a, b), a, b)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 70, 24), (24, 50)),
        ((70, 24), (3, 24, 50)),
        ((3, 70, 24), (3, 24, 50)),
        ((1, 70, 24), (3, 24, 50)),
        ((2, 1, 9, 24), (3, 24, 50)),
        ((24,), (24, 50)),
        ((3, 17, 24), (24,)),
        ((24,), (24,)),
        ((24,), (3, 24, 50)),
    ],
    ids=str,
)
def test_batches_and_vectors_are_as_in_numpy(left, right):
    a, b = integers(*left), integers(*right)
    got = matmul(a, b)
    assert got.shape == np.matmul(exact(a), exact(b)).shape
    agree(got, a, b)


@pytest.mark.parametrize(("left", "right"), [((0, 24), (24, 5)), ((5, 24), (24, 0)), ((0, 3, 24), (24, 5))], ids=str)
def test_empty_results(left, right):
    a, b = integers(*left), integers(*right)
    assert matmul(a, b).shape == (exact(a) @ exact(b)).shape


def test_empty_k_gives_zero_and_the_epilogue():
    bias = integers(9)
    got = matmul(integers(5, 0), integers(0, 9), bias=bias, activation="relu", out_dtype=np.float32)
    np.testing.assert_array_equal(got, np.broadcast_to(np.maximum(exact(bias), 0), (5, 9)))


STRIDED = {
    "backwards": lambda x: x[::-1, ::-1],
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "from an odd address": lambda x: np.pad(x, 1)[1:-1, 1:-1],
    "rows padded to 16 bytes": lambda x: np.pad(x, ((0, 0), (0, -x.shape[1] % 8)))[:, : x.shape[1]],
    "one row again and again": lambda x: np.broadcast_to(x[:1], x.shape),
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
}


@pytest.mark.parametrize("how", STRIDED)
def test_strides_of_any_kind(how):
    a, b = STRIDED[how](integers(37, 40)), STRIDED[how](integers(40, 35))
    agree(matmul(a, b), a, b)


def test_linear_is_a_matmul_with_the_transpose():
    x, w, bias, residual = integers(3, 5, 40), integers(33, 40), integers(33), integers(3, 5, 33)
    got = linear(x, w, bias=bias, residual=residual, alpha=2, beta=-3, out_dtype=np.float32)
    np.testing.assert_array_equal(got, 2 * exact(x) @ exact(w).T + exact(bias) - 3 * exact(residual))
    vector = linear(x[0, 0], w)
    assert vector.shape == (33,)
    agree(vector, x[0, 0], w.T)


OUT = {
    "rows": lambda: poisoned((45, 64), np.float32),
    "odd rows": lambda: poisoned((45, 61), BF16),
    "columns": lambda: poisoned((61, 45), np.float32).T,
    "a window": lambda: poisoned((60, 80), np.float32)[3:48, 8:72],
    "a window at an odd place": lambda: poisoned((60, 80), BF16)[3:48, 5:69],
    "every other column": lambda: poisoned((45, 128), np.float16)[:, ::2],
    "backwards": lambda: poisoned((45, 64), np.float32)[::-1],
}


@pytest.mark.parametrize("how", OUT)
def test_results_into_arrays_of_any_strides(how):
    out = OUT[how]()
    whole = out if out.base is None else out.base
    a, b = integers(out.shape[0], 24), integers(24, out.shape[1])
    assert matmul(a, b, out=out) is out
    agree(out, a, b)
    assert np.isnan(exact(whole)).sum() == whole.size - out.size


def test_results_over_the_operands():
    square = integers(40, 40)
    wanted = rounded(exact(square) @ exact(square), BF16)
    matmul(square, square, out=square)
    np.testing.assert_array_equal(exact(square), wanted)


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32, E4M3], ids=lambda d: np.dtype(d).name)
def test_reals_are_within_the_tolerance_of_type_and_k(dtype):
    a, b = reals(66, 190, dtype=dtype), reals(190, 47, dtype=dtype)
    if dtype == np.float32:  # multiplied as tf32: ten bits
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    assert close(matmul(a, b), exact(a) @ exact(b), 190)


def test_float32_is_rounded_to_tf32_and_not_truncated():
    between = np.full((1, 8), 1 + 1.75 * 2**-10, np.float32)  # tf32 has 1 + 2^-10 and 1 + 2·2^-10
    one = np.eye(8, 1, dtype=np.float32)
    small = {"cta_group": 1, "mma_shape": (64, 32, 8)}
    assert matmul(between, one, config=MatmulConfig(**small))[0, 0] == 1 + 2 * 2**-10
    assert matmul(between, one, config=MatmulConfig(a_type="f32", **small))[0, 0] == 1 + 2**-10


def test_a_matrix_with_itself_and_memory_mapped_arrays(tmp_path):
    x = integers(40, 24, dtype=np.float16)
    agree(matmul(x, x.T), x, x.T)
    on_disk = np.memmap(tmp_path / "x", np.float16, "w+", shape=x.shape)
    on_disk[:] = x
    agree(matmul(on_disk, x.T, bias=on_disk[:, :1] * 0), x, x.T)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_user_configuration(swapped):
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), AB_swapped=swapped, cluster_shape=(2, 1, 1))
    a, b = integers(100, 72), integers(72, 40)
    agree(matmul(a, b, config=config), a, b)
