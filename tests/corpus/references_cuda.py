"""References of the CUDA cases that imitate threads and words one by one."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np

from .case import BFLOAT16, E4M3, E5M2, Array, Arrays

WORD = 0xFFFFFFFF


def signed(value: int, bits: int = 32) -> int:
    """The low bits of an integer, read as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def quotient(a: int, b: int) -> int:
    """Division as C rounds it: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def warp_functions(arrays: Arrays) -> Arrays:
    """The sixteen rows of `warp_functions`, warp by warp."""
    warps = [_warp([int(value) for value in warp]) for warp in arrays["x"].reshape(-1, 32)]
    rows = [[signed(value) for warp in warps for value in warp[row]] for row in range(16)]
    return {"out": np.array(rows, np.int32)}


def _warp(x: list[int]) -> list[list[int]]:
    lanes = range(32)

    def mask(chosen: list[int]) -> int:
        return sum(1 << lane for lane in chosen)

    odd = [lane for lane in lanes if x[lane] & 1]
    odder = [lane for lane in odd if x[lane] & 2]
    share = (mask(odd) & 0x55555555).bit_count() + 100
    inside = [share + (x[odder[0]] if x[lane] & 2 else 0) if x[lane] & 1 else 32 - len(odd) for lane in lanes]
    same = len({value >> 20 for value in x}) == 1
    xored = 0
    for value in x:
        xored ^= value & WORD
    return [
        [x[lane ^ 5] for lane in lanes],
        [x[lane - 3] if lane % 8 >= 3 else x[lane] for lane in lanes],
        [x[lane + 2] if lane % 16 < 14 else x[lane] for lane in lanes],
        [x[x[lane] & 31] for lane in lanes],
        [mask(odd)] * 32,
        [2 * any(value > 40 for value in x) + all(value > -50 for value in x)] * 32,
        [mask([other for other in lanes if x[other] & 3 == x[lane] & 3]) for lane in lanes],
        [WORD ^ 16 if same else 0] * 32,
        [sum(x)] * 32,
        [max(x) ^ min(value & WORD for value in x)] * 32,
        [xored] * 32,
        inside,
        [lane if lane == 0 else -1 for lane in lanes],
        [sum(x[: lane + 1]) for lane in lanes],
        [((1 << lane) - 1) ^ (1 << lane) for lane in lanes],
        [2 * x[lane ^ 1] for lane in lanes],
    ]


def atomics(arrays: Arrays) -> Arrays:
    """The final value of every cell, which is the same in any order."""
    x, n = arrays["x"].astype(np.int64), arrays["x"].size
    cells = [
        x.sum(), x.max(), x.min(), np.bitwise_or.reduce(1 << (x & 31)), ~np.bitwise_or.reduce(1 << (x & 15)),
        np.bitwise_xor.reduce(x), n % 7, (5 - n) % 11, -2 * n, 77,
    ]  # fmt: skip
    return {
        "cells": np.array([signed(int(cell)) for cell in cells], np.int32),
        "wide": np.array([int(x.sum()) & (1 << 64) - 1, int((x & 0xFFFF).max()) << 32], np.uint64),
        "reals": np.array([x.sum(), n, x.max(), 0, n, 2 * n], np.float32),
        "bins": np.bincount(x & 15, minlength=16),
    }


def switch_machine(arrays: Arrays) -> Arrays:
    """The stack machine, thread by thread."""
    program = [int(code) for code in arrays["program"]]
    return {"out": np.array([_interpret(program, int(value), t) for t, value in enumerate(arrays["x"])], np.int32)}


def _interpret(program: list[int], a: int, b: int) -> int:
    at = b % 7
    for _ in range(24):
        if at >= len(program):
            break
        step = 1
        match program[at]:
            case 0:
                a += b
            case 1:
                a -= 3 * b
            case 2:
                a ^= b << 2
            case 3:
                b = a & 15
            case 4:
                a, b = b, a
            case 5:
                step = 2 if a & 1 else 1
            case 6:
                a = a * 5 + 1
            case 7:
                b, step = ~b, 3
            case 8:
                a = a - b if a > b else b - a
            case 9:
                a = (a & WORD) >> 3
            case 10:
                b += at
            case _:
                step = len(program)
        a, b, at = signed(a), signed(b), at + step
    return signed(a * 31 + b)


def jump_table(arrays: Arrays) -> Arrays:
    """Four functions chosen by the low bits, plus a sum over the 32 reconverged lanes."""
    x = arrays["x"]
    return {"out": np.choose(x & 3, [x + 100, x * x, -x, x >> 1]) + 32}


def calls(arrays: Arrays) -> Arrays:
    """Collatz lengths and the nested function's value."""

    def length(value: int) -> int:
        count = 0
        while value > 1:
            value = 3 * value + 1 if value % 2 else value // 2
            count += 1
        return count

    def nested(depth: int, value: int) -> int:
        for i in range(depth):
            value = (value ^ (depth - i)) * 3
        return value + 1 + depth

    x = [int(value) for value in arrays["x"]]
    lengths = np.array([length(value) for value in x])
    return {"weights": lengths * 0.5, "out": lengths + [nested(value % 5, t) for t, value in enumerate(x)]}


def local_sort(arrays: Arrays) -> Arrays:
    """Sorted columns, walked from t in steps of five."""
    ordered = np.sort(arrays["x"], 0)
    columns = np.arange(ordered.shape[1])
    at = (columns % 12 + 5 * np.arange(12)[:, None]) % 12
    return {"out": ordered[at, columns]}


def constants(arrays: Arrays) -> Arrays:
    """The module's tables, as the source spells them."""
    primes = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53]
    mixing = [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9]
    products = [primes[value & 15] * mixing[t & 1] & (1 << 64) - 1 for t, value in enumerate(arrays["x"].tolist())]
    out = [product ^ b"warp"[t & 3] for t, product in enumerate(products)]
    reals = [(0.5, 1.5, -2.5, 3.5)[t & 3] * primes[t & 15] for t in range(len(out))]
    return {"out": np.array(out, np.uint64), "reals": np.array(reals)}


def cluster_sum(arrays: Arrays) -> Arrays:
    """Totals without the CTA's own part, the neighbour's counter, and the mirrored CTA's first words."""
    x = arrays["x"].reshape(4, 100)
    threads = np.stack([x[:, t::64].sum(1) for t in range(64)], 1)
    counts = (threads & 7).sum(1)
    return {"totals": x.sum() - x.sum(1), "counts": counts[[1, 0, 3, 2]], "mirrored": x[::-1, 63::-1].reshape(-1)}


def barrier_pipeline(arrays: Arrays) -> Arrays:
    """Each round's rows back to front, two columns changed."""
    out = arrays["x"][:, ::-1].copy()
    out[..., 0] += np.arange(5)[:, None]
    out[..., 3] ^= np.arange(64)
    return {"out": out}


def tensor_scratch(arrays: Arrays) -> Arrays:
    """The 16x256b fragment of what 32x32b wrote, and pairs of low halves."""
    x = arrays["x"]
    half, warp, lane, i = np.ix_(range(2), range(4), range(32), range(4))
    turned = x[32 * warp + 16 * half + lane // 4 + 8 * (i // 2 % 2), 2 * (lane % 4) + i % 2 + 0 * half]
    low = x & 0xFFFF
    return {"turned": turned.reshape(2, 128, 4), "packed": low[:, 0::2] | low[:, 1::2] << 16}


def integers(arrays: Arrays) -> Arrays:
    """The twenty-four rows of `integers`, element by element."""
    columns = [_integers(int(a), int(b), t) for t, (a, b) in enumerate(zip(arrays["x"], arrays["y"], strict=True))]
    return {"out": np.array([[signed(value) for value in row] for row in zip(*columns, strict=True)], np.int32)}


def _integers(a: int, b: int, t: int) -> list[int]:
    ua, ub = a & WORD, b & WORD
    bytes_ = [(word >> shift) & 0xFF for word in (ua, ub) for shift in (0, 8, 16, 24)]

    def join(*parts: int) -> int:
        return sum(part << (8 * i) for i, part in enumerate(parts))

    def sign(i: int) -> int:
        return 0xFF if bytes_[i] & 0x80 else 0

    def field(length: int) -> int:
        top = min(5 + length - 1, 31)
        low = (ua >> 5) & ((1 << length) - 1) & (WORD >> 5)
        extension = -1 << min(length, top - 4) if ua >> top & 1 else 0
        return low | extension if length else 0

    lut = sum(
        ((0x6A >> ((ua >> i & 1) << 2 | (ub >> i & 1) << 1 | (t >> i & 1))) & 1) << i for i in range(32)
    )  # fmt: skip
    insert = 0x7F << (t & 31) & WORD
    narrow = [signed(byte, 8) for byte in bytes_]
    shift, clamp = t & 31, min(t & 63, 32)
    highest = (ua if a >= 0 else ~ua & WORD).bit_length() - 1
    low = ua + ub
    borrow = ua < ub
    trailing = (ub & -ub).bit_length()
    return [
        join(bytes_[1], bytes_[3], bytes_[5], bytes_[7]),
        join(sign(5), bytes_[4], sign(4), sign(0)),
        lut,
        (ua >> (ub & 31)) & 0x1FF,
        field(ub & 15),
        (ub & ~insert) | (ua << (t & 31) & insert),
        t + sum(narrow[i] * narrow[4 + i] for i in range(4)),
        t + sum(bytes_[i] * narrow[4 + i] for i in range(4)),
        t + signed(ua, 16) * bytes_[4] + signed(ua >> 16, 16) * bytes_[5],
        (ub << shift) | (ua >> (32 - shift)),
        (ub << (32 - clamp)) | (ua >> clamp),
        t + abs(a - b),
        highest if highest >= 0 else WORD,
        32 - ua.bit_length() if ua else WORD,
        ua.bit_count() * 64 + 32 - ua.bit_length() + trailing,
        int(f"{ua:032b}"[::-1], 2),
        (a * b) >> 32,
        signed(ua, 24) * signed(ub, 24),
        min(max(a + b, -(2**31)), 2**31 - 1),
        a if (a ^ b) >= 0 else b,
        (low & WORD) ^ (ub + ua + (low >> 32) & WORD),
        (ua - ub & WORD) ^ (ub - 7 - borrow & WORD),
        (ua * ub >> 32) + t,
        (signed(a, 16) >> 3) * signed(b, 8) + (a * b & 0xFFFF),
    ]


def long_integers(arrays: Arrays) -> Arrays:
    """The ten rows of `long_integers`."""
    columns = [_long(int(a), int(b), t) for t, (a, b) in enumerate(zip(arrays["x"], arrays["y"], strict=True))]
    return {"out": np.array([[signed(value, 64) for value in row] for row in zip(*columns, strict=True)], np.int64)}


def _long(a: int, b: int, t: int) -> list[int]:
    mask = (1 << 64) - 1
    ua, ub, shift = a & mask, b & mask, t & 63
    return [
        a * b, (a * b) >> 64, (ua * ub) >> 64, quotient(a, b | 1), ua % (ub | 1),
        (a >> shift) ^ (ua >> 9) ^ (ua << shift), ua.bit_count() * 100 + 64 - ua.bit_length(),
        int(f"{ua:064b}"[::-1], 2),
        a - b if a > b else int(ua < ub), int(float(a)) ^ int(np.float32(b >> 20)),
    ]  # fmt: skip


def rounded(exact: Array, mode: str) -> Array:
    """A float64 that is exact, rounded to float32 as `rn`, `rz`, `ru` or `rd`."""
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    toward = {"rz": np.float32(0), "ru": np.float32(np.inf), "rd": np.float32(-np.inf)}
    if mode == "rn":
        return near
    wrong = {"rz": abs(back) > abs(exact), "ru": back < exact, "rd": back > exact}[mode]
    return np.asarray(np.where(wrong, np.nextafter(near, toward[mode]), near))


def floats(arrays: Arrays) -> Arrays:
    """The thirty-three rows of `floats`."""
    a, b, c = (arrays[name] for name in "xyz")
    wide_a, wide_b, wide_c = (array.astype(np.float64) for array in (a, b, c))
    modes = ("rn", "rz", "ru", "rd")
    flushed = np.where(abs(wide_a) < 1, 0, wide_a * 2.0**-126)
    words_a, words_b = (array.view(np.int32).astype(np.float64) for array in (a, b))
    sum_, product = wide_a + wide_b, wide_a * wide_b
    hundred = wide_a.astype(np.float32) * np.float32(100)
    rows = [
        *(rounded(sum_, mode) for mode in modes), *(rounded(product, mode) for mode in modes),
        *(rounded(product + wide_c, mode) for mode in modes),
        a / b, np.sqrt(abs(a)), np.float32(1) / b, np.clip(a, 0, 1),
        np.minimum(a, b), np.maximum(a, c), np.copysign(a, b),
        np.floor(a * 8), np.ceil(a * 8), np.trunc(a * 8), np.rint(a * 8),
        np.minimum(a, b), np.copysign(np.maximum(abs(a), abs(b)), product), flushed.astype(np.float32),
        np.trunc(hundred), np.rint(hundred), np.ceil(abs(b) * np.float32(9)),
        rounded(words_a, "rz"), rounded(words_b, "ru"), rounded(product, "rd"), rounded(product, "ru"),
    ]  # fmt: skip
    return {"out": np.stack([np.asarray(row, np.float32) for row in rows])}


def approximate(arrays: Arrays) -> Arrays:
    """The sixteen rows of `approximate`, in float64."""
    a = arrays["x"].astype(np.float64)
    p = abs(a) + 0.0625
    rows = [
        np.exp2(a), np.log2(p), 1 / p, np.sqrt(p), 1 / np.sqrt(p), np.sin(a), np.cos(a), np.tanh(a), a / p, a / p,
        np.exp(a), np.log(p), p**1.5, np.array([erf(value) for value in a]), np.cbrt(p), np.expm1(a),
    ]  # fmt: skip
    return {"out": np.stack(rows)}


def to_bfloat16(exact: Array) -> Array:
    """A float64 rounded once to bfloat16; a cast by way of float32 would round twice."""
    mantissa, exponent = np.frexp(exact)
    return np.asarray(np.ldexp(np.rint(mantissa * 256) / 256, exponent).astype(np.float32).astype(BFLOAT16))


def packed(arrays: Arrays) -> Arrays:
    """Ten rows of f16x2, then ten of bf16x2."""
    rows = []
    for kind, dtype in enumerate((np.dtype(np.float16), BFLOAT16)):
        a, b, c = (np.ascontiguousarray(arrays[name][kind]).view(dtype).astype(np.float64) for name in "xyz")
        fused = a * b + c
        values = [a + b, a - b, a * b, fused, np.maximum(fused, 0), np.minimum(a, b), np.maximum(a, b), -a, abs(a)]
        for value in values:
            narrow = value.astype(dtype) if kind == 0 else to_bfloat16(value)
            rows.append(np.ascontiguousarray(narrow).view(np.uint32))
        less = (a < b).reshape(-1, 2)
        rows.append(less[:, 0] + 2 * less[:, 1])
    return {"out": np.stack(rows).astype(np.uint32)}


def narrow(arrays: Arrays) -> Arrays:
    """The sixteen rows of `narrow`: the first operand lands in the upper half."""
    a, b = arrays["x"]

    def joined(high: Array, low: Array) -> Array:
        bits = np.dtype(f"u{high.dtype.itemsize}")
        return high.view(bits).astype(np.uint32) << (8 * bits.itemsize) | low.view(bits).astype(np.uint32)

    def each(convert: Any) -> Array:
        return joined(convert(a), convert(b))

    def e4m3(x: Array) -> Array:
        return np.clip(x, -448, 448).astype(E4M3)

    def e5m2(x: Array) -> Array:
        return np.clip(x, -57344, 57344).astype(E5M2)

    def truncated(x: Array) -> Array:
        near = x.astype(np.float16)
        too_far = abs(near.astype(np.float64)) > abs(x.astype(np.float64))
        return np.asarray(np.where(too_far, np.nextafter(near, np.float16(0)), near))

    def word(x: Array) -> Array:
        return np.asarray(x.astype(np.int64) & WORD)

    bits = np.ascontiguousarray(a).view(np.uint32)
    rows = [
        each(e4m3), each(e5m2), each(lambda x: e4m3(np.maximum(x, 0))),
        each(lambda x: e4m3(x).astype(np.float16)), each(lambda x: e5m2(x).astype(np.float16)),
        each(lambda x: x.astype(np.float16)), each(lambda x: (x.view(np.uint32) >> 16).astype(np.uint16)),
        each(lambda x: np.maximum(x, 0).astype(BFLOAT16)),
        each(lambda x: e4m3(x.astype(np.float16).astype(np.float32))),
        bits + np.uint32(0x1000) & np.uint32(0xFFFFE000),
        a.astype(BFLOAT16).view(np.uint16), truncated(a).view(np.uint16),
        word(np.rint(a)), word(np.maximum(np.floor(a), 0)), word(np.clip(np.trunc(a), -128, 127)),
        word(np.clip(np.trunc(a), -128, 127)),
    ]  # fmt: skip
    return {"out": np.stack([np.asarray(row).astype(np.uint32) for row in rows])}
