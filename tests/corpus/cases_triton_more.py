"""More Triton: Welford's reduction, four-bit weights, precisions, gathers, libdevice, narrow atomics."""

from __future__ import annotations

from functools import partial
from math import erf, lgamma

import numpy as np

from .case import BFLOAT16, Arrays, Case, Pointers, drawn, integers, normal, output, zeros
from .triton_case import triton_case as any_triton_case

triton_case = partial(any_triton_case, module="kernels_triton_more", schedules="one")


def welford(arch: int) -> Case:
    rows, n = 3, 777
    return triton_case(
        "welford", arch, (rows,),
        {"x": normal(np.float32, rows, n, scale=3), "mean": output(np.float32, rows),
            "variance": output(np.float32, rows)},
        {"x": "x", "mean": "mean", "variance": "variance", "n": n}, {"BLOCK": 1024},
        lambda x: {"mean": x["x"].astype(np.float64).mean(1), "variance": x["x"].astype(np.float64).var(1)},
        exact=False, rtol=1e-5, atol=1e-6,
    )  # fmt: skip


def packed_weights(arch: int) -> Case:
    m, n, k = 64, 128, 192

    def expected(arrays: Arrays) -> Arrays:
        pairs = arrays["packed"].astype(np.int64)
        weights = np.stack([pairs & 15, pairs >> 4], 2).reshape(n, k)
        weights -= 16 * (weights > 7)
        return {"c": arrays["a"].astype(np.float64) @ weights.T * arrays["scale"]}

    return triton_case(
        "packed_weights", arch, (2,),
        {
            "a": integers(np.float16, m, k), "packed": integers(np.uint8, n, k // 2, low=0, high=256),
            "scale": drawn(np.float32, lambda rng, shape: np.exp2(rng.integers(-2, 3, shape)), n),
            "c": output(np.float32, m, n),
        },
        {"a": "a", "packed": "packed", "scale": "scale", "c": "c", "n": n, "k": k}, {"BM": 64, "BN": 64, "BK": 64},
        expected, schedules="few",
    )  # fmt: skip


def precise_dot(arch: int, precision: str, tolerance: float) -> Case:
    k = 64
    return triton_case(
        f"dot_{precision}", arch, (1,),
        {"a": normal(np.float32, 32, k), "b": normal(np.float32, 32, k), "c": output(np.float32, 32, 32)},
        {"a": "a", "b": "b", "c": "c"}, {"K": k, "PRECISION": precision},
        lambda x: {"c": x["a"].astype(np.float64) @ x["b"].T}, kernel="precise_dot", exact=False, rtol=tolerance,
        atol=8 * tolerance,
    )  # fmt: skip


def picked_and_ranked(arch: int) -> Case:
    rows, n, top = 2, 128, 8

    def expected(arrays: Arrays) -> Arrays:
        x = arrays["x"]
        low = np.bitwise_xor.reduce(x & 7, axis=1)[:, None]
        return {
            "picked": np.take_along_axis(x, arrays["index"], 1), "best": np.sort(x, 1)[:, ::-1][:, :top],
            "run": x[:, ::-1].cumsum(1)[:, ::-1] * 10 + low,
        }  # fmt: skip

    return triton_case(
        "picked_and_ranked", arch, (rows,),
        {
            "x": integers(np.int32, rows, n, low=-99, high=99), "index": integers(np.int32, rows, n, low=0, high=n),
            "picked": output(np.int32, rows, n), "best": output(np.int32, rows, top), "run": output(np.int32, rows, n),
        },
        {name: name for name in ("x", "index", "picked", "best", "run")}, {"N": n, "TOP": top}, expected,
    )  # fmt: skip


def inverse_of_erf(value: float) -> float:
    """Invert by bisection on [-6, 6], which holds every result of the case."""
    low, high = -6.0, 6.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if erf(middle) < value else (low, middle)
    return low


def device_library(arch: int) -> Case:
    n = 100

    def expected(arrays: Arrays) -> Arrays:
        v = arrays["x"].astype(np.float64)
        tenth = (arrays["x"] * np.float32(0.1)).astype(np.float64)
        rows = [
            np.cbrt(v), [inverse_of_erf(t) for t in tenth], np.arcsinh(v), [lgamma(abs(t) + 0.5) for t in v],
            np.fmod(v, 0.75), np.expm1(v), np.hypot(v, 2), np.copysign(np.floor(abs(v * 3) + 0.5), v),
        ]  # fmt: skip
        return {"out": np.array(rows)}

    return triton_case(
        "device_library", arch, (1,),
        {"x": normal(np.float32, n, scale=2), "out": output(np.float32, 8, n)},
        {"x": "x", "out": "out", "n": n}, {"BLOCK": 128}, expected, exact=False, rtol=2e-5, atol=2e-6,
    )  # fmt: skip


def half_sums(arch: int) -> Case:
    rows, width = 6, 64

    def expected(arrays: Arrays) -> Arrays:
        sums = np.zeros((3, width))
        np.add.at(sums, arrays["rows"], arrays["x"])
        return {"halves": sums, "brains": sums}

    return triton_case(
        "half_sums", arch, (rows,),
        {
            "x": integers(np.float32, rows, width), "rows": integers(np.int32, rows, low=0, high=3),
            "halves": zeros(np.float16, 3, width), "brains": zeros(BFLOAT16, 3, width),
        },
        {"x": "x", "rows": "rows", "halves": "halves", "brains": "brains", "n": rows}, {"WIDTH": width}, expected,
        options={"num_warps": 1}, schedules="few",
    )  # fmt: skip


def grouped_by_pointers(arch: int) -> Case:
    sizes = np.array([(65, 33, 40), (1, 64, 17), (64, 70, 64)])
    strides = sizes[:, [2, 1, 1]] + [0, 3, 5]
    groups, programs = len(sizes), 3
    buffers = {
        "sizes": drawn(np.int32, lambda _, shape: sizes.reshape(shape), sizes.size),
        "strides": drawn(np.int32, lambda _, shape: strides.reshape(shape), strides.size),
    }
    for group, ((m, _, k), (step_a, step_b, step_c)) in enumerate(zip(sizes.tolist(), strides.tolist(), strict=True)):
        buffers |= {
            f"a{group}": integers(np.float16, m, step_a), f"b{group}": integers(np.float16, k, step_b),
            f"c{group}": output(np.float16, m, step_c),
        }  # fmt: skip

    def expected(arrays: Arrays) -> Arrays:
        results = {}
        for group, (_, n, k) in enumerate(sizes.tolist()):
            a, b = (arrays[f"{name}{group}"].astype(np.float64) for name in "ab")
            results[f"c{group}"] = arrays[f"c{group}"].copy()
            results[f"c{group}"][:, :n] = a[:, :k] @ b[:, :n]
        return results

    pointers = {f"{name}_of": Pointers(tuple(f"{name}{group}" for group in range(groups))) for name in "abc"}
    return triton_case(
        "grouped_by_pointers", arch, (programs,), buffers,
        {**pointers, "sizes": "sizes", "strides": "strides", "groups": groups},
        {"BM": 64, "BN": 64, "BK": 32, "PROGRAMS": programs}, expected, options={"num_stages": 2}, schedules="few",
    )  # fmt: skip


CASES = [
    *(make(arch) for arch in (90, 100) for make in (welford, packed_weights, picked_and_ranked, grouped_by_pointers)),
    precise_dot(90, "tf32x3", 1e-5),
    precise_dot(100, "bf16x3", 1e-4),
    precise_dot(90, "ieee", 1e-5),
    device_library(90),
    half_sums(90),
]
