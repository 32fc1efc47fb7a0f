"""8-bit floats: rounded and widened two at a time, moved four to a word, in global and in swizzled shared memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import body, run

from warploom.diagnostics import TraceError
from warploom.trace import (
    Variable,
    e2m1,
    f32,
    kernel,
    literal,
    loop,
    merge,
    pack,
    round_pair,
    shared,
    sync_threads,
    thread,
    ue8m0,
    unpack,
)
from warploom.trace.language.types import decode_bits, encode

NARROW = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def saturated(x, name):
    """The results of `satfinite`: the largest number for everything larger."""
    largest = float(np.array(0x7E if name == "e4m3" else 0x7B, np.uint8).view(NARROW[name]))
    return np.clip(x, -largest, largest).astype(np.float32).astype(NARROW[name])


def numbers(size):
    rng = np.random.default_rng()
    x = (rng.normal(size=size) * 2.0 ** rng.integers(-18, 20, size)).astype(np.float32)
    x[:8] = [0, -0.0, np.inf, -np.inf, 448, 464, 480, 61440]
    return x


@pytest.mark.parametrize("name", NARROW)
def test_one_by_one(name):
    @kernel
    def convert(x, small, back):
        i = thread()
        small[i] = x[i].to(name)
        back[i] = small[i].to(f32)

    x = numbers(96)
    small, back = np.zeros(96, NARROW[name]), np.full(96, np.nan, np.float32)
    run(convert, x, small, back, block=(96, 1, 1))
    expected = saturated(x, name)
    np.testing.assert_array_equal(small.view(np.uint8), expected.view(np.uint8))
    np.testing.assert_array_equal(back, expected.astype(np.float32))


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("count", [2, 4, 8, 16])
def test_neighbours_are_converted_two_at_a_time(name, count):
    @kernel
    def convert(x, small, back):
        i = thread() * count
        values = [each for at in range(0, count, 2) for each in x.load(i + at, count=2)]
        small.store([value.to(name) for value in values], i)
        back.store([value.to(f32) for value in small.load(i, count=count)][:2], i)
        back[i + count - 1] = small.load(i, count=count)[-1].to(f32)

    x = numbers(32 * count)
    small, back = np.zeros(x.size, NARROW[name]), np.full(x.size, np.nan, np.float32)
    lines = body(run(convert, x, small, back))
    expected = saturated(x, name)
    np.testing.assert_array_equal(small.view(np.uint8), expected.view(np.uint8))
    for at in (0, 1, count - 1):
        np.testing.assert_array_equal(back[at::count], expected.astype(np.float32)[at::count])
    assert sum(f"satfinite.{name}x2" in line for line in lines) == count // 2
    assert not any(line.startswith(("prmt", "and", "shr")) for line in lines)
    assert sum(line.startswith("st.global") and "b8" not in line and "f32" not in line for line in lines) == 1


@pytest.mark.parametrize("name", NARROW)
def test_every_code_comes_back(name):
    @kernel
    def widen(codes, out):
        i = thread() * 4
        out.store([part.to(f32) for part in codes.load(i, count=4)], i)

    codes = np.arange(256, dtype=np.uint8).view(NARROW[name])
    out = np.zeros(256, np.float32)
    run(widen, codes, out, block=(64, 1, 1))
    np.testing.assert_array_equal(out, codes.astype(np.float32))


def test_values_not_rounded_here_are_gathered():
    @kernel
    def turn(x, y, words):
        i = thread() * 4
        a, b, c, d = x.load(i, count=4)
        y.store([d, c, b, a], i)
        kept = Variable("e4m3", b)
        word = pack(a, literal(1.5, "e4m3"), kept, d)
        kept.set(c)
        words[thread()] = word.bits("u32")
        words[thread() + 32] = merge(
            "u32", pack(a, b).bits("u16"), round_pair(c.to(f32), d.to(f32), "e4m3x2").bits("u16")
        )
        words[thread() + 64] = pack(*unpack(word)).bits("u32")
        words[thread() + 96] = pack(*(literal(v, "e4m3") for v in (1.0, 2.0, -1.0, 1e9))).bits("u32")

    x = np.random.default_rng().integers(0, 0x7E, 128).astype(np.uint8).view(NARROW["e4m3"])
    y, words = np.zeros_like(x), np.zeros((4, 32), np.uint32)
    run(turn, x, y, words.reshape(-1))
    quads = x.reshape(32, 4)
    np.testing.assert_array_equal(y.view(np.uint8).reshape(32, 4), quads[:, ::-1].view(np.uint8))
    expected = quads.copy()
    expected[:, 1:3] = np.stack([np.full(32, 1.5, x.dtype), quads[:, 1]], 1)
    np.testing.assert_array_equal(words[0], expected.view(np.uint32)[:, 0])
    np.testing.assert_array_equal(words[1], quads.view(np.uint32)[:, 0])
    np.testing.assert_array_equal(words[2], words[0])
    assert set(words[3].tolist()) == {0x7EB84038}


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_swizzled_shared_memory(swizzle):
    @kernel
    def through(x, y):
        tile = shared("e4m3", (16, 128), swizzle=swizzle)
        column = thread() % 8 * 16
        for group in loop(4):
            row = group * 4 + (thread() // 8).to("s32")
            tile.store(x.load(row, column, count=16), row, column)
        sync_threads()
        for row in range(16):
            y[row, thread()] = tile[row, thread()]

    x = np.random.default_rng().integers(0, 255, (16, 128)).astype(np.uint8).view(NARROW["e4m3"])
    y = np.zeros((16, 32), x.dtype)
    run(through, x, y)
    np.testing.assert_array_equal(y.view(np.uint8), x[:, :32].view(np.uint8))


def test_elements_that_only_tensor_cores_read_are_bytes():
    @kernel
    def hold(codes, scales, out):
        nibbles, exponents = shared(e2m1, (2, 64)), shared(ue8m0, 32)
        assert (nibbles.shape, nibbles.dtype, exponents.shape) == ((2, 32), "u8", (32,))
        nibbles[1, thread()] = codes[thread()]
        exponents[thread()] = scales[thread()]
        sync_threads()
        out[thread()] = nibbles[1, 31 - thread()] + exponents[thread()]

    codes = np.random.default_rng().integers(0, 16, 32).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    scales = np.random.default_rng().integers(0, 200, 32).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)
    out = np.zeros(32, np.uint8)
    run(hold, codes, scales, out)
    np.testing.assert_array_equal(out, codes.view(np.uint8)[::-1] + scales.view(np.uint8))

    @kernel
    def odd(x):
        shared(e2m1, 3)

    with pytest.raises(TraceError, match=r"a shared array of \.e2m1 \(3,\)"):
        odd.bind(out, grid=(1, 1, 1), block=(32, 1, 1))


@pytest.mark.parametrize("name", NARROW)
def test_literals_round_as_the_device_does(name):
    for number in numbers(400).tolist():
        expected = saturated(np.array(number, np.float32), name)
        assert encode(number, name) == int(expected.view(np.uint8))
        assert literal(number, name).literal == float(expected)
    for number in range(-70000, 70000, 977):
        assert decode_bits(encode(number, name), name) == float(saturated(np.array(number, np.float32), name))
    assert np.isnan(decode_bits(encode(float("nan"), name), name))


def test_every_bf16_is_widened_from_its_word_by_one_instruction():
    """Neighbours of a word as f32: a shift and a mask, for every number there is."""
    x = np.arange(1 << 16, dtype=np.uint16)
    words = np.random.default_rng().permutation(x).view(np.uint32)

    @kernel
    def widen(x, low, high):
        for turn in range(0, len(words), 128):
            at = thread() + turn
            low[at], high[at] = (part.to(f32) for part in unpack(x[at].bits("bf16x2")))

    low, high = (np.empty(len(words), np.float32) for _ in range(2))
    run(widen, words, low, high, block=(128, 1, 1))
    found = np.stack((low, high), axis=1).view(np.uint32).reshape(-1)
    np.testing.assert_array_equal(found, words.view(np.uint16).astype(np.uint32) << 16)
    assert "cvt.f32" not in widen.ptx(words, low, high, block=(128, 1, 1))
