"""Invalid and unusual calls with NumPy arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from tests.ops.references import BF16, exact, integers, poisoned

import warploom as wl

TARGETS = ("sm_90a", "sm_100a")
A, B, W = integers(3, 4), integers(4, 5), integers(5, 4)
PRODUCT = exact(A) @ exact(B)


def refused(call) -> str:
    with pytest.raises(wl.LaunchError, match="BAD_ARGUMENTS") as error:
        call()
    return str(error.value)


NO_NUMBERS = (np.complex64(1 + 2j), np.timedelta64(5, "s"), True, np.bool_(1), 1j, "2", None, [1])
TOO_LARGE = (10**400, 1e300, -1e39, 2.0**128 - 2.0**103)


@pytest.mark.parametrize("number", NO_NUMBERS, ids=repr)
def test_scalars_must_be_real_numbers(number):
    text = refused(lambda: wl.matmul(A, B, alpha=number, beta=number, residual=1.0))
    assert "alpha" in text
    assert "beta" in text
    assert text.count("must be a number") == 2


@pytest.mark.parametrize(
    "number", TOO_LARGE, ids=lambda number: f"{number:.3}"[:12] if isinstance(number, float) else "int"
)
@pytest.mark.parametrize("name", ["alpha", "beta", "bias", "residual"])
def test_numbers_outside_float32_are_reported_with_their_argument(name, number):
    assert f"  `{name}` must be in the range of float32" in refused(
        lambda: wl.matmul(A, B, **{"residual": 1.0, name: number})
    )


def test_an_operand_outside_float32_is_reported():
    assert "`operands['z']` must be in the range of float32" in refused(
        lambda: wl.matmul(A, B, operands={"z": 1e300}, epilogue=lambda acc, at, z: acc * z)
    )


@pytest.mark.parametrize(
    "number", [BF16(2), np.float16(2), np.longdouble(2), np.int64(2), 2], ids=lambda n: type(n).__name__
)
def test_scalars_of_every_type(number):
    assert np.array_equal(exact(wl.matmul(A, B, alpha=number, bias=number)), 2 * PRODUCT + 2)


def test_the_largest_float32_is_accepted():
    assert np.isinf(exact(wl.matmul(np.full((1, 1), 2, BF16), np.ones((1, 1), BF16), alpha=3.4028235e38))).all()


@pytest.mark.parametrize("activation", [["relu"], {"relu": 1}, 5, b"relu", len])
def test_an_activation_must_be_a_name(activation):
    assert "activation" in refused(lambda: wl.matmul(A, B, activation=activation))


@pytest.mark.parametrize("pair", [None, 5, [], ""])
def test_a_gated_activation_must_be_a_function_or_a_name(pair):
    assert "`pair` must be one of" in refused(lambda: wl.gated_linear(A, W, W, pair=pair))


@pytest.mark.parametrize("name", ["value", "self", "at_", "function", "position", "up", "name"])
def test_an_operand_may_have_any_name(name):
    scope: dict[str, object] = {}
    exec(f"def scaled(acc, at, {name}): return acc * {name}", scope)
    assert np.array_equal(exact(wl.matmul(A, B, epilogue=scope["scaled"], operands={name: 3.0})), 3 * PRODUCT)


def test_an_operand_cannot_have_the_name_of_the_accumulator():
    assert "'acc'" in refused(lambda: wl.matmul(A, B, epilogue=lambda acc, at, **rest: acc, operands={"acc": 1.0}))


class Scaling:
    def __init__(self, factors):
        self.factors = factors

    def __call__(self, acc, at):
        return acc * self.factors

    def method(self, acc, at):
        return acc * self.factors


@pytest.mark.parametrize("part", ["__call__", "method", None])
def test_an_epilogue_object_that_holds_an_array_is_reported(part):
    scaling = Scaling(np.ones(5))
    text = refused(lambda: wl.matmul(A, B, epilogue=scaling if part is None else getattr(scaling, part)))
    assert ".factors`" in text
    assert "operands={'factors'" in text


def test_an_epilogue_object_may_change_its_number():
    scaling = Scaling(2.0)
    for factor in (2.0, 3.0):
        scaling.factors = factor
        assert np.array_equal(exact(wl.matmul(A, B, epilogue=scaling)), factor * PRODUCT)


@pytest.mark.parametrize("shape", [(2, 0, 5), (0, 3, 5), (2, 3, 0)])
def test_an_empty_out_never_overlaps_itself(shape):
    batch, m, n = shape
    out = as_strided(np.zeros(1, BF16), shape, (0, 0, 0))
    assert wl.matmul(integers(batch, m, 4), integers(4, n), out=out) is out


@pytest.mark.parametrize("strides", [(2, 2), (4, 2), (2, 4), (8, 2)])
def test_an_out_with_overlapping_strides_is_refused(strides):
    memory = np.zeros(64, BF16)
    folded = as_strided(memory, (3, 5), strides)
    assert "overlapping strides" in refused(lambda: wl.matmul(A, B, out=folded))
    assert "overlapping strides" in refused(lambda: wl.matmul(A, B, outputs={"pre_activation": folded}))
    assert not memory.any()


@pytest.mark.parametrize("target", TARGETS)
def test_results_may_be_columns_of_one_array(target):
    whole = poisoned((3, 16), BF16)
    wl.matmul(A, B, activation="relu", out=whole[:, 2:7], outputs={"pre_activation": whole[:, 7:12]}, target=target)
    assert np.array_equal(exact(whole[:, 2:7]), np.maximum(PRODUCT, 0))
    assert np.array_equal(exact(whole[:, 7:12]), PRODUCT)
    assert np.isnan(exact(whole[:, :2])).all()
    assert np.isnan(exact(whole[:, 12:])).all()


@pytest.mark.parametrize("columns", [slice(6, 11), slice(0, 5), slice(3, 8), slice(2, 7)])
def test_overlapping_columns_are_reported(columns):
    whole = np.zeros((3, 16), BF16)
    outputs = {"pre_activation": whole[:, columns]}
    assert "must not overlap `out`" in refused(lambda: wl.matmul(A, B, out=whole[:, 2:7], outputs=outputs))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("m", [33, 40])
@pytest.mark.parametrize("k", [1, 24])
def test_groups_of_a_column_major_operand(target, m, k):
    a, b, ends = np.asfortranarray(integers(m, k)), integers(3, k, 16), np.array([5, 5, m - 2])
    wanted = np.zeros((m, 16))
    for first, last, each in zip((0, 5, 5), ends, b, strict=True):
        wanted[first:last] = exact(a[first:last]) @ exact(each)
    assert np.array_equal(exact(wl.grouped_matmul(a, b, ends, target=target)), wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("n", [1, 5, 7])
def test_a_residual_with_wider_rows_than_the_result(target, n):
    """TMA can load it, but cannot store a result with such rows."""
    b, residual = integers(4, n), np.zeros((3, 8), BF16)[:, :n]
    residual[...] = integers(3, n)
    made = wl.matmul(A, b, residual=residual, beta=2, target=target)
    assert np.array_equal(exact(made), exact(A) @ exact(b) + 2 * exact(residual))


@pytest.mark.parametrize("dtype", ["nope", 5, object(), np.float32])
def test_an_unknown_format_is_reported_with_other_errors(dtype):
    text = refused(lambda: wl.quantise_mxfp8(np.ones((2, 33)), dtype))
    assert "`dtype` must be" in text
    assert "a multiple of 32" in text


def test_numbers_outside_the_range_of_nvfp4_are_reported():
    assert "float32" in refused(lambda: wl.quantise_nvfp4(np.full((1, 16), 1e300)))
    kept = wl.quantise_nvfp4(np.full((1, 16), 1e38))
    assert np.allclose(kept.dequantised(), 1e38, rtol=0.1)


def test_a_refused_call_changes_nothing():
    out = poisoned((3, 5), ml_dtypes.bfloat16)
    kept = {"pre_activation": poisoned((3, 5), BF16)}
    refused(lambda: wl.matmul(A, B, out=out, outputs=kept, alpha=1e300))
    assert np.isnan(exact(out)).all()
    assert np.isnan(exact(kept["pre_activation"])).all()
