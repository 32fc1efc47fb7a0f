"""Every operator on every type, on the emulator, against NumPy; and the same operators folded while tracing."""

from __future__ import annotations

import operator

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import elementwise, run

from warploom.diagnostics import TraceError
from warploom.trace import (
    Variable,
    abs_,
    clamp,
    cta_index,
    fma,
    kernel,
    loop,
    max_,
    min_,
    s32,
    s64,
    select,
    special,
    thread,
    u8,
    u32,
)
from warploom.trace.language.folding import fold
from warploom.trace.language.types import TYPES

SIZE = 133
INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
FLOATS = ("f16", "bf16", "f32", "f64")
RELATIONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


def dtype_of(type_):
    name = TYPES[type_].numpy
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def quotient(a, b):
    """Python's exact quotients, rounded down."""
    return np.array([int(x) // int(y) for x, y in zip(a, b, strict=True)], object)


def as_integers(values, dtype):
    mask = (1 << 8 * dtype.itemsize) - 1
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.array([int(v) & mask for v in values], unsigned).view(dtype)


def integers(type_, rng):
    dtype = dtype_of(type_)
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, SIZE, dtype, endpoint=True)
    b = rng.integers(info.min, info.max, SIZE, dtype, endpoint=True)
    a[:6] = [0, 1, info.max, info.min + 1, 5, 7]
    b[:6] = [1, 3, 2, 7, info.max, info.max]
    b[b == 0] = 1
    b[20:40] = rng.integers(1, 8, 20)
    a[a == info.min] = info.min + 1
    return a, b


@pytest.mark.parametrize("type_", INTEGERS)
def test_integer_operators(type_):
    a, b = integers(type_, np.random.default_rng())
    dtype = a.dtype
    bits = 8 * dtype.itemsize
    wide_a, wide_b = a.astype(object), b.astype(object)
    divided = quotient(a, b)
    cases = {
        "add": (operator.add, wide_a + wide_b),
        "sub": (operator.sub, wide_a - wide_b),
        "mul": (operator.mul, wide_a * wide_b),
        "div": (operator.floordiv, divided),
        "rem": (operator.mod, wide_a - wide_b * divided),
        "and": (operator.and_, wide_a & wide_b),
        "or": (operator.or_, wide_a | wide_b),
        "xor": (operator.xor, wide_a ^ wide_b),
        "shl": (lambda x, y: x << (y.to("u32") % bits), wide_a << (wide_b % (1 << 32) % bits)),
        "shr": (lambda x, y: x >> (y.to("u32") % bits), wide_a >> (wide_b % (1 << 32) % bits)),
        "invert": (lambda x, _: ~x, ~wide_a),
        "neg": (lambda x, _: -x, -wide_a),
        "min": (min_, np.minimum(a, b)),
        "max": (max_, np.maximum(a, b)),
        "abs": (lambda x, _: abs_(x), abs(wide_a)),
        "fma": (lambda x, y: fma(x, y, x), wide_a * wide_b + wide_a),
        "clamp": (lambda x, y: clamp(x, 3, 90), np.clip(a, 3, 90)),
        "literals": (lambda x, _: 7 + (x + 3) - 5 + x * 8 + 1 * x, wide_a * 10 + 5),
        "reversed": (lambda x, _: 100 - x, 100 - wide_a),
        "power of two": (lambda x, _: x // 8 + x % 8, quotient(a, np.full_like(a, 8)) * -7 + wide_a),
        "select": (lambda x, y: select(x < y, x, 77), np.where(a < b, a, 77)),
        **{
            name: (lambda x, y, relation=relation: select(relation(x, y), x ^ x, 1), ~relation(a, b))
            for name, relation in RELATIONS.items()
        },
    }
    found = elementwise([function for function, _ in cases.values()], a, b, dtype=dtype)
    for row, (name, (_, expected)) in zip(found, cases.items(), strict=True):
        np.testing.assert_array_equal(row, as_integers(expected, dtype), err_msg=f"{name} of {type_}")
        if name in ("add", "sub", "mul", "div", "rem", "and", "or", "xor", "min", "max"):
            folded = [fold(name, type_, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
            assert folded == row.tolist(), f"{name} of {type_} folded"


@pytest.mark.parametrize("type_", INTEGERS)
def test_shifts_fold_as_the_device_shifts(type_):
    rng = np.random.default_rng()
    a, _ = integers(type_, rng)
    amounts = rng.integers(0, 40, SIZE).astype(np.uint32)
    width = max(TYPES[type_].bits, 16)
    found = elementwise([operator.lshift, operator.rshift], a, amounts, dtype=a.dtype)
    for row, name in zip(found, ("shl", "shr"), strict=True):
        folded = [
            fold(name, type_, x, int(s)) if s < width else (0 if name == "shl" else (-1 if x < 0 else 0))
            for x, s in zip(a.tolist(), amounts, strict=True)
        ]
        assert folded == row.tolist()


@pytest.mark.parametrize("type_", FLOATS)
def test_float_operators(type_):
    rng = np.random.default_rng()
    dtype = dtype_of(type_)
    a, b, c = (rng.normal(0, 8, SIZE).astype(dtype) for _ in range(3))
    a[:4], b[:4] = np.array([0.0, -0.0, np.inf, np.nan]), np.array([1.0, 0.0, 2.0, 1.0])
    with np.errstate(all="ignore"):
        cases = {
            "add": (lambda x, y, z: x + y, a + b),
            "sub": (lambda x, y, z: x - y, a - b),
            "mul": (lambda x, y, z: x * y, a * b),
            "div": (lambda x, y, z: x / y, a / b),
            "neg": (lambda x, y, z: -x, -a),
            "abs": (lambda x, y, z: abs_(x), np.abs(a)),
            "min": (lambda x, y, z: min_(x, y), np.fmin(a, b)),
            "max": (lambda x, y, z: max_(x, y), np.fmax(a, b)),
            "literals": (lambda x, y, z: 2 - x * 0.5, dtype.type(2) - a * dtype.type(0.5)),
            "half of one": (lambda x, y, z: 1 / x, dtype.type(1) / a),
            "select": (lambda x, y, z: select(x < y, z, 0.25), np.where(a < b, c, dtype.type(0.25))),
            **{
                name: (
                    lambda x, y, z, relation=relation: select(relation(x, y), 1.0, z),
                    np.where(relation(a, b), dtype.type(1), c),
                )
                for name, relation in RELATIONS.items()
            },
        }
    found = elementwise([function for function, _ in cases.values()], a, b, c, dtype=dtype)
    for row, (name, (_, expected)) in zip(found, cases.items(), strict=True):
        given, wanted = row.astype(float), expected.astype(dtype).astype(float)
        np.testing.assert_array_equal(given, wanted, err_msg=f"{name} of {type_}")
        if name in ("add", "sub", "mul", "div"):
            pairs = zip(a.astype(float).tolist(), b.astype(float).tolist(), strict=True)
            folded = [fold(name, type_, x, y) for x, y in pairs]
            np.testing.assert_array_equal(np.array(folded, float), given, err_msg=f"{name} of {type_} folded")


@pytest.mark.parametrize("type_", FLOATS)
def test_fma_rounds_once(type_):
    rng = np.random.default_rng()
    dtype = dtype_of(type_)
    digits = {"f16": 5, "bf16": 3, "f32": 11, "f64": 25}[type_]
    a, b = (rng.integers(-(1 << digits), 1 << digits, SIZE).astype(dtype) for _ in range(2))
    c = np.where(rng.integers(0, 2, SIZE), 0.5, -0.25).astype(dtype)
    (found,) = elementwise([fma], a, b, c, dtype=dtype)
    exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    np.testing.assert_array_equal(found, exact.astype(np.float64).astype(dtype))


def test_predicates():
    rng = np.random.default_rng()
    a, b = (rng.integers(0, 3, SIZE, np.int32) for _ in range(2))
    found = elementwise(
        [
            lambda x, y: select((x == 1) & (y == 1), 1, x * 0),
            lambda x, y: select((x == 1) | (y == 1), 1, x * 0),
            lambda x, y: select((x == 1) ^ (y == 1), 1, x * 0),
            lambda x, y: select(~(x == 1), 1, x * 0),
            lambda x, y: select((x == 1) == (y == 1), 1, x * 0),
            lambda x, y: (x == 1).to("s32") + select((x == 1) & True, x, 0) + select((y == 1) | True, 0, x),
            lambda x, y: y.to("pred").to("s32"),
        ],
        a,
        b,
        dtype=np.int32,
    )
    p, q = a == 1, b == 1
    for row, expected in zip(found, (p & q, p | q, p ^ q, ~p, p == q, p.astype(int) * 2, b != 0), strict=True):
        np.testing.assert_array_equal(row, expected)


def test_integers_mix_where_no_number_changes():
    @kernel
    def mix(out, narrow, n: s32, big: s64, small: u8):
        i = cta_index() * special("ntid.x") + thread()
        out[0, i] = i - n
        out[1, i] = big + i
        out[2, i] = n * big
        out[3, i] = small + n
        out[4, i] = select(i < n, i, n)
        for k in loop(i, n):
            out[5, i] = k
        out[6, i] = min_(i, n - 9) + max_(n - 9, i % 8)
        out[7, i] = fma(i, 3, n)
        narrow[i] = i
        for k in loop(3):
            narrow[i] = ((special("clock") & 0) + k + narrow[i].bits(u32)).to(s32)

    n, big, small = 21, -(1 << 40), 200
    out, narrow, i = np.zeros((8, 64), np.int64), np.full(64, -1, np.int32), np.arange(64)
    run(mix, out, narrow, n, big, small, grid=(2, 1, 1))
    expected = [i - n, big + i, np.full(64, n * big), np.full(64, small + n), np.minimum(i, n)]
    expected += [np.where(i < n, n - 1, 0), np.minimum(i, 12) + np.maximum(12, i % 8), i * 3 + n]
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(narrow, i + 3)


@pytest.mark.parametrize(
    "act",
    [
        lambda x, n: n + x[0],
        lambda x, n: x[0] < n,
        lambda x, n: thread() * 0x9E3779B9 + n,
        lambda x, n: (thread() - 5) + n,
        lambda x, n: n + x[0].to("u64"),
        lambda x, n: Variable(s32, x[0]),
        lambda x, n: x.store((n,), 0),
    ],
)
def test_integers_that_could_change_do_not_mix(act):
    @kernel
    def mix(x, n: s32):
        act(x, n)

    with pytest.raises(TraceError, match="TYPE_MISMATCH"):
        mix.bind(np.zeros(4, np.uint32), 3, grid=(1, 1, 1), block=(32, 1, 1))
