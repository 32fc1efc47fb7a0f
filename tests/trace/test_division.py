"""Division by numbers known while tracing: exact for every dividend, without a division on the device."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from tests.trace.harness import body, elementwise, run
from tests.trace.test_operators import quotient

from warploom.trace import cta_index, kernel, loop, s32, thread, u32

DIVISORS = {
    "u32": (
        *(1, 2, 3, 5, 6, 7, 9, 10, 11, 14, 25, 28, 100, 125, 625, 641, 1000, 65535, 65536, 65537, 274177, 6700417),
        *(2**31 - 1, 2**31, 2**31 + 1, 3 * 2**30, 2**32 - 2, 2**32 - 1),
    ),
    "s32": (
        *(1, -1, 2, -2, 3, -3, 4, -4, 5, 6, 7, -7, 9, 10, 12, 25, -125, 625, 1000, 2**16, -(2**16), 65537, 715827883),
        *(2**30, 2**30 + 1, 2**31 - 1, -(2**31 - 1), -(2**31)),
    ),
}


def dividends(type_, divisors, rng):
    """The ends of the range, multiples of each divisor and their neighbours, and random numbers."""
    info = np.iinfo(np.int32 if type_ == "s32" else np.uint32)
    near = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, *(np.sign(info.min) * x for x in (1, 2, 3))}
    for by in divisors:
        for times in (1, 2, 3, info.max // abs(by), info.max // abs(by) - 1):
            for sign in (1, -1):
                near |= {sign * abs(by) * times + more for more in (-1, 0, 1)}
    near |= set(rng.integers(info.min, info.max, 500).tolist())
    return np.array(sorted(x for x in near if info.min <= x <= info.max), info.dtype)


@pytest.mark.parametrize("type_", ["u32", "s32"])
def test_every_quotient_and_remainder(type_):
    rng = np.random.default_rng()
    info = np.iinfo(np.int32 if type_ == "s32" else np.uint32)
    more = [int(2.0**bits) for bits in rng.uniform(1, 31, 20)]
    divisors = [*DIVISORS[type_], *(more if type_ == "u32" else [-x if x % 2 else x for x in more])]
    x = dividends(type_, divisors, rng)
    functions = [f for by in divisors for f in (lambda a, by=by: a // by, lambda a, by=by: a % by)]
    found = elementwise(functions, x, dtype=info.dtype)
    for row, by in enumerate(divisors):
        whole = quotient(x, np.array([by] * x.size, object))
        wrapped = np.array([int(q) & 0xFFFFFFFF for q in whole], np.uint32).view(info.dtype)
        np.testing.assert_array_equal(found[2 * row], wrapped, err_msg=f"// {by}")
        left = np.array([int(a) - int(q) * by for a, q in zip(x, whole, strict=True)], info.dtype)
        np.testing.assert_array_equal(found[2 * row + 1], left, err_msg=f"% {by}")


@pytest.mark.parametrize(("type_", "by"), [("u32", 7), ("u32", 24), ("s32", 5), ("s32", -8), ("s32", 3)])
def test_nothing_divides_on_the_device(type_, by):
    @kernel
    def divide(x):
        x[thread()] = x[thread()] // by + x[thread()] % by

    lines = body(run(divide, np.zeros(32, np.int32 if type_ == "s32" else np.uint32)))
    assert not [line for line in lines if line.startswith(("div", "rem"))]


def test_indices_are_not_negative():
    @kernel
    def places(out, n: s32):
        for k in loop(n):
            out[k] = k % 4 * 100 + k // 4 * 10 + (cta_index().to(s32) + thread().to(s32) // 8) * 0
            out[k] = out[k] + k % 3 * 1000 + k // 3 * 10000

    out = np.zeros(29, np.int32)
    lines = body(run(places, out, 29, block=(1, 1, 1)))
    k = np.arange(29)
    np.testing.assert_array_equal(out, k % 4 * 100 + k // 4 * 10 + k % 3 * 1000 + k // 3 * 10000)
    assert sum(line.startswith("and.b32") for line in lines) == 1
    assert not any("31;" in line for line in lines), "a sign is looked at"


def test_other_widths_divide_as_python_does():
    for dtype, by in ((np.int16, 8), (np.int64, -4), (np.uint64, 7), (np.int8, 4), (np.uint8, 3), (np.int64, 10)):
        info = np.iinfo(dtype)
        x = np.random.default_rng().integers(info.min, info.max, 64, dtype, endpoint=True)
        x[:3] = [info.min, info.max, 0]
        found = elementwise([lambda a, by=by: a // by, lambda a, by=by: a % by], x, dtype=dtype)
        whole = quotient(x, np.array([by] * 64, object))
        np.testing.assert_array_equal(found[0].astype(object), whole)
        np.testing.assert_array_equal(found[1].astype(object), x.astype(object) - whole * by)


@pytest.mark.parametrize("type_", ["s32", "s64", "s16"])
def test_divisors_that_only_the_device_knows(type_):
    rng = np.random.default_rng()
    x, y = rng.integers(-40, 40, (2, 256)).astype(f"int{type_[1:]}")
    y[y == 0] = -7
    functions = [operator.floordiv, operator.mod, lambda a, b: 17 // b, lambda a, b: -17 % b]
    found = elementwise(functions, x, y, dtype=x.dtype)
    for row, expected in zip(found, (x // y, x % y, 17 // y, -17 % y), strict=True):
        np.testing.assert_array_equal(row, expected)


def test_by_zero_is_left_to_the_device():
    @kernel
    def divide(x, n: u32):
        x[0] = n // 0

    assert any(line.startswith("div.u32") for line in body(run(divide, np.zeros(1, np.uint32), 5)))
