"""Triton's other kernels: reductions, scans, norms, atomics, conversions, integers, control flow."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from . import references as ref
from .case import BFLOAT16, E4M3, E5M2, Array, Arrays, Case, Tile, drawn, integers, normal, output, zeros
from .triton_case import triton_case as any_triton_case

triton_case = partial(any_triton_case, schedules="one")


def any_int32(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Random 32-bit words, and corner cases of integer arithmetic."""
    values = rng.integers(-(2**31), 2**31, shape, dtype=np.int64)
    corners = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2, 255, -256])
    values.reshape(-1)[: corners.size] = corners
    return values


def softmax_case(arch: int) -> Case:
    rows, n = 3, 1003
    return triton_case(
        "softmax_online", arch, (rows,),
        {"x": normal(np.float32, rows, n, scale=3), "out": output(np.float32, rows, n)},
        {"x": "x", "out": "out", "n": n, "stride": n}, {"BLOCK": 256},
        lambda x: {"out": ref.softmax(x["x"])}, exact=False, rtol=2e-5, atol=1e-8,
    )  # fmt: skip


def layer_norm_case(arch: int) -> Case:
    rows, n, eps = 3, 777, 1e-5

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"].astype(np.float64)
        mean = x.mean(1)
        rstd = 1 / np.sqrt(x.var(1) + eps)
        out = (x - mean[:, None]) * rstd[:, None] * arrays["gamma"] + arrays["beta"]
        return {"out": out, "mean": mean, "rstd": rstd}

    return triton_case(
        "layer_norm", arch, (rows,),
        {
            "x": normal(np.float16, rows, n), "gamma": normal(np.float32, n), "beta": normal(np.float32, n),
            "out": output(np.float16, rows, n), "mean": output(np.float32, rows), "rstd": output(np.float32, rows),
        },
        {"x": "x", "gamma": "gamma", "beta": "beta", "out": "out", "mean": "mean", "rstd": "rstd", "n": n, "eps": eps},
        {"BLOCK": 1024}, expected, exact=False, rtol=2e-3, atol=2e-3, options={"num_warps": 8},
    )  # fmt: skip


def layer_norm_weights_case(arch: int) -> Case:
    programs, rows_per, n = 4, 3, 100
    rows = programs * rows_per
    return triton_case(
        "layer_norm_weights", arch, (programs,),
        {
            "dy": integers(np.float32, rows, n), "xhat": integers(np.float32, rows, n),
            "grad": zeros(np.float32, n), "lock": zeros(np.int32, 1),
        },
        {"dy": "dy", "xhat": "xhat", "grad": "grad", "lock": "lock", "rows_per": rows_per, "n": n}, {"BLOCK": 128},
        lambda x: {"grad": (x["dy"] * x["xhat"]).sum(0), "lock": np.zeros(1, np.int32)}, schedules="all",
    )  # fmt: skip


def rms_norm_case(arch: int) -> Case:
    rows, n, eps = 8, 250, 1e-6

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"].astype(np.float64)
        scale = 1 / np.sqrt((x * x).mean(1, keepdims=True) + eps)
        return {"out": x * scale * arrays["gamma"].astype(np.float64)}

    return triton_case(
        "rms_norm", arch, (2,),
        {"x": normal(BFLOAT16, rows, n), "gamma": normal(BFLOAT16, n), "out": output(BFLOAT16, rows, n)},
        {"x": "x", "gamma": "gamma", "out": "out", "n": n, "eps": eps},
        {"ROWS": 4, "BLOCK": 256}, expected, exact=False, rtol=2e-2, atol=1e-3,
    )  # fmt: skip


def reduce_atomics_case(arch: int) -> Case:
    n, block = 700, 256

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"]
        padded = np.zeros(-(-n // block) * block, np.int32)
        padded[:n] = x
        tiles = padded.reshape(-1, block)
        sums = [
            x.sum(), max(x.max(), 0), min(x.min(), 0), np.bitwise_or.reduce((tiles & 0xFF).sum(1)),
            np.bitwise_xor.reduce(x), 0 & np.bitwise_and.reduce(tiles.max(1) | 0xFFFF),
        ]  # fmt: skip
        counts = np.bincount(x & 15, minlength=16)
        return {"sums": np.array(sums, np.int32), "y": np.array([x.sum(), *counts], np.float32)}

    return triton_case(
        "reduce_atomics", arch, (3,),
        {"x": integers(np.int32, n, low=-1000, high=1000), "y": zeros(np.float32, 17), "sums": zeros(np.int32, 6)},
        {"x": "x", "y": "y", "sums": "sums", "n": n}, {"BLOCK": block}, expected, schedules="all",
    )  # fmt: skip


def float_atomics_case(arch: int) -> Case:
    n = 300

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"]
        columns = [x[i::8] for i in range(8)]
        extremes = [max(c.max(), 0) for c in columns] + [min(c.min(), 0) for c in columns]
        return {"extremes": np.array(extremes), "halves": np.array([c.sum() for c in columns])}

    return triton_case(
        "float_atomics", arch, (3,),
        {"x": integers(np.float32, n, low=-9, high=10), "extremes": zeros(np.float32, 16),
            "halves": zeros(np.float16, 8)},
        {"x": "x", "extremes": "extremes", "halves": "halves", "n": n}, {"BLOCK": 128}, expected,
    )  # fmt: skip


def argmax_case(arch: int) -> Case:
    rows, n = 16, 100
    return triton_case(
        "argmax_rows", arch, (2,),
        {"x": integers(np.float32, rows, n, low=-50, high=50), "index": output(np.int32, rows),
            "best": output(np.float32, rows)},
        {"x": "x", "index": "index", "best": "best", "n": n}, {"ROWS": 8, "BLOCK": 128},
        lambda x: {"index": x["x"].argmax(1), "best": x["x"].max(1)},
    )  # fmt: skip


def scan_case(arch: int) -> Case:
    rows, n = 2, 500

    def expected(arrays: Arrays) -> Arrays:
        x, decay = arrays["x"], arrays["decay"].astype(np.float64)
        state = np.zeros((rows, n))
        h = np.zeros(rows)
        for i in range(n):
            h = h * decay[:, i] + x[:, i]
            state[:, i] = h
        return {"sums": x.cumsum(1), "state": state}

    return triton_case(
        "scan_rows", arch, (rows,),
        {
            "x": integers(np.int32, rows, n, low=-9, high=10), "sums": output(np.int32, rows, n),
            "decay": drawn(np.float32, lambda rng, shape: rng.choice([0.0, 0.5, 1.0, -1.0], shape), rows, n),
            "state": output(np.float32, rows, n),
        },
        {"x": "x", "sums": "sums", "decay": "decay", "state": "state", "n": n}, {"BLOCK": 512},
        expected, exact=False, rtol=1e-5, atol=1e-4,
    )  # fmt: skip


def transpose_case(arch: int, dtype: Any) -> Case:
    m, n = 70, 50
    return triton_case(
        f"transpose_{np.dtype(dtype).name}", arch, (2, 2),
        {"x": integers(dtype, m, n, low=-100, high=100), "out": output(dtype, n, m)},
        {"x": "x", "out": "out", "m": m, "n": n}, {"BM": 64, "BN": 32},
        lambda x: {"out": x["x"].T}, kernel="transpose",
    )  # fmt: skip


def sort_case(arch: int) -> Case:
    rows, n = 2, 128

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"]
        pairs = x.reshape(rows, 2, n // 2).swapaxes(1, 2).reshape(rows, n)
        return {"ascending": np.sort(x, 1), "flipped": x[:, ::-1], "pairs": pairs}

    return triton_case(
        "sort_rows", arch, (rows,),
        {"x": integers(np.int32, rows, n, low=-99, high=99)}
        | {name: output(np.int32, rows, n) for name in ("ascending", "flipped", "pairs")},
        {name: name for name in ("x", "ascending", "flipped", "pairs")}, {"BLOCK": n}, expected,
    )  # fmt: skip


def histogram_case(arch: int) -> Case:
    n, bins = 900, 32
    return triton_case(
        "histogram", arch, (2,),
        {"x": integers(np.int32, n, low=0, high=bins), "counts": zeros(np.int32, bins)},
        {"x": "x", "counts": "counts", "n": n}, {"BLOCK": 512, "BINS": bins},
        lambda x: {"counts": np.bincount(x["x"], minlength=bins)},
    )  # fmt: skip


def dropout_case(arch: int) -> Case:
    n, p, seed = 600, 0.3, 1234567

    def expected(arrays: Arrays) -> Arrays:
        bits = ref.philox(seed, np.arange(n))
        return {"keep": bits, "out": np.where(ref.uniform(bits) > np.float32(p), arrays["x"] * 2, 0)}

    return triton_case(
        "dropout", arch, (2,),
        {"x": normal(np.float32, n), "keep": output(np.int32, n), "out": output(np.float32, n)},
        {"x": "x", "keep": "keep", "out": "out", "n": n, "p": p, "seed": seed}, {"BLOCK": 512}, expected,
    )  # fmt: skip


def gather_scatter_case(arch: int) -> Case:
    n, width, wide = 50, 24, 32

    def expected(arrays: Arrays) -> Arrays:
        x, index = arrays["x"], arrays["index"]
        scattered = np.empty_like(x)
        scattered[index] = 2 * x[index]
        picked = np.zeros((n, wide), np.float32)
        picked[:, :width] = x[index]
        return {"gathered": x[index], "scattered": scattered, "picked": picked[:, ::-1]}

    return triton_case(
        "gather_scatter", arch, (4,),
        {
            "x": normal(np.float32, n, width), "index": drawn(np.int32, lambda rng, shape: rng.permutation(n), n),
            "gathered": output(np.float32, n, width), "scattered": output(np.float32, n, width),
            "picked": output(np.float32, n, wide),
        },
        {
            "x": "x", "index": "index", "gathered": "gathered", "scattered": "scattered", "picked": "picked",
            "n": n, "width": width,
        },
        {"BLOCK": 16, "WIDTH": wide}, expected,
    )  # fmt: skip


def double_case(arch: int) -> Case:
    n = 300

    def expected(arrays: Arrays) -> Arrays:
        a, b = arrays["x"], arrays["y"]
        return {"out": a * b + a / b - np.sqrt(np.abs(a)) + np.maximum(a, b) * np.minimum(a, -b)}

    return triton_case(
        "double_math", arch, (2,),
        {"x": normal(np.float64, n), "y": normal(np.float64, n), "out": output(np.float64, n)},
        {"x": "x", "y": "y", "out": "out", "n": n}, {"BLOCK": 256}, expected, exact=False, rtol=1e-12, atol=1e-12,
    )  # fmt: skip


def unary_case(arch: int) -> Case:
    from math import erf

    n = 200

    def expected(arrays: Arrays) -> Arrays:
        v = arrays["x"].astype(np.float64)
        w = np.abs(v) + 0.125
        rows = [
            np.exp(v), np.log(w), np.sin(v), np.cos(v), np.sqrt(w), np.array([erf(t) for t in v]), 1 / np.sqrt(w),
            np.exp2(v), np.log2(w), 1 / (1 + np.exp(-v)), np.floor(v) + np.ceil(v * 3), np.tanh(v),
            np.rint(v * 5) + np.trunc(v * 7), v / w, np.sqrt(w), w**v, np.arctan2(v, w),
        ]  # fmt: skip
        return {"out": np.stack(rows)}

    return triton_case(
        "unary_math", arch, (2,),
        {"x": normal(BFLOAT16, n, scale=2), "out": output(np.float32, 17, n)},
        {"x": "x", "out": "out", "n": n}, {"BLOCK": 128}, expected, exact=False, rtol=3e-5, atol=3e-6,
    )  # fmt: skip


def bfloat_case(arch: int) -> Case:
    n = 500

    def expected(arrays: Arrays) -> Arrays:
        a, b = (arrays[name].astype(np.float64) for name in "xy")
        return {"out": np.maximum(a * b - a, a * b + a) + np.minimum(a, b) + np.where(a > b, a, -b)}

    return triton_case(
        "bfloat_chain", arch, (2,),
        {"x": integers(BFLOAT16, n), "y": integers(BFLOAT16, n), "out": output(BFLOAT16, n)},
        {"x": "x", "y": "y", "out": "out", "n": n}, {"BLOCK": 256}, expected,
    )  # fmt: skip


def float8_case(arch: int) -> Case:
    n = 500

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"]
        four = np.clip(x, -448, 448).astype(E4M3)
        five = np.clip(x, -57344, 57344).astype(E5M2)
        return {"low4": four, "low5": five, "back4": four.astype(np.float32), "back5": five.astype(np.float16)}

    return triton_case(
        "float8_round_trip", arch, (2,),
        {
            "x": drawn(np.float32, lambda rng,
                shape: rng.standard_normal(shape) * np.exp2(rng.integers(-18, 18, shape)), n),
            "low4": output(E4M3, n), "low5": output(E5M2, n), "back4": output(np.float32, n),
            "back5": output(np.float16, n),
        },
        {name: name for name in ("x", "low4", "low5", "back4", "back5")} | {"n": n}, {"BLOCK": 256}, expected,
    )  # fmt: skip


def collatz_case(arch: int) -> Case:
    n = 100

    def steps(value: int) -> int:
        count = 0
        while value > 1:
            value = 3 * value + 1 if value % 2 else value // 2
            count += 1
        return count

    def expected(arrays: Arrays) -> Arrays:
        counts = np.array([steps(int(value)) for value in arrays["x"]])
        return {"steps": counts, "longest": counts[:4]}

    return triton_case(
        "collatz", arch, (4,),
        {"x": integers(np.int32, n, low=1, high=60), "steps": output(np.int32, n), "longest": output(np.int32, 4)},
        {"x": "x", "steps": "steps", "longest": "longest", "n": n}, {"BLOCK": 32}, expected, options={"num_warps": 1},
    )  # fmt: skip


def integer_case(arch: int) -> Case:
    n = 200

    def expected(arrays: Arrays) -> Arrays:
        a, b = arrays["x"].astype(np.int64), arrays["y"].astype(np.int64)
        ua, ub = a & 0xFFFFFFFF, b & 0xFFFFFFFF
        divisor = b | 1
        quotient = np.where((a < 0) != (divisor < 0), -(abs(a) // abs(divisor)), abs(a) // abs(divisor))
        bytes_ = np.stack([(word >> shift) & 0xFF for word in (ua, ub) for shift in (0, 8, 16, 24)])
        bits = np.array([[(int(word) >> i) & 1 for i in range(32)] for word in ua])
        product = a * b
        truncated = np.where(product < 0, -(-product // 1000003), product // 1000003)
        rows = [
            (ua * ub.astype(object) >> 32).astype(np.int64), bits.sum(1),
            np.where(ua == 0, 32, 32 - np.array([int(word).bit_length() for word in ua])),
            sum(bits[:, i].astype(np.int64) << (31 - i) for i in range(32)),
            bytes_[5] | bytes_[1] << 8 | bytes_[7] << 16 | bytes_[3] << 24,
            np.where(ua == 0, 0, bits.argmax(1) + 1), product >> 32,
            quotient ^ (a - quotient * divisor), ua // (ub | 1) + ua % 7,
            (ua << (ub & 31)) | (a >> 3), (ua >> (ub & 31)) ^ ~b,
            (a.astype(np.int8) * b.astype(np.int8)).astype(np.int64) + a.astype(np.int16),
            abs(a) - np.minimum(a, b) * np.maximum(a, 3),
        ]  # fmt: skip
        wide = [product + (product >> 7) - truncated, (ua * 0x123456789) ^ np.fmod(product, 97)]
        return {"out": np.stack(rows).astype(np.uint32).view(np.int32), "wide": np.stack(wide)}

    return triton_case(
        "integer_soup", arch, (2,),
        {
            "x": drawn(np.int32, any_int32, n), "y": drawn(np.int32, lambda rng, shape: any_int32(rng, shape)[::-1], n),
            "out": output(np.int32, 13, n), "wide": output(np.int64, 2, n),
        },
        {"x": "x", "y": "y", "out": "out", "wide": "wide", "n": n}, {"BLOCK": 128}, expected,
    )  # fmt: skip


def call_case(arch: int) -> Case:
    n, degree = 200, 5

    def horner(v: Array, length: int) -> Array:
        total = np.zeros_like(v)
        for i in range(length):
            total = total * v + i
        return total

    def at(arrays: Arrays) -> Array:
        return np.repeat(arrays["x"][:2], 128)[:n]

    return triton_case(
        "call_function", arch, (2,),
        {"x": integers(np.float32, n), "out": output(np.float32, n)},
        {"x": "x", "out": "out", "n": n, "degree": degree}, {"BLOCK": 128},
        lambda x: {"out": x["x"] * horner(at(x), degree) - horner(at(x) + 1, degree // 2)},
    )  # fmt: skip


def inline_case(arch: int) -> Case:
    n = 512

    def expected(arrays: Arrays) -> Arrays:
        b = arrays["x"].view(np.uint8).reshape(-1, 4)[:, [2, 0, 2, 0]].copy().view(np.uint32).reshape(-1)
        return {"out": ((b << 3) | (b >> 29)).astype(np.uint32).view(np.int8)}

    return triton_case(
        "inline_assembly", arch, (1,),
        {"x": integers(np.int8, n, low=-128, high=128), "out": output(np.int8, n)},
        {"x": "x", "out": "out", "n": n}, {"BLOCK": 512}, expected,
    )  # fmt: skip


def matrix_vector_case(arch: int) -> Case:
    m, n = 40, 300
    return triton_case(
        "matrix_vector", arch, (3,),
        {"a": integers(np.float32, m, n), "x": integers(np.float32, n), "out": output(np.float32, m)},
        {"a": "a", "x": "x", "out": "out", "m": m, "n": n}, {"BM": 16, "BN": 64},
        lambda x: {"out": x["a"] @ x["x"]},
    )  # fmt: skip


def descriptor_reduce_case(arch: int) -> Case:
    rows, bm, bn = 96, 32, 32
    return triton_case(
        "descriptor_reduce", arch, (3,),
        {"x": integers(np.float32, rows, 3 * bn), "out": zeros(np.float32, bm, bn)},
        {"x": Tile("x", (bm, bn)), "out": Tile("out", (bm, bn)), "rows": rows}, {"BM": bm, "BN": bn},
        lambda x: {"out": x["x"].reshape(rows // bm, bm, 3, bn).sum((0, 2))},
    )  # fmt: skip


CASES = [
    softmax_case(90), softmax_case(100), layer_norm_case(90), layer_norm_case(100), layer_norm_weights_case(90),
    rms_norm_case(90), rms_norm_case(100), reduce_atomics_case(90), float_atomics_case(90), argmax_case(90),
    scan_case(90), scan_case(100), transpose_case(90, np.float32), transpose_case(90, np.int8),
    transpose_case(100, np.float16),
    sort_case(90), histogram_case(90), dropout_case(90), gather_scatter_case(90), double_case(90), unary_case(90),
    bfloat_case(90), bfloat_case(100), float8_case(90), float8_case(100), collatz_case(90), integer_case(90),
    call_case(90), inline_case(90), matrix_vector_case(90), descriptor_reduce_case(90), descriptor_reduce_case(100),
]  # fmt: skip
