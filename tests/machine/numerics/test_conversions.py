"""Conversions: every input of at most 16 bits, a million of 32, and all rounding boundaries."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from tests.machine.numerics.numerics_reference import (
    around_every_value,
    code_of,
    edge_bits,
    f32_bits,
    nearest_codes,
    random_bits,
    run,
    to_signed,
    value_of,
)

from warploom.diagnostics import WarploomError
from warploom.hardware.dtypes import ELEMENT_TYPES, PACKED_TYPES

MILLION = 1_000_000
HALVES = np.arange(1 << 16, dtype=np.uint16)
BYTES = np.arange(256, dtype=np.uint8)
ML = {name: ELEMENT_TYPES[name].values for name in ELEMENT_TYPES}
SMALL = ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2")
INTEGERS = [f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64)]


@pytest.fixture(autouse=True)
def _quiet():
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(scope="module")
def f32():
    """A million patterns, and the special ones."""
    rng = np.random.default_rng(11)
    return np.concatenate([edge_bits("f32"), random_bits(rng, "f32", MILLION - len(edge_bits("f32")))])


def halves_as_f64(name):
    return HALVES.view(ML[name]).astype(np.float64)


def unpacked(bits, name):
    """Fields of packed registers, lowest first, one column each."""
    packed = PACKED_TYPES[name]
    columns = [bits.astype(np.uint64) >> np.uint64(packed.field_bits * at) for at in range(packed.count)]
    return [(column & np.uint64((1 << packed.field_bits) - 1)).astype(packed.element.storage) for column in columns]


def paired(bits, name):
    packed = PACKED_TYPES[name]
    return (bits[0::2].astype(np.uint64) | (bits[1::2].astype(np.uint64) << np.uint64(packed.field_bits))).astype(
        packed.storage
    )


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_f32_to_half(target, rounding, f32):
    bits = np.concatenate([f32 if rounding in ("rn", "rz") else f32[:200_000], f32_bits(around_every_value(target))])
    expected = nearest_codes(bits.view(np.float32).astype(np.float64), target, rounding)
    assert np.array_equal(run(f"cvt.{rounding}.{target}.f32", bits), expected)


@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_f32_to_half_matches_ml_dtypes(target, f32):
    ours = run(f"cvt.rn.{target}.f32", f32)
    theirs = f32.view(np.float32).astype(ML[target]).view(np.uint16)
    number = ~np.isnan(f32.view(np.float32))
    assert np.array_equal(ours[number], theirs[number])
    assert (ours[~number] == 0x7FFF).all()


@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_packed_halves_put_the_first_operand_on_top(target, rounding, relu, f32):
    a, b = f32[0:200_000:2], f32[1:200_000:2]
    for flags, finite in ((relu, False), (f"{relu}.satfinite", True)):
        low, high = unpacked(run(f"cvt.{rounding}{flags}.{target}x2.f32", a, b), f"{target}x2")
        for got, source in ((high, a), (low, b)):
            codes = nearest_codes(source.view(np.float32).astype(np.float64), target, rounding, finite=finite)
            expected = np.where(codes & 0x8000, 0, codes) if relu else codes
            assert np.array_equal(got, expected)


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("target", SMALL)
def test_f32_to_small(target, relu, f32):
    """To e4m3, e5m2, e2m1, e2m3 and e3m2: saturating, NaN to NaN or to the largest value."""
    bits = np.concatenate([f32, f32_bits(around_every_value(target))])
    values = bits.view(np.float32).astype(np.float64)
    expected = nearest_codes(values, target, "rn", finite=True)
    if relu:
        expected = np.where(expected & ELEMENT_TYPES[target].sign, 0, expected)
    low, high = unpacked(run(f"cvt.rn.satfinite{relu}.{target}x2.f32", bits, bits[::-1]), f"{target}x2")
    assert np.array_equal(high, expected)
    assert np.array_equal(low, expected[::-1])


@pytest.mark.parametrize("target", SMALL)
def test_f32_to_small_matches_ml_dtypes(target, f32):
    """Both agree on values that do not saturate."""
    values = f32.view(np.float32)
    inside = np.abs(values) <= float(np.float32(ml_dtypes.finfo(ML[target]).max))
    theirs = values[inside].astype(ML[target]).view(np.uint8)
    (_, high) = unpacked(run(f"cvt.rn.satfinite.{target}x2.f32", f32[inside], f32[inside]), f"{target}x2")
    assert np.array_equal(high, theirs & np.uint8((1 << ELEMENT_TYPES[target].bits) - 1))


@pytest.mark.parametrize("source", ["f16", "bf16"])
@pytest.mark.parametrize("target", SMALL)
def test_half_to_small(target, source):
    expected = nearest_codes(halves_as_f64(source), target, "rn", finite=True)
    got = run(f"cvt.rn.satfinite.{target}x2.{source}x2", HALVES.view(np.uint32))
    assert np.array_equal(got, paired(expected, f"{target}x2"))


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("source", SMALL)
def test_small_to_half(source, relu):
    """Exhaustively over both fields of the register."""
    packed = PACKED_TYPES[f"{source}x2"]
    field = np.arange(1 << ELEMENT_TYPES[source].bits, dtype=np.uint64)
    low, high = (column.ravel() for column in np.meshgrid(field, field))
    register = (low | (high << np.uint64(packed.field_bits))).astype(packed.storage)
    values = field.astype(np.uint8).view(ML[source]).astype(np.float64)
    expected = nearest_codes(values, "f16", "rn")
    if relu:
        expected = np.where(expected & 0x8000, 0, expected)
    halves = unpacked(run(f"cvt.rn{relu}.f16x2.{source}x2", register), "f16x2")
    assert np.array_equal(halves[0], expected[low])
    assert np.array_equal(halves[1], expected[high])


@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
@pytest.mark.parametrize("rounding", ["rz", "rp"])
def test_powers_of_two(rounding, satfinite, f32):
    """ue8m0 of |x| is the power of two below it or above it; there is none below 2^-127 or above 2^127."""
    powers = f32_bits(np.ldexp(1.0, np.arange(-149, 128)))
    bits = np.concatenate([f32[:20000], powers, powers + 1, powers - 1])
    size = np.abs(bits.view(np.float32).astype(np.float64))
    exact = np.log2(np.maximum(size, 2.0**-149))
    codes = np.clip(np.floor(exact) if rounding == "rz" else np.ceil(exact), -127, 128) + 127
    # log2 of a number next to a power of two may round to that power.
    for shift in (-1, 1):
        power = np.ldexp(1.0, (codes - 127).astype(int))
        wrong = (size < power) & (codes > 0) if rounding == "rz" else (size > power) & (codes < 255)
        codes = codes + np.where(wrong, (-1 if rounding == "rz" else 1) * (shift == 1), 0)
    if satfinite:
        codes = np.minimum(codes, 254)
    codes = np.where(np.isinf(size), 254 if satfinite else 255, codes)
    expected = np.where(np.isnan(size), 255, codes).astype(np.uint8)
    low, high = unpacked(run(f"cvt.{rounding}{satfinite}.ue8m0x2.f32", bits, bits[::-1]), "ue8m0x2")
    assert np.array_equal(high, expected)
    assert np.array_equal(low, expected[::-1])


@pytest.mark.parametrize("rounding", ["rz", "rp"])
def test_powers_of_two_from_bf16(rounding):
    wide = HALVES.astype(np.uint32) << 16
    expected = run(f"cvt.{rounding}.satfinite.ue8m0x2.f32", wide[1::2], wide[0::2])
    assert np.array_equal(run(f"cvt.{rounding}.satfinite.ue8m0x2.bf16x2", HALVES.view(np.uint32)), expected)


def test_powers_of_two_to_bf16():
    expected = nearest_codes(BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float64), "bf16", "rn")
    register = BYTES.astype(np.uint16) | (BYTES[::-1].astype(np.uint16) << 8)
    low, high = unpacked(run("cvt.rn.bf16x2.ue8m0x2", register), "bf16x2")
    assert np.array_equal(low, expected)
    assert np.array_equal(high, expected[::-1])


@pytest.mark.parametrize("rounding", ["rn", "rz", "rna"])
@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_f32_to_tf32(rounding, satfinite, f32):
    values = f32.view(np.float32).astype(np.float64)
    kept = nearest_codes(values[:300000], "tf32", rounding, finite=bool(satfinite))
    got = run(f"cvt.{rounding}{satfinite}.tf32.f32", f32)[:300000]
    number = ~np.isnan(values[:300000]) | (rounding != "rna") | bool(satfinite)
    assert np.array_equal(got[number], kept[number])
    assert not (got & 0x1FFF).any()


@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_half_to_f32_and_f64(source):
    values = halves_as_f64(source)
    number = ~np.isnan(values)
    for target in ("f32", "f64"):
        got = run(f"cvt.{target}.{source}", HALVES).view(ML[target])
        assert np.array_equal(got[number], values[number].astype(ML[target]))
        assert np.isnan(got[~number]).all()
        assert np.array_equal(np.signbit(got[number]), np.signbit(values[number]))


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_half_to_the_other_half(rounding):
    for target, source in (("bf16", "f16"), ("f16", "bf16")):
        expected = nearest_codes(halves_as_f64(source), target, rounding)
        assert np.array_equal(run(f"cvt.{rounding}.{target}.{source}", HALVES), expected)


def f64_inputs(target):
    rng = np.random.default_rng(5)
    points = around_every_value(target)[::7].astype(np.float64) if target != "f32" else np.zeros(0)
    singles = random_bits(rng, "f32", 4000).view(np.float32).astype(np.float64)
    middles = (singles + np.nextafter(singles.astype(np.float32), np.float32(np.inf))) / 2
    some = np.concatenate([points, singles, middles, random_bits(rng, "f64", 4000).view(np.float64)])
    some = np.concatenate([some, np.nextafter(some, np.inf), np.nextafter(some, -np.inf)])
    return some[~np.isnan(some)]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_f64_to_half(target, rounding):
    values = f64_inputs(target)
    expected = nearest_codes(values, target, rounding)
    assert np.array_equal(run(f"cvt.{rounding}.{target}.f64", values.view(np.uint64)), expected)


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_f64_to_f32(rounding):
    values = f64_inputs("f32")
    values = values[np.isfinite(values)][::5]
    expected = [
        code_of(Fraction(v), ELEMENT_TYPES["f32"], rounding, negative_zero=np.signbit(v)) for v in values.tolist()
    ]
    assert run(f"cvt.{rounding}.f32.f64", values.view(np.uint64)).tolist() == expected


def whole_number(value, rounding):
    floor = value.numerator // value.denominator
    rest = value - floor
    match rounding:
        case "rmi":
            return floor
        case "rpi":
            return floor + (rest > 0)
        case "rzi":
            return floor + (rest > 0 and value < 0)
    return floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1))


def integer_expected(bits, source, target, rounding):
    row, goal = ELEMENT_TYPES[source], ELEMENT_TYPES[target]
    value = value_of(bits, row)
    if value != value:
        return 1 << (goal.bits - 1) if source == "f64" or goal.bits == 64 else 0
    number = whole_number(value, rounding) if isinstance(value, Fraction) else (goal.high if value > 0 else goal.low)
    return min(max(number, goal.low), goal.high) & ((1 << goal.bits) - 1)


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_float_to_integer(source, rounding):
    """Clamped to the range; NaN is zero, or the top bit from f64 and to 64 bits."""
    rng = np.random.default_rng(3)
    bits = np.concatenate([edge_bits(source), random_bits(rng, source, 600)])
    limits = [
        sign * (2.0**power + step)
        for power in (7, 8, 15, 16, 31, 32, 63, 64)
        for step in (-1, -0.5, 0, 0.5)
        for sign in (1, -1)
    ]
    bits = np.concatenate([bits, np.array(limits).astype(ML[source]).view(bits.dtype)])
    for target in INTEGERS:
        expected = [integer_expected(code, source, target, rounding) for code in bits.tolist()]
        assert run(f"cvt.{rounding}.{target}.{source}", bits).tolist() == expected, target


@pytest.mark.parametrize("target", ["s8", "u16", "s32", "s64", "u64"])
@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_every_half_to_integer(source, target):
    values = np.rint(halves_as_f64(source))
    row = ELEMENT_TYPES[target]
    above, below, nan = values >= float(row.high + 1), values < float(row.low), np.isnan(values)
    expected = np.where(above | below | nan, 0, values).astype(row.values).view(row.storage)
    expected[above] = row.high
    expected[below] = row.low & ((1 << row.bits) - 1)
    expected[nan] = 1 << 63 if row.bits == 64 else 0
    assert np.array_equal(run(f"cvt.rni.{target}.{source}", HALVES), expected)


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64"])
def test_integer_to_float(target, rounding):
    rng = np.random.default_rng(8)
    for source in INTEGERS:
        row = ELEMENT_TYPES[source]
        bits = np.concatenate([edge_bits(source), random_bits(rng, source, 300)])
        midpoints = [(1 << at) + (1 << (at - 25)) + off for at in range(26, row.bits - 1) for off in (-1, 0, 1)]
        midpoints += [(1 << at) + (1 << (at - 9)) + off for at in range(10, row.bits - 1) for off in (-1, 0, 1)]
        bits = np.concatenate([bits, np.array(midpoints, row.storage), -np.array(midpoints, row.storage)])
        numbers = [to_signed(code, row.bits) if row.is_signed else code for code in bits.tolist()]
        expected = [code_of(Fraction(number), ELEMENT_TYPES[target], rounding) for number in numbers]
        assert run(f"cvt.{rounding}.{target}.{source}", bits).tolist() == expected, source


@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer(source):
    rng = np.random.default_rng(9)
    row = ELEMENT_TYPES[source]
    bits = np.arange(1 << row.bits).astype(row.storage) if row.bits <= 16 else random_bits(rng, source, 3000)
    bits = np.concatenate([bits, edge_bits(source)])
    numbers = [to_signed(code, row.bits) if row.is_signed else code for code in bits.tolist()]
    for target in INTEGERS:
        goal = ELEMENT_TYPES[target]
        mask = (1 << goal.bits) - 1
        assert run(f"cvt.{target}.{source}", bits).tolist() == [number & mask for number in numbers], target
        cut = [min(max(number, goal.low), goal.high) & mask for number in numbers]
        assert run(f"cvt.sat.{target}.{source}", bits).tolist() == cut, target


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
def test_float_to_whole_float(name, rounding):
    rng = np.random.default_rng(4)
    element = ELEMENT_TYPES[name]
    bits = np.concatenate([edge_bits(name), random_bits(rng, name, 3000)])
    got = run(f"cvt.{rounding}.{name}.{name}", bits)
    for code, result in zip(bits.tolist(), got.tolist(), strict=True):
        value, whole = value_of(code, element), value_of(result, element)
        if isinstance(value, Fraction):
            assert whole == whole_number(value, rounding)
            assert (result ^ code) & element.sign == 0
        else:
            assert whole == value or (value != value and whole != whole)


def test_saturation_to_the_unit_interval():
    values = f32_bits([-0.0, -1.0, 0.25, 1.0, 1.5, np.inf, -np.inf, np.nan, 1e-45])
    expected = f32_bits([0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 0.0, 0.0, 1e-45])
    assert run("cvt.sat.f32.f32", values).tolist() == expected.tolist()
    halves = np.array([0, 0, 0x3400, 0x3C00, 0x3C00, 0x3C00, 0, 0, 0])
    assert run("cvt.rn.sat.f16.f32", values).tolist() == halves.tolist()


@pytest.mark.parametrize("name", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_pack(name):
    rng = np.random.default_rng(2)
    bits, signed = int(name[1:]), name[0] == "s"
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    a, b, c = (np.concatenate([edge_bits("s32"), random_bits(rng, "s32", 500)]) for _ in range(3))
    b, c = rng.permutation(b), rng.permutation(c)
    mask = (1 << bits) - 1
    cut = [[min(max(to_signed(v, 32), low), high) & mask for v in operand.tolist()] for operand in (a, b)]
    packed = [x << bits | y for x, y in zip(*cut, strict=True)]
    if bits == 16:
        assert run(f"cvt.pack.sat.{name}.s32", a, b).tolist() == packed
    else:
        above = [z << 2 * bits & 0xFFFFFFFF for z in c.tolist()]
        expected = [x | z for x, z in zip(packed, above, strict=True)]
        assert run(f"cvt.pack.sat.{name}.s32.b32", a, b, c).tolist() == expected


@pytest.mark.parametrize("opcode", ["cvt.rn.satfinite.e4m3x2.e5m2x2", "cvt.rn.ftz.f16.f64", "cvt.s32.f32"])
def test_conversions_that_ptx_lacks_are_refused(opcode):
    with pytest.raises(WarploomError, match="NOT_MODELLED"):
        run(opcode, np.zeros(4, np.uint32))
