"""The CUDA C++ cases, compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from . import references as ref
from . import references_cuda as words
from .case import BFLOAT16, E4M3, E5M2, Array, Arrays, Buffer, Case, Map, drawn, integers, normal, output, zeros
from .compile import Compiled, compile_cuda


def cuda_case(
    entry: str,
    file: str,
    grid: tuple[int, ...],
    block: int | tuple[int, int, int],
    buffers: Mapping[str, Buffer],
    args: tuple[str | Map | int | float, ...],
    expected: Callable[[Arrays], Arrays],
    *,
    arch: int = 90,
    name: str = "",
    cluster: int = 1,
    shared_bytes: int = 0,
    defines: Mapping[str, object] | None = None,
    **facts: Any,
) -> Case:
    """A case of a file in `kernels_cuda`; NVRTC always emits its own PTX version."""

    def build(_: int | None) -> Compiled:
        return compile_cuda(
            file, entry, arch, block=block, cluster=cluster, shared_bytes=shared_bytes, defines=defines
        )  # fmt: skip

    return Case(f"cuda_{name or entry}_sm{arch}", "cuda", arch, build, buffers, args, grid, expected, **facts)


simt = partial(cuda_case, file="simt.cu", schedules="all")
arithmetic = partial(cuda_case, file="arithmetic.cu")
hopper = partial(cuda_case, file="hopper.cu", schedules="all")
blackwell = partial(cuda_case, file="blackwell.cu", arch=100, schedules="all")


def warp_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Small words; the first warp's are all positive, so that its votes are unanimous."""
    values = rng.integers(-64, 64, shape)
    values[:32] = abs(values[:32])
    return values


def mantissas(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Floats with full 24-bit mantissas and close exponents: multiply-adds are exact in float64."""
    sign = rng.choice([-1.0, 1.0], shape)
    return np.asarray(sign * (1 + rng.integers(0, 2**23, shape) / 2**23) * np.exp2(rng.integers(-1, 2, shape)))


def spread(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Floats over many magnitudes."""
    return np.asarray(rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape)))


def half_pairs(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Two rows of packed words: float16 pairs, then bfloat16 pairs."""
    values = mantissas(rng, (*shape, 2)) * 4
    rows = [values[0].astype(np.float16), values[1].astype(np.float32).astype(BFLOAT16)]
    return np.stack([np.ascontiguousarray(row).view(np.uint32).reshape(shape[1:]) for row in rows])


def long_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Words of up to 62 bits, of every length."""
    return np.asarray(rng.integers(-(2**62), 2**62, shape) >> rng.integers(0, 60, shape))


def any_words(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Words of every length, with the corners first."""
    values = rng.integers(-(2**31), 2**31, shape) >> rng.integers(0, 31, shape)
    values[:6] = [0, -1, 1, 2**31 - 1, -(2**31), 0xFF]
    return np.asarray(values)


def start(*values: float) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    """Cells with these initial values."""
    return lambda _, shape: np.array(values).reshape(shape)


def tensor_core(name: str, instruction: str, dtype: Any, k: int, result: Any) -> Case:
    """mma.sync of one operand type, with a ragged right edge."""
    m, n = 64, 40
    itemsize = np.dtype(dtype).itemsize
    return cuda_case(
        "mma_pipeline", "mma.cu", (1, 2), 128,
        {"a": integers(dtype, m, k), "b": integers(dtype, n, k), "c": output(result, m, n)},
        ("a", "b", "c", n, k * itemsize), ref.product(b_transposed=True),
        name=f"mma_{name}", defines={"MMA": f'"{instruction}"'},
    )  # fmt: skip


def reduced(arrays: Arrays) -> Arrays:
    """The result of `block_reduce` for 3 CTAs of 256 threads."""
    x = arrays["x"]
    threads = np.array([x[i::768].sum() for i in range(768)]).reshape(3, 256)
    votes = (threads > 0).sum(1) * 4 + (threads > 20).any(1) * 2 + (threads < 1000).all(1)
    return {"partial": threads.sum(1), "ticket": arrays["ticket"], "total": x.sum(keepdims=True), "votes": votes}


def mma_transposed() -> Case:
    k = 48
    return cuda_case(
        "mma_transposed", "mma.cu", (1,), 32,
        {"a": integers(np.float16, 16, k), "b": integers(np.float16, k, 16), "c": output(np.float16, 16, 16)},
        ("a", "b", "c", k), ref.product(), defines={"MMA": '"m16n8k16.row.col.f32.f16.f16.f32"'},
    )  # fmt: skip


def ring() -> Case:
    m, n, k = 256, 128, 192
    return hopper(
        "wgmma_ring", grid=(2,), block=384, shared_bytes=2 * 24576 + 16384 + 64,
        buffers={"a": integers(BFLOAT16, m, k), "b": integers(BFLOAT16, n, k), "c": output(BFLOAT16, m, n)},
        args=(Map("a", (128, 64), "128B"), Map("b", (64, 64), "128B"), Map("c", (64, 64), "128B"), 2, 4, 3),
        expected=ref.product(b_transposed=True), schedules="few",
    )  # fmt: skip


def rank3(arrays: Arrays) -> Arrays:
    """A box read at (z, y, x) = (2, 5, -4), turned over two axes and clipped to twelve columns."""
    padded = np.pad(arrays["in"], ((0, 2), (0, 8), (4, 16)))
    box = padded[2:4, 5:13, 0:16] + 1
    return {"out": box[::-1, :, ::-1][:, :, :12]}


def multicast(arrays: Arrays) -> Arrays:
    """Both CTAs of the pair see both tiles."""
    tiles = arrays["in"].reshape(2, 16, 32)
    work = [tiles[0] - 2 * tiles[1] + rank for rank in range(2)]
    return {"sum": work[0] + work[1], "top": np.maximum(np.maximum(*work), 0)}


def block_scaled(arrays: Arrays) -> Arrays:
    """Both operands with one power of two per 32 elements of k."""
    a, b = (ref.scaled(arrays[x], ref.scale_e8m0(arrays[f"{x}_scale"]), 32) for x in "ab")
    return {"c": a @ b.T}


CASES = [
    simt(
        "sgemm_tiled", grid=(2, 3), block=(16, 16, 1),
        buffers={"a": integers(np.float32, 37, 45), "b": integers(np.float32, 45, 29), "c": output(np.float32, 37, 29)},
        args=("a", "b", "c", 37, 29, 45), expected=ref.product(),
    ),
    simt(
        "warp_functions", grid=(1,), block=96,
        buffers={"x": drawn(np.int32, warp_words, 96), "out": output(np.int32, 16, 96)},
        args=("x", "out", 96), expected=words.warp_functions,
    ),
    simt(
        "block_reduce", grid=(3,), block=256,
        buffers={
            "x": integers(np.float32, 5000, low=-5, high=8), "partial": output(np.float32, 3),
            "ticket": zeros(np.uint32, 1),
            "total": output(np.float32, 1), "votes": output(np.int32, 3),
        },
        args=("x", "partial", "ticket", "total", "votes", 5000), expected=reduced,
    ),
    simt(
        "atomics", grid=(3,), block=128,
        buffers={
            "x": integers(np.int32, 300, low=-500, high=500),
            "cells": drawn(np.int32, start(0, -1000, 1000, 0, -1, 0, 0, 5, 0, 9), 10),
            "wide": zeros(np.uint64, 2), "reals": drawn(np.float32, start(0, 0, -2000, 0, 0, 0), 6),
            "bins": zeros(np.uint32, 16),
        },
        args=("x", "cells", "wide", "reals", "bins", 300), expected=words.atomics,
    ),
    simt(
        "switch_machine", grid=(2,), block=64,
        buffers={"program": integers(np.uint8, 20, low=0, high=12), "x": integers(np.int32, 100, low=-99, high=99),
            "out": output(np.int32, 100)},
        args=("program", "x", "out", 20, 100), expected=words.switch_machine,
    ),
    simt(
        "jump_table", grid=(1,), block=64,
        buffers={"x": integers(np.int32, 64, low=-99, high=99), "out": output(np.int32, 64)}, args=("x", "out", 64),
        expected=words.jump_table,
    ),
    simt(
        "calls", grid=(2,), block=64,
        buffers={"x": integers(np.int32, 100, low=1, high=40), "weights": output(np.float32, 100),
            "out": output(np.int32, 100)},
        args=("x", "weights", "out", 100), expected=words.calls,
    ),
    simt(
        "local_sort", grid=(2,), block=32,
        buffers={"x": integers(np.int32, 12, 50, low=-99, high=99), "out": output(np.int32, 12, 50)},
        args=("x", "out", 50), expected=words.local_sort,
    ),
    simt(
        "constants", grid=(2,), block=64,
        buffers={"x": integers(np.int32, 100, low=0, high=99), "out": output(np.uint64, 100),
            "reals": output(np.float32, 100)},
        args=("x", "out", "reals", 100), expected=words.constants,
    ),
    simt(
        "named_barriers", grid=(1,), block=128,
        buffers={"x": integers(np.int32, 5, 64), "out": output(np.int32, 5, 64)}, args=("x", "out", 5),
        expected=lambda x: {"out": 3 * x["x"][:, ::-1] + np.arange(5)[:, None]},
    ),
    simt(
        "chained_scan", grid=(4,), block=128,
        buffers={"x": integers(np.int32, 450), "out": output(np.int32, 450), "sums": output(np.int32, 4),
            "flags": zeros(np.uint32, 4)},
        args=("x", "out", "sums", "flags", 450),
        expected=lambda x: {"out": x["x"].cumsum(), "sums": np.append(x["x"].cumsum()[127::128], x["x"].sum()),
            "flags": np.ones(4)},
    ),
    simt(
        "dependent_launch", grid=(2,), block=64,
        buffers={"x": integers(np.float32, 100, 4), "y": output(np.float32, 100, 4)}, args=("x", "y", 100),
        expected=lambda x: {
            "y": np.stack(
                [x["x"][:, 0] + x["x"][:, 3], 2 * x["x"][:, 1], np.maximum(x["x"][:, 2], 2 * x["x"][:, 1]),
                    x["x"][:, 3]], 1
            )
        },
    ),
    arithmetic(
        "integers", grid=(2,), block=64,
        buffers={"x": drawn(np.int32, any_words, 100), "y": drawn(np.int32, lambda r, s: any_words(r, s)[::-1], 100),
            "out": output(np.int32, 24, 100)},
        args=("x", "y", "out", 100), expected=words.integers,
    ),
    arithmetic(
        "long_integers", grid=(2,), block=64,
        buffers={"x": drawn(np.int64, long_words, 100), "y": drawn(np.int64, long_words, 100),
            "out": output(np.int64, 10, 100)},
        args=("x", "y", "out", 100), expected=words.long_integers,
    ),
    arithmetic(
        "floats", grid=(2,), block=64,
        buffers={name: drawn(np.float32, mantissas, 100) for name in "xyz"} | {"out": output(np.float32, 33, 100)},
        args=("x", "y", "z", "out", 100), expected=words.floats,
    ),
    arithmetic(
        "approximate", grid=(2,), block=64,
        buffers={"x": normal(np.float32, 100, scale=2), "out": output(np.float32, 16, 100)},
        args=("x", "out", 100), expected=words.approximate, exact=False, rtol=7e-4, atol=1e-5,
    ),
    arithmetic(
        "packed", grid=(2,), block=64,
        buffers={name: drawn(np.uint32, half_pairs, 2, 100) for name in "xyz"} | {"out": output(np.uint32, 20, 100)},
        args=("x", "y", "z", "out", 100), expected=words.packed,
    ),
    arithmetic(
        "narrow", grid=(2,), block=64,
        buffers={"x": drawn(np.float32, spread, 2, 100), "out": output(np.uint32, 16, 100)},
        args=("x", "out", 100), expected=words.narrow,
    ),
    tensor_core("bf16", "m16n8k16.row.col.f32.bf16.bf16.f32", BFLOAT16, 96, np.float32),
    tensor_core("f16", "m16n8k16.row.col.f32.f16.f16.f32", np.float16, 64, np.float32),
    tensor_core("tf32", "m16n8k8.row.col.f32.tf32.tf32.f32", np.float32, 48, np.float32),
    tensor_core("s8", "m16n8k32.row.col.s32.s8.s8.s32", np.int8, 192, np.int32),
    tensor_core("u8", "m16n8k32.row.col.satfinite.s32.u8.u8.s32", np.uint8, 64, np.int32),
    tensor_core("e4m3", "m16n8k32.row.col.f32.e4m3.e4m3.f32", E4M3, 128, np.float32),
    mma_transposed(),
    ring(),
    hopper(
        "cluster_sum", grid=(4,), block=64, cluster=4,
        buffers={"x": integers(np.int32, 400)} | {name: output(np.int32, size) for name,
            size in (("totals", 4), ("counts", 4), ("mirrored", 256))},
        args=("x", "totals", "counts", "mirrored", 100), expected=words.cluster_sum,
    ),
    hopper(
        "barrier_pipeline", grid=(1,), block=128,
        buffers={"x": integers(np.int32, 5, 64, 4), "out": output(np.int32, 5, 64, 4)}, args=("x", "out", 5),
        expected=words.barrier_pipeline,
    ),
    hopper(
        "bulk_copies", grid=(2,), block=64, cluster=2,
        buffers={"x": integers(np.int32, 2, 256), "doubled": output(np.int32, 2, 256),
            "swapped": output(np.int32, 2, 256), "sum": zeros(np.int32, 256)},
        args=("x", "doubled", "swapped", "sum"),
        expected=lambda x: {"doubled": 2 * x["x"], "swapped": 2 * x["x"][::-1] + 1, "sum": x["x"].sum(0)},
    ),
    hopper(
        "tma_rank3", grid=(1,), block=64,
        buffers={"in": integers(np.float32, 3, 10, 20), "out": output(np.float32, 2, 8, 12)},
        args=(Map("in", (2, 8, 16), "64B"), Map("out", (2, 8, 16)), -4, 5, 2), expected=rank3,
    ),
    hopper(
        "tma_multicast", grid=(2,), block=64, cluster=2,
        buffers={"in": integers(np.int32, 32, 32), "sum": zeros(np.int32, 16, 32), "top": zeros(np.int32, 16, 32)},
        args=tuple(Map(name, (16, 32)) for name in ("in", "sum", "top")), expected=multicast,
    ),
    blackwell(
        "tcgen05_roles", grid=(2, 2), block=192, shared_bytes=2 * 24576 + 64,
        buffers={"a": integers(BFLOAT16, 256, 192), "b": integers(BFLOAT16, 128, 192),
            "c": output(np.float32, 256, 128)},
        args=(Map("a", (128, 64), "128B"), Map("b", (64, 64), "128B"), "c", 128, 3),
        expected=ref.product(b_transposed=True), schedules="few",
    ),
    blackwell(
        "tcgen05_pair", grid=(2, 2), block=128, cluster=2, shared_bytes=2 * 24576 + 64,
        buffers={"a": integers(BFLOAT16, 256, 256), "b": integers(BFLOAT16, 256, 256),
            "c": output(np.float32, 256, 256)},
        args=(Map("a", (128, 64), "128B"), Map("b", (64, 64), "128B"), "c", 256, 4),
        expected=ref.product(b_transposed=True), schedules="few",
    ),
    blackwell(
        "tcgen05_scaled", grid=(1,), block=128, shared_bytes=2 * 16384 + 1024 + 64,
        buffers={
            "a": integers(E4M3, 128, 128), "b": integers(E5M2, 128, 128),
            "a_scale": integers(np.uint8, 128, 4, low=125, high=130),
            "b_scale": integers(np.uint8, 128, 4, low=125, high=130), "c": output(np.float32, 128, 128),
        },
        args=("a", "b", "a_scale", "b_scale", "c"), expected=block_scaled,
    ),
    blackwell(
        "tensor_scratch", grid=(1,), block=128,
        buffers={"x": integers(np.uint32, 128, 8, low=0, high=2**32), "turned": output(np.uint32, 2, 128, 4),
            "packed": output(np.uint32, 128, 4)},
        args=("x", "turned", "packed"), expected=words.tensor_scratch,
    ),
    blackwell(
        "launch_control", grid=(3, 2), block=64,
        buffers={"x": integers(np.int32, 6, 64), "out": output(np.int32, 6, 64), "visits": zeros(np.uint32, 6)},
        args=("x", "out", "visits"),
        expected=lambda x: {"out": x["x"] ** 2 + np.arange(6)[:, None], "visits": np.ones(6)},
    ),
]  # fmt: skip
