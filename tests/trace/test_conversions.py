"""Conversions between types, bits read as other types, and pairs of 16-bit floats."""

from __future__ import annotations

import numpy as np
import pytest
from tests.trace.harness import body, elementwise, run
from tests.trace.test_operators import FLOATS, INTEGERS, dtype_of

from warploom.trace import fma, kernel, literal, max_, merge, min_, pack, round_pair, select, split, thread, unpack
from warploom.trace.language.folding import convert
from warploom.trace.language.types import TYPES, decode_bits, encode

SIZE = 131


def numbers(type_, rng):
    dtype = dtype_of(type_)
    if type_ in FLOATS:
        return rng.normal(0, 30, SIZE).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, SIZE, dtype, endpoint=True)


def word(value):
    """Any value as 64 bits, its own in front."""
    return value.bits(f"u{max(TYPES[value.type].bits, 16)}").to("u64")


@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS])
def test_every_conversion(source):
    given = numbers(source, np.random.default_rng())
    targets = [target for target in (*INTEGERS, *FLOATS) if target != source]
    if source in FLOATS:
        given = np.clip(given.astype(float), 0, 120).astype(given.dtype)
    words = elementwise([lambda x, target=target: word(x.to(target)) for target in targets], given, dtype=np.uint64)
    for row, target in zip(words, targets, strict=True):
        dtype = dtype_of(target)
        found = row.view(dtype).reshape(SIZE, -1)[:, 0]
        assert found.dtype == dtype
        if target == "bf16":
            expected = [decode_bits(encode(x, "bf16"), "bf16") for x in given.tolist()]
        else:
            with np.errstate(all="ignore"):
                expected = given.astype(dtype).astype(float)
        np.testing.assert_array_equal(found.astype(float), expected, err_msg=f"{source} to {target}")
        if source not in FLOATS:
            folded = [convert(x, source, target) for x in given.tolist()]
            np.testing.assert_array_equal(np.array(folded, float), found.astype(float))


def test_rounding_and_saturation():
    given = np.array([-3.5, -2.5, -0.5, 0.5, 1.5, 2.5, 300.0, -300.0, 0.25], np.float32)
    found = elementwise(
        [
            lambda x: x.to("s32", rounding="rni"),
            lambda x: x.to("s32", rounding="rmi"),
            lambda x: x.to("s32", rounding="rpi"),
            lambda x: x.to("s32"),
            lambda x: x.to("s32").to("u8", saturate=True).to("s32"),
            lambda x: x.to("f32", saturate=True).bits("s32"),
        ],
        given,
        dtype=np.int32,
    )
    clipped = np.clip(given, 0, 1).astype(np.float32).view(np.int32)
    whole = np.trunc(given)
    for row, expected in zip(
        found, (np.rint(given), np.floor(given), np.ceil(given), whole, np.clip(whole, 0, 255), clipped), strict=True
    ):
        np.testing.assert_array_equal(row, expected)


def test_bits_cost_nothing():
    @kernel
    def flip(x):
        i = thread()
        x[i] = (x[i].bits("u32") ^ 0x80000000).bits("f32")

    x = np.random.default_rng().normal(size=32).astype(np.float32)
    before = x.copy()
    text = run(flip, x)
    np.testing.assert_array_equal(x, -before)
    assert not [line for line in body(text) if line.startswith("mov") and "tid" not in line]


def test_literals_of_every_type_hold_their_bits():
    assert literal(1.5, "f16").literal == 1.5
    assert literal(-1, "u32").literal == 2**32 - 1
    assert literal(200, "s8").literal == -56
    assert literal(1.0, "f32").bits("u32").literal == 0x3F800000
    assert literal(0x3C00, "u16").bits("f16").literal == 1.0
    assert literal(0.1, "f32").literal == float(np.float32(0.1))
    assert str(literal(0.1, "f32").operand) == "0f3DCCCCCD"


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_pairs(half):
    rng = np.random.default_rng()
    dtype = dtype_of(half)
    a, b = (rng.normal(0, 4, SIZE).astype(dtype) for _ in range(2))

    def low(pair):
        return unpack(pair)[0]

    def high(pair):
        return unpack(pair)[1]

    found = elementwise(
        [
            lambda x, y: low(pack(x, y) + pack(y, y)),
            lambda x, y: high(pack(x, y) * pack(y, x)),
            lambda x, y: low(pack(x, y) - 1.0),
            lambda x, y: high(fma(pack(x, y), pack(y, x), pack(x, x))) - high(fma(pack(y, y), pack(x, x), pack(x, x))),
            lambda x, y: low(min_(pack(x, y), pack(y, y))),
            lambda x, y: high(max_(pack(x, y), pack(x, x))),
            lambda x, y: low(-pack(x, y)),
            lambda x, y: high(round_pair(x.to("f32"), y.to("f32"), f"{half}x2")),
            lambda x, y: low(select(x < y, pack(x, y), pack(y, x))),
        ],
        a,
        b,
        dtype=dtype,
    )
    lower, upper = np.minimum(a, b), np.maximum(a, b)
    expected = (a + b, a * b, a - dtype.type(1), a * dtype.type(0), lower, upper, -a, b, lower)
    for row, values in zip(found, expected, strict=True):
        np.testing.assert_array_equal(row.astype(float), values.astype(float))


def test_words_split_and_merge():
    rng = np.random.default_rng()
    wide = rng.integers(0, 2**63, SIZE, np.uint64)
    found = elementwise(
        [
            lambda x: merge("u64", *reversed(split(x, "u32"))),
            lambda x: merge("u64", *split(x, "u16")),
        ],
        wide,
        dtype=np.uint64,
    )
    np.testing.assert_array_equal(found[0], wide << 32 | wide >> 32)
    np.testing.assert_array_equal(found[1], wide)


def test_the_table_of_types_is_whole():
    assert set(TYPES) >= {"pred", *INTEGERS, *FLOATS, "f16x2", "bf16x2"}


def test_numbers_round_once():
    tie = 1 + 2**-8
    assert decode_bits(encode(tie, "bf16"), "bf16") == 1
    assert decode_bits(encode(tie + 2**-40, "bf16"), "bf16") == 1 + 2**-7
    assert decode_bits(encode(-tie - 2**-40, "bf16"), "bf16") == -1 - 2**-7
    assert decode_bits(encode(2**60 + 2**36, "f32"), "f32") == 2**60
    assert decode_bits(encode(2**60 + 2**36 + 1, "f32"), "f32") == 2**60 + 2**37
    assert decode_bits(encode(float("inf"), "bf16"), "bf16") == float("inf")
