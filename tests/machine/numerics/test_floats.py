"""Floating-point arithmetic against fractions: one rounding, for every type and mode."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.machine.numerics.numerics_reference import (
    INFINITY,
    ORDERED,
    UNORDERED,
    code_of,
    edge_bits,
    f32_bits,
    f64_bits,
    random_bits,
    run,
    value_of,
)

from warploom.diagnostics import WarploomError
from warploom.hardware.dtypes import ELEMENT_TYPES

F32 = ELEMENT_TYPES["f32"]
ARITY = {"add": 2, "sub": 2, "mul": 2, "fma": 3}


def terms_of(operation, values):
    """An operation as products that are summed."""
    match operation:
        case "add":
            return [(values[0], 1), (values[1], 1)]
        case "sub":
            return [(values[0], 1), (values[1], -1)]
        case "mul":
            return [(values[0], values[1])]
    return [(values[0], values[1]), (values[2], 1)]


def is_negative(bits, element):
    return bool(bits & element.sign)


def expected_code(operation, operands, element, rounding):
    """The code of the exact result; None means NaN."""
    values = [value_of(bits, element) for bits in operands]
    if any(value != value for value in values):
        return None
    signs = [is_negative(bits, element) for bits in operands]
    terms = terms_of(operation, values)
    term_signs = {"add": [signs[0], signs[1]], "sub": [signs[0], not signs[1]], "mul": [signs[0] != signs[1]]}.get(
        operation, [signs[0] != signs[1], signs[-1]]
    )
    infinities = set()
    for (left, right), negative in zip(terms, term_signs, strict=True):
        if abs(left) == INFINITY or abs(right) == INFINITY:
            if left == 0 or right == 0:
                return None
            infinities.add(negative)
    if len(infinities) == 2:
        return None
    if infinities:
        return element.infinity | (element.sign if True in infinities else 0)
    total = sum((Fraction(left) * right for left, right in terms), Fraction(0))
    negative_zero = all(term_signs) or (rounding == "rm" and any(term_signs))
    return code_of(total, element, rounding, negative_zero=negative_zero)


def check(opcode, operation, element, rounding, operands):
    got = run(opcode, *operands).tolist()
    for lane, codes in enumerate(zip(*(operand.tolist() for operand in operands), strict=True)):
        expected = expected_code(operation, codes, element, rounding)
        if expected is None:
            assert value_of(got[lane], element) != value_of(got[lane], element), (opcode, codes)
            assert element.name == "f64" or got[lane] == element.nan
        else:
            assert got[lane] == expected, (opcode, [hex(code) for code in codes], hex(got[lane]), hex(expected))


def operands_for(name, arity, seed, count=700):
    """Edges against edges, and random numbers with random exponents."""
    rng = np.random.default_rng(seed)
    edges = edge_bits(name)
    return [np.concatenate([rng.choice(edges, count // 2), random_bits(rng, name, count // 2)]) for _ in range(arity)]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("operation", ARITY)
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_arithmetic(name, operation, rounding):
    operands = operands_for(name, ARITY[operation], seed=1)
    check(f"{operation}.{rounding}.{name}", operation, ELEMENT_TYPES[name], rounding, operands)


@pytest.mark.parametrize("operation", ARITY)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_half_arithmetic(name, operation):
    operands = operands_for(name, ARITY[operation], seed=2, count=1500)
    check(f"{operation}.rn.{name}", operation, ELEMENT_TYPES[name], "rn", operands)


@pytest.mark.parametrize("operation", ARITY)
@pytest.mark.parametrize(
    ("packed", "wide", "name"),
    [("f16x2", np.uint32, "f16"), ("bf16x2", np.uint32, "bf16"), ("f32x2", np.uint64, "f32")],
)
def test_packed_arithmetic_is_elementwise(packed, wide, name, operation):
    operands = operands_for(name, ARITY[operation], seed=3)
    flat = run(f"{operation}.rn.{name}", *operands)
    assert np.array_equal(
        run(f"{operation}.rn.{packed}", *(operand.view(wide) for operand in operands)), flat.view(wide)
    )


def middles(rng, count):
    """Factors whose product is a midpoint of float32, exactly: 13 and 12 digits, both odd."""
    a = (rng.integers(1 << 11, 1 << 12, count) * 2 + 1).astype(np.float64)
    b = (rng.integers(1 << 10, 1 << 11, count) * 2 + 1).astype(np.float64)
    inside = (a * b >= 1 << 24) & (a * b < 1 << 25)
    return a[inside], b[inside]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_fma_does_not_round_twice(rounding):
    """The product is a midpoint, and the third operand is below the last bit of the sum in float64."""
    rng = np.random.default_rng(4)
    a, b = middles(rng, 4000)
    c = np.ldexp(rng.choice([-1.0, 1.0], len(a)), -rng.integers(10, 120, len(a)))
    scale = np.ldexp(1.0, rng.integers(-30, 30, len(a)))
    operands = [f32_bits(a * scale), f32_bits(b), f32_bits(c * scale)]
    check(f"fma.{rounding}.f32", "fma", F32, rounding, operands)


def test_plain_double_rounding_is_wrong_for_these_inputs():
    """The inputs above distinguish: without round-to-odd, half of them would go to the even neighbour."""
    rng = np.random.default_rng(4)
    a, b = middles(rng, 4000)
    c = np.ldexp(rng.choice([-1.0, 1.0], len(a)), -40)
    naive = (a * b + c).astype(np.float32).view(np.uint32)
    exact = run("fma.rn.f32", f32_bits(a), f32_bits(b), f32_bits(c))
    assert np.count_nonzero(naive != exact) > len(a) // 4


def test_fma_in_the_subnormals_of_f32():
    rng = np.random.default_rng(5)
    a = np.ldexp(rng.integers(1 << 23, 1 << 24, 900).astype(np.float64), -100)
    b = np.ldexp(rng.integers(1 << 23, 1 << 24, 900).astype(np.float64), -rng.integers(70, 98, 900))
    c = np.ldexp(rng.integers(-8, 9, 900).astype(np.float64), -149)
    check("fma.rn.f32", "fma", F32, "rn", [f32_bits(a), f32_bits(b), f32_bits(c)])
    check("mul.rn.f32", "mul", F32, "rn", [f32_bits(a), f32_bits(b)])


def test_bf16_does_not_round_twice():
    """Products that are subnormal in f32, and sums whose small term decides a tie."""
    rng = np.random.default_rng(6)
    element = ELEMENT_TYPES["bf16"]
    exponent = rng.integers(1, 120, 1500)
    partner = np.clip(127 - 133 - (exponent - 127) + rng.integers(-3, 9, 1500), 0, 254)
    a, b = (((e << 7) | rng.integers(0, 128, 1500)).astype(np.uint16) for e in (exponent, partner))
    c = rng.choice(np.array([0, 1, 2, 0x8001, 0x0040, 0x807F], np.uint16), 1500)
    check("mul.rn.bf16", "mul", element, "rn", [a, b])
    check("fma.rn.bf16", "fma", element, "rn", [a, b, c])
    near = ((rng.integers(120, 134, (2, 1500)) << 7) | rng.integers(0, 128, (2, 1500))).astype(np.uint16)
    far = ((rng.integers(1, 140, 1500) << 7) | rng.integers(0, 128, 1500) | (rng.integers(0, 2, 1500) << 15)).astype(
        np.uint16
    )
    check("fma.rn.bf16", "fma", element, "rn", [*near, far])


def test_fma_of_doubles_with_far_exponents():
    rng = np.random.default_rng(7)
    exponents = rng.integers(-1060, 1020, (3, 1200))
    exponents[2, ::2] = np.clip(exponents[0, ::2] + exponents[1, ::2] + rng.integers(-110, 60, 600), -1074, 1020)
    values = np.ldexp(1 + rng.random((3, 1200)), exponents) * rng.choice([-1.0, 1.0], (3, 1200))
    check("fma.rn.f64", "fma", ELEMENT_TYPES["f64"], "rn", [f64_bits(row) for row in values])


def test_fma_of_doubles_that_cancel():
    rng = np.random.default_rng(8)
    a, b = 1 + rng.random(600), 1 + rng.random(600)
    c = -(a * b) * (1 + rng.integers(-2, 3, 600) * 2.0**-52)
    check("fma.rn.f64", "fma", ELEMENT_TYPES["f64"], "rn", [f64_bits(a), f64_bits(b), f64_bits(c)])


def flushed(bits, element):
    """Subnormal operands as zeros."""
    size = bits & (element.sign - 1)
    return np.where(size < element.smallest_normal, bits & element.sign, bits).astype(bits.dtype)


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("operation", ["mul", "fma", "add"])
def test_ftz_flushes_results_that_are_subnormal_after_rounding(operation, rounding):
    """Rounded as with an unbounded exponent range, modelled by a format with one more exponent bit."""
    rng = np.random.default_rng(9)
    wider = ELEMENT_TYPES["f64"]
    a = np.ldexp(1 + rng.random(900), -60).astype(np.float32)
    b = (2.0**-126 * (1 - rng.random(900) * 2.0**-22) / a).astype(np.float32)
    operands = [f32_bits(a), f32_bits(b), f32_bits(rng.choice([0.0, -0.0, 2.0**-126, -(2.0**-125)], 900))][
        : ARITY[operation]
    ]
    operands = [np.concatenate([x, y]) for x, y in zip(operands, operands_for("f32", len(operands), 9), strict=True)]
    got = run(f"{operation}.{rounding}.ftz.f32", *operands).tolist()
    clean = [flushed(operand, F32) for operand in operands]
    assert wider.bias > F32.bias
    for lane, codes in enumerate(zip(*(operand.tolist() for operand in clean), strict=True)):
        expected = expected_code(operation, codes, F32, rounding)
        value = None if expected is None else value_of(expected, F32)
        if isinstance(value, Fraction) and abs(value) <= Fraction(1, 1 << 126):
            values = [value_of(code, F32) for code in codes]
            total = sum((Fraction(x) * y for x, y in terms_of(operation, values)), Fraction(0))
            lifted = value_of(code_of(total * (1 << 64), F32, rounding), F32)
            if abs(lifted) < Fraction(1, 1 << 62):
                expected &= F32.sign
        assert got[lane] == (F32.nan if expected is None else expected), [hex(code) for code in codes]


def test_ftz_of_half():
    got = run(
        "mul.rn.ftz.f16", np.array([0x0400, 0x03FF, 0x8400], np.uint16), np.array([0x3BFF, 0x3C00, 0x3800], np.uint16)
    )
    assert got.tolist() == [0, 0, 0x8000]
    assert run("add.rn.ftz.f16", np.array([0x0200], np.uint16), np.array([0x0200], np.uint16)).tolist() == [0]


@pytest.mark.parametrize("name", ["f32", "f16"])
def test_sat_clamps_to_the_unit_interval(name):
    element = ELEMENT_TYPES[name]
    operands = operands_for(name, 2, seed=10)
    plain = run(f"add.rn.{name}", *operands).view(element.values).astype(np.float64)
    got = run(f"add.rn.sat.{name}", *operands).view(element.values).astype(np.float64)
    assert np.array_equal(got, np.where(plain > 0, np.minimum(plain, 1), 0))
    assert not np.signbit(got).any()


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_relu_and_out_of_bounds(name):
    element = ELEMENT_TYPES[name]
    operands = operands_for(name, 3, seed=11)
    operands[0][:4] = (0x7FF7, 0xFFF7, 0x7FFF, 0x3C00)
    operands[1][:4] = (0x3C00, 0x3C00, 0x3C00, 0x7FF7)
    plain = run(f"fma.rn.{name}", *operands)
    relu = np.where(plain & element.sign, 0, plain)
    assert np.array_equal(run(f"fma.rn.relu.{name}", *operands), relu)
    marks = np.isin(operands[0], (0x7FF7, 0xFFF7)) | np.isin(operands[1], (0x7FF7, 0xFFF7))
    assert marks[:4].tolist() == [True, True, False, True]
    assert np.array_equal(run(f"fma.rn.oob.{name}", *operands), np.where(marks, 0, plain))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("rounding", ["rn", "rm"])
def test_mixed_precision(name, rounding):
    rng = np.random.default_rng(12)
    a, b = random_bits(rng, name, 500), random_bits(rng, name, 500)
    c = random_bits(rng, "f32", 500)
    wide = [run(f"cvt.f32.{name}", bits) for bits in (a, b)]
    assert np.array_equal(run(f"add.{rounding}.f32.{name}", a, c), run(f"add.{rounding}.f32", wide[0], c))
    assert np.array_equal(run(f"fma.{rounding}.f32.{name}", a, b, c), run(f"fma.{rounding}.f32", *wide, c))


def ordered(bits, element):
    """A key that sorts codes as PTX compares them: -0 below +0."""
    size = bits & (element.sign - 1)
    return -size - 1 if bits & element.sign else size


@pytest.mark.parametrize("flags", ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"])
@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_extremes(name, operation, flags):
    element = ELEMENT_TYPES[name]
    operands = operands_for(name, 2, seed=13, count=3000)
    got = run(f"{operation}{flags}.{name}", *operands).tolist()
    pick = min if operation == "min" else max
    for lane, (a, b) in enumerate(zip(*(operand.tolist() for operand in operands), strict=True)):
        sign = (a ^ b) & element.sign
        numbers = [code & (element.sign - 1) if "abs" in flags else code for code in (a, b)]
        numbers = [code for code in numbers if value_of(code, element) == value_of(code, element)]
        expected = pick(numbers, key=lambda code: ordered(code, element)) if numbers else element.nan
        if "NaN" in flags and len(numbers) < 2:
            expected = element.nan
        elif "xorsign" in flags and numbers:
            expected |= sign
        assert got[lane] == expected, (hex(a), hex(b))


@pytest.mark.parametrize("operation", ["min", "max"])
def test_three_operands_and_doubles(operation):
    a, b, c = operands_for("f32", 3, seed=14)
    two = run(f"{operation}.NaN.f32", a, b)
    assert np.array_equal(run(f"{operation}.NaN.f32", a, b, c), run(f"{operation}.NaN.f32", two, c))
    sizes = [bits & 0x7FFFFFFF for bits in (a, b, c)]
    assert np.array_equal(run(f"{operation}.abs.f32", a, b, c), run(f"{operation}.f32", *sizes))
    x, y = operands_for("f64", 2, seed=15)
    got = run(f"{operation}.f64", x, y).view(np.float64)
    expected = (np.fmin if operation == "min" else np.fmax)(x.view(np.float64), y.view(np.float64))
    assert np.array_equal(got, expected, equal_nan=True)


def test_zeros_have_an_order():
    plus, minus = f32_bits([0.0]), f32_bits([-0.0])
    for a, b in ((plus, minus), (minus, plus)):
        assert run("min.f32", a, b).tolist() == minus.tolist()
        assert run("max.f32", a, b).tolist() == plus.tolist()


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_quotients_and_roots(name, rounding):
    element = ELEMENT_TYPES[name]
    a, b = operands_for(name, 2, seed=16, count=900)
    squares = (np.random.default_rng(1).integers(1, 4096, 200).astype(element.values) ** 2).view(element.storage)
    quotients = run(f"div.{rounding}.{name}", a, b).tolist()
    inverses = run(f"rcp.{rounding}.{name}", b).tolist()
    for lane, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        top, bottom = value_of(x, element), value_of(y, element)
        if isinstance(top, Fraction) and isinstance(bottom, Fraction) and top != 0 and bottom != 0:
            assert quotients[lane] == code_of(top / bottom, element, rounding)
        if isinstance(bottom, Fraction) and bottom != 0:
            assert inverses[lane] == code_of(1 / bottom, element, rounding)
    roots = np.concatenate([a, squares])
    for code, root in zip(roots.tolist(), run(f"sqrt.{rounding}.{name}", roots).tolist(), strict=True):
        value = value_of(code, element)
        if isinstance(value, Fraction) and value > 0:
            assert root == root_code(value, element, rounding), hex(code)


def root_code(value, element, rounding):
    """The code of a square root: the largest one whose square is not greater, rounded by the mode."""
    low, high = 0, element.largest
    while low < high:
        middle = (low + high + 1) // 2
        if value_of(middle, element) ** 2 <= value:
            low = middle
        else:
            high = middle - 1
    below = value_of(low, element)
    if below**2 == value or rounding in ("rz", "rm"):
        return low
    if rounding == "rp":
        return low + 1
    middle = (below + value_of(low + 1, element)) / 2
    return low if middle**2 > value else low + 1


def test_special_quotients():
    nan, infinity = 0x7FFFFFFF, 0x7F800000
    a = f32_bits([1.0, -1.0, 0.0, np.inf, np.inf, 1.0, np.nan])
    b = f32_bits([0.0, 0.0, 0.0, 2.0, np.inf, -np.inf, 1.0])
    expected = [infinity, infinity | 1 << 31, nan, infinity, nan, 1 << 31, nan]
    for mode in ("rn", "rz", "full", "approx"):
        assert run(f"div.{mode}.f32", a, b).tolist() == expected
    huge = f32_bits([2.0**127, -(2.0**127), 2.0**127])
    assert run("div.approx.f32", f32_bits([1.0, 1.0, np.inf]), huge).tolist() == [0, 1 << 31, nan]


@pytest.mark.parametrize(
    ("opcode", "argument", "expected"),
    [
        ("ex2.approx.f32", [-np.inf, np.inf, 0.0, 3.0, -149.0, np.nan], [0.0, np.inf, 1.0, 8.0, 2.0**-149, np.nan]),
        ("ex2.approx.ftz.f32", [-149.0, 1e-45], [0.0, 1.0]),
        ("lg2.approx.f32", [0.0, -0.0, 8.0, -1.0, np.inf, 2.0**-149], [-np.inf, -np.inf, 3.0, np.nan, np.inf, -149.0]),
        ("lg2.approx.ftz.f32", [1e-45, -1e-45], [-np.inf, -np.inf]),
        ("rsqrt.approx.f32", [0.0, -0.0, 4.0, -1.0, np.inf], [np.inf, -np.inf, 0.5, np.nan, 0.0]),
        ("sqrt.approx.f32", [-0.0, 4.0, -1.0, np.inf], [-0.0, 2.0, np.nan, np.inf]),
        ("rcp.approx.f32", [0.0, -0.0, np.inf, -np.inf, 4.0], [np.inf, -np.inf, 0.0, -0.0, 0.25]),
        ("sin.approx.f32", [0.0, -0.0, np.inf], [0.0, -0.0, np.nan]),
        ("cos.approx.f32", [0.0, -0.0, -np.inf], [1.0, 1.0, np.nan]),
        ("tanh.approx.f32", [0.0, -0.0, np.inf, -np.inf], [0.0, -0.0, 1.0, -1.0]),
    ],
)
def test_special_values_of_functions(opcode, argument, expected):
    codes = f32_bits(expected)
    codes[np.isnan(np.array(expected))] = 0x7FFFFFFF
    assert run(opcode, f32_bits(argument)).tolist() == codes.tolist()


@pytest.mark.parametrize("name", ["ex2", "lg2", "sin", "cos", "tanh", "rsqrt"])
def test_functions_are_float64_rounded(name):
    rng = np.random.default_rng(17)
    values = np.abs(rng.standard_normal(2000) * 4).astype(np.float32)
    wide = values.astype(np.float64)
    function = {"ex2": np.exp2, "lg2": np.log2, "rsqrt": lambda x: 1 / np.sqrt(x)}.get(name) or getattr(np, name)
    assert np.array_equal(run(f"{name}.approx.f32", f32_bits(values)), f32_bits(function(wide)))


def test_half_functions_over_every_input():
    codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        for name, function in (("ex2", np.exp2), ("tanh", np.tanh)):
            values = function(codes.view(np.float16).astype(np.float64))
            got = run(f"{name}.approx.f16", codes)
            assert np.array_equal(got.view(np.float16), values.astype(np.float16), equal_nan=True)
            assert (got[np.isnan(values)] == 0x7FFF).all()
    flushed_ends = run("ex2.approx.ftz.bf16", np.array([0x0001, 0xC2FE, 0xC2FA], np.uint16))
    assert flushed_ends.tolist() == [0x3F80, 0, 0x0100]


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_signs(name):
    element = ELEMENT_TYPES[name]
    (bits,) = operands_for(name, 1, seed=18)
    number = (bits & (element.sign - 1)) <= element.infinity
    assert np.array_equal(run(f"abs.{name}", bits)[number], bits[number] & (element.sign - 1))
    assert np.array_equal(run(f"neg.{name}", bits)[number], bits[number] ^ element.sign)
    for opcode in (f"abs.{name}", f"neg.{name}"):
        nan = run(opcode, bits)[~number]
        expected = bits[~number] | (1 << 51) if name == "f64" else np.full(len(nan), element.nan)
        assert np.array_equal(nan, expected)


def test_ftz_of_signs_and_copysign():
    assert run("abs.ftz.f32", f32_bits([-1e-45, -2.0])).tolist() == f32_bits([0.0, 2.0]).tolist()
    assert run("neg.ftz.f32", f32_bits([1e-45])).tolist() == f32_bits([-0.0]).tolist()
    assert run("copysign.f32", f32_bits([-1.0, 2.0]), f32_bits([3.0, -4.0])).tolist() == f32_bits([-3.0, 4.0]).tolist()


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_properties(name):
    element = ELEMENT_TYPES[name]
    (bits,) = operands_for(name, 1, seed=19)
    values = bits.view(element.values)
    tiny = np.finfo(element.values).smallest_normal
    expected = {
        "finite": np.isfinite(values),
        "infinite": np.isinf(values),
        "number": ~np.isnan(values),
        "notanumber": np.isnan(values),
        "normal": np.isfinite(values) & ((np.abs(values) >= tiny) | (values == 0)),
        "subnormal": (values != 0) & (np.abs(values) < tiny),
    }
    for test, truth in expected.items():
        assert np.array_equal(run(f"testp.{test}.{name}", bits), truth), test


def compare(comparison, a, b):
    if a != a or b != b:
        return comparison in UNORDERED
    truth = {
        "eq": a == b,
        "ne": a != b,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
        "num": True,
        "nan": False,
    }
    return truth[comparison if comparison in truth else comparison[:2]]


@pytest.mark.parametrize("comparison", sorted(ORDERED | UNORDERED))
@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_comparisons(name, comparison):
    element = ELEMENT_TYPES[name]
    a, b = operands_for(name, 2, seed=20, count=600)
    expected = [
        compare(comparison, value_of(x, element), value_of(y, element))
        for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert run(f"setp.{comparison}.{name}", a, b).tolist() == expected
    if name in ("f16", "bf16"):
        low, high = run(f"setp.{comparison}.{name}x2", a.view(np.uint32), b.view(np.uint32))
        assert low.tolist() == expected[0::2]
        assert high.tolist() == expected[1::2]


def test_comparison_flushes_and_combines():
    a, b = f32_bits([1e-45, -1e-45, 1.0]), f32_bits([0.0, 1e-45, 2.0])
    c = np.array([True, False, True])
    assert run("setp.eq.ftz.f32", a, b).tolist() == [True, True, False]
    assert run("setp.lt.and.f32", a, b, c).tolist() == [False, False, True]
    assert run("setp.lt.xor.f32", a, b, c).tolist() == [True, True, False]


def test_set_and_select():
    a, b = f32_bits([1.0, np.nan, 3.0]), f32_bits([2.0, 2.0, 2.0])
    assert run("set.ltu.u32.f32", a, b).tolist() == [0xFFFFFFFF, 0xFFFFFFFF, 0]
    assert run("set.lt.f32.f32", a, b).tolist() == [0x3F800000, 0, 0]
    c = np.array([True, False, True])
    assert run("selp.b32", a, b, c).tolist() == np.where(c, a, b).tolist()
    chosen = run("slct.u32.f32", a, b, f32_bits([-0.0, np.nan, -1.0]))
    assert chosen.tolist() == [a[0], b[1], b[2]]
    halves = np.array([0x3C00_4000], np.uint32)
    assert run("set.lt.f16x2.f16x2", halves, np.array([0x4000_4000], np.uint32)).tolist() == [0x3C00_0000]
    assert run("set.lt.u32.f16x2", halves, np.array([0x4000_4000], np.uint32)).tolist() == [0xFFFF_0000]


@pytest.mark.parametrize(
    "opcode", ["add.rn.ftz.bf16", "add.rz.f16", "abs.ftz.f64", "lg2.approx.f16", "div.full.f64", "min.ftz.bf16"]
)
def test_instructions_that_ptx_lacks_are_refused(opcode):
    with pytest.raises(WarploomError, match="NOT_MODELLED"):
        run(opcode, np.zeros(2, np.uint16), np.zeros(2, np.uint16))
