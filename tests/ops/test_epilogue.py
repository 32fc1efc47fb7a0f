"""Epilogues against float64: scale, bias, activations, user functions, residual, order."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tests.ops.references import ACTIVATIONS, BF16, E4M3, close, exact, integers, poisoned, reals

from warploom.diagnostics import WarploomError
from warploom.ops import linear, matmul
from warploom.structured.config import MatmulConfig
from warploom.trace import exp, f32, sigmoid, when

SMALL = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16))
"""One small tile, so that a case is traced quickly."""
M, N, K = 45, 61, 24


@pytest.fixture(scope="module")
def a():
    return integers(M, K)


@pytest.fixture(scope="module")
def b():
    return integers(K, N)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=lambda d: np.dtype(d).name)
def test_activations(activation, dtype):
    x, w, bias = reals(M, K), reals(N, K, scale=0.5), reals(N)
    got = linear(x, w, bias=bias, activation=activation, out_dtype=dtype, config=SMALL)
    assert close(got, ACTIVATIONS[activation](exact(x) @ exact(w).T + exact(bias)), K)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("out_dtype", [np.float32, BF16], ids=lambda d: np.dtype(d).name)
def test_order_of_the_epilogue(a, b, swapped, out_dtype):
    """Bias before the activation, the user function after it, the residual last; all in float32, rounded once."""
    bias, residual = integers(N), integers(M, N, dtype=np.float32)
    got = matmul(
        a, b, alpha=2, bias=bias, activation="relu", epilogue=lambda acc, at: acc * 3 - 1, residual=residual, beta=-0.5,
        out_dtype=out_dtype, config=MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), AB_swapped=swapped),
    )  # fmt: skip
    wanted = np.maximum(2 * exact(a) @ exact(b) + exact(bias), 0) * 3 - 1 - 0.5 * exact(residual)
    np.testing.assert_array_equal(exact(got), exact(wanted.astype(np.float32).astype(out_dtype)))


KINDS = {
    "a number": (lambda: 2.5, ()),
    "a NumPy scalar": (lambda: np.float32(-3), ()),
    "a scalar": (lambda: np.array(2.0, np.float32), ()),
    "one element": (lambda: integers(1, 1), ()),
    "a row": (lambda: integers(N), ()),
    "one row": (lambda: integers(1, N, dtype=np.float32), ()),
    "a column": (lambda: integers(M, 1, dtype=np.float16), ()),
    "a tile": (lambda: integers(M, N), ()),
    "a tile of eight bits": (lambda: integers(M, N, dtype=E4M3), ()),
    "a tile of doubles": (lambda: integers(M, N, dtype=np.float64), ()),
    "a transposed tile": (lambda: integers(N, M).T, ()),
    "a column backwards": (lambda: integers(M, 1)[::-1], ()),
    "a row for each batch": (lambda: integers(3, 1, N), (3,)),
    "a column for each batch": (lambda: integers(3, M, 1), (3,)),
    "a tile for each batch": (lambda: integers(3, M, N), (3,)),
    "a scalar for each batch": (lambda: integers(3, 1, 1), (3,)),
    "one tile for all batches": (lambda: integers(M, N), (3,)),
    "a row for all batches": (lambda: integers(N), (3,)),
    "columns of a larger array": (lambda: integers(M, 2 * N)[:, ::2], ()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_epilogue_operands_broadcast_as_in_numpy(b, kind):
    make, batch = KINDS[kind]
    a, x = integers(*batch, M, K), make()
    got = matmul(
        a, b, bias=x, operands={"x": x}, epilogue=lambda acc, at, x: acc * x + x, residual=x, beta=2,
        out_dtype=np.float32, config=SMALL,
    )  # fmt: skip
    wanted = (exact(a) @ exact(b) + exact(x)) * exact(x) + 3 * exact(x)
    np.testing.assert_array_equal(exact(got), wanted)


def test_a_bias_vector_of_a_square_result_is_a_row():
    a, b, v = integers(32, K), integers(K, 32), integers(32)
    np.testing.assert_array_equal(exact(matmul(a, b, bias=v, out_dtype=np.float32)), exact(a) @ exact(b) + exact(v))
    column = matmul(a, b, bias=v[:, None], out_dtype=np.float32)
    np.testing.assert_array_equal(exact(column), exact(a) @ exact(b) + exact(v)[:, None])


def test_operands_of_vectors(a):
    v, bias = integers(K), integers(M)
    got = matmul(a, v, bias=bias, out_dtype=np.float32)
    np.testing.assert_array_equal(exact(got), exact(a) @ exact(v) + exact(bias))


def test_operands_of_flattened_rows():
    x, w, per_token, per_head = integers(3, 7, K), integers(N, K), integers(3, 7, 1), integers(3, 1, N)
    got = linear(
        x, w, operands={"p": per_token, "q": per_head}, epilogue=lambda acc, at, p, q: acc + p * 10 + q * 100,
        out_dtype=np.float32, config=SMALL,
    )  # fmt: skip
    np.testing.assert_array_equal(exact(got), exact(x) @ exact(w).T + 10 * exact(per_token) + 100 * exact(per_head))


def test_functions_receive_coordinates(b):
    a = integers(3, M, K)

    def place(acc, at):
        return acc + at.row.to(f32) * 100 + at.column.to(f32) + at.batch.to(f32) * 10000

    got = matmul(a, b, epilogue=place, out_dtype=np.float32, config=SMALL)
    batch, row, column = np.ogrid[:3, :M, :N]
    np.testing.assert_array_equal(exact(got), exact(a) @ exact(b) + row * 100 + column + batch * 10000)


def test_functions_of_the_accumulator():
    x, w, scale = reals(M, K), reals(N, K, scale=0.3), reals(N)
    got = linear(
        x, w, operands={"scale": scale}, epilogue=lambda acc, at, scale: sigmoid(acc) * exp(scale) + 1,
        out_dtype=np.float32, config=SMALL,
    )  # fmt: skip
    exactly = exact(x) @ exact(w).T
    assert close(got, np.exp(exact(scale)) / (1 + np.exp(-exactly)) + 1, K)


def test_a_function_that_stores_by_itself(a, b):
    def transpose(value, at, out):
        out[at.column, at.row] = value

    out = poisoned((N, M), np.float32)
    assert matmul(a, b, alpha=2, store=transpose, out=out, config=SMALL) is out
    np.testing.assert_array_equal(out, (2 * exact(a) @ exact(b)).T)


def test_a_store_of_another_shape_and_type(a, b):
    def positive(value, at, out, largest, offset):
        with when((value > 0) & (at.column < largest.to("s32"))):
            out[at.row, at.column, 1] = (value + offset).to("s32", rounding="rni")

    out, offset = np.full((M, N, 2), -7, np.int32), integers(M, 1)
    matmul(a, b, store=positive, out=out, operands={"largest": 50, "offset": offset}, config=SMALL)
    exactly = exact(a) @ exact(b)
    wanted = np.where((exactly > 0) & (np.arange(N) < 50), exactly + exact(offset), -7)
    np.testing.assert_array_equal(out[..., 1], wanted)
    assert (out[..., 0] == -7).all()


def test_a_function_before_one_that_stores(a, b):
    def doubled(acc, at, row):
        return acc * 2 + row

    def store(value, at, out):
        out[at.row, at.column] = value

    row = integers(N)
    got = matmul(a, b, epilogue=doubled, store=store, operands={"row": row}, out_dtype=np.float32, config=SMALL)
    np.testing.assert_array_equal(exact(got), 2 * exact(a) @ exact(b) + exact(row))


def test_a_residual_that_is_the_result(a, b):
    for shape in ((M, N), (M, 64)):
        factor = integers(K, shape[1])
        both = integers(*shape, dtype=np.float32)
        wanted = exact(a) @ exact(factor) - exact(both)
        matmul(a, factor, residual=both, beta=-1, out=both)
        np.testing.assert_array_equal(both, wanted)


def test_a_residual_that_overlaps_the_result(a):
    factor, held = integers(K, 64), integers(M + 1, 64, dtype=np.float32)
    wanted = exact(a) @ exact(factor) + exact(held[1:])
    matmul(a, factor, residual=held[1:], out=held[:-1])
    np.testing.assert_array_equal(held[:-1], wanted)


def test_beta_zero_reads_no_residual(a, b):
    got = matmul(a, b, residual=poisoned((M, N), np.float32), beta=0, out_dtype=np.float32, config=SMALL)
    np.testing.assert_array_equal(exact(got), exact(a) @ exact(b))


LOADS = {
    "a residual by TMA": {"use_tma_epilogue_load": True},
    "a bias by cp.async": {"use_tma_epilogue_load": True, "epilogue_is_1d": True},
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("how", LOADS)
def test_epilogue_loads_change_nothing(a, how, swapped):
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), AB_swapped=swapped, **LOADS[how])
    b, bias, residual = integers(K, 64), integers(64), integers(M, 64)
    given = {"bias": bias, "residual": residual, "alpha": 2, "beta": 3, "activation": "relu", "out_dtype": BF16}
    wanted = np.maximum(2 * exact(a) @ exact(b) + exact(bias), 0) + 3 * exact(residual)
    got = matmul(a, b, **given, config=config)
    np.testing.assert_array_equal(exact(got), exact(wanted.astype(np.float32).astype(BF16)))


@pytest.mark.parametrize("splits", [2, 3])
def test_split_k_changes_nothing(splits):
    a, b, bias = integers(M, 300), integers(300, N), integers(N)
    config = MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=splits)
    got = matmul(a, b, bias=bias, activation="relu", out_dtype=np.float32, config=config)
    np.testing.assert_array_equal(exact(got), np.maximum(exact(a) @ exact(b) + exact(bias), 0))


class _Nothing:
    def __call__(self, acc, at):
        return None


def _nothing(acc, at, kind=None):
    return None


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize(
    "function", [_nothing, partial(_nothing, kind=3), _Nothing()], ids=["def", "partial", "object"]
)
def test_a_function_without_a_result_is_reported_with_its_line(a, b, function, target):
    with pytest.raises(WarploomError, match="its function returned None") as caught:
        matmul(a, b, epilogue=function, target=target)
    line = (_Nothing.__call__ if isinstance(function, _Nothing) else _nothing).__code__.co_firstlineno
    assert f"--> test_epilogue.py:{line}" in str(caught.value)
