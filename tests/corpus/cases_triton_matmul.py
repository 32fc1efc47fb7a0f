"""Triton matmuls: masked pointers, descriptors, persistent and warp-specialised, every operand type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import references as ref
from .case import BFLOAT16, E4M3, E5M2, Array, Arrays, Case, Tile, integers, normal, output, zeros
from .triton_case import triton_case

MODULE = "kernels_triton_matmul"
LOG2_E = 1.4426950408889634


def masked(
    name: str, arch: int, dtype: Any, sizes: tuple[int, int, int], tile: tuple[int, int, int], result: Any,
    *, precision: str = "tf32", accumulator: str = "tl.float32", options: Mapping[str, Any] | None = None, **facts: Any,
) -> Case:  # fmt: skip
    """A pointer matmul of any type and size."""
    m, n, k = sizes
    bm, bn, bk = tile
    return triton_case(
        f"matmul_{name}", arch, (-(-m // bm), -(-n // bn)),
        {"a": integers(dtype, m, k), "b": integers(dtype, k, n), "c": output(result, m, n)},
        {"a": "a", "b": "b", "c": "c", "m": m, "n": n, "k": k, "stride_am": k, "stride_bk": n, "stride_cm": n},
        {"BM": bm, "BN": bn, "BK": bk, "PRECISION": precision, "ACC": accumulator},
        ref.product(), kernel="matmul_masked", module=MODULE, options=options, **facts,
    )  # fmt: skip


def described(
    name: str, arch: int, dtype: Any, sizes: tuple[int, int, int], tile: tuple[int, int, int], result: Any,
    *, a_t: bool = False, b_t: bool = True, options: Mapping[str, Any] | None = None, **facts: Any,
) -> Case:  # fmt: skip
    """A descriptor matmul with each operand in either order."""
    m, n, k = sizes
    bm, bn, bk = tile
    return triton_case(
        f"descriptor_{name}", arch, (-(-m // bm), -(-n // bn)),
        {
            "a": integers(dtype, *((k, m) if a_t else (m, k))),
            "b": integers(dtype, *((n, k) if b_t else (k, n))),
            "c": output(result, m, n),
        },
        {
            "a": Tile("a", (bk, bm) if a_t else (bm, bk)),
            "b": Tile("b", (bn, bk) if b_t else (bk, bn)),
            "c": Tile("c", (bm, bn)),
            "k": k,
        },
        {"BM": bm, "BN": bn, "BK": bk, "A_T": a_t, "B_T": b_t},
        ref.product(a_transposed=a_t, b_transposed=b_t),
        kernel="matmul_descriptor", module=MODULE, options=options, **facts,
    )  # fmt: skip


def persistent(
    name: str, arch: int, *, programs: int, specialise: bool, flatten: bool, parts: int, **options: Any
) -> Case:
    """A persistent matmul over 2 × 3 ragged tiles."""
    m, n, k = 200, 328, 192
    return triton_case(
        f"persistent_{name}", arch, (programs,),
        {"a": integers(BFLOAT16, m, k), "b": integers(BFLOAT16, n, k), "c": output(np.float16, m, n)},
        {"a": Tile("a", (128, 64)), "b": Tile("b", (128, 64)), "c": Tile("c", (128, 128 // parts)), "m": m, "n": n,
            "k": k},
        {"BM": 128, "BN": 128, "BK": 64, "SPECIALISE": specialise, "FLATTEN": flatten, "PARTS": parts},
        ref.product(b_transposed=True),
        kernel="matmul_persistent", module=MODULE, options=options, schedules="few",
    )  # fmt: skip


def fused(arrays: Arrays) -> Arrays:
    """relu(a @ b.T + bias) + residual."""
    a, b = arrays["a"].astype(np.float64), arrays["b"].astype(np.float64)
    return {"c": np.maximum(a @ b.T + arrays["bias"], 0) + arrays["residual"]}


def eight_warps(arch: int) -> Case:
    m, n, k = 256, 128, 128
    return triton_case(
        "matmul_fused_8warps", arch, (2,),
        {
            "a": integers(BFLOAT16, m, k), "b": integers(BFLOAT16, n, k), "bias": integers(np.float32, n),
            "residual": integers(np.float32, m, n), "c": output(BFLOAT16, m, n),
        },
        {"a": "a", "b": "b", "bias": "bias", "residual": "residual", "c": "c", "m": m, "n": n, "k": k},
        {"BM": 128, "BN": 128, "BK": 64, "GROUP": 2},
        fused, kernel="matmul_fused", module=MODULE, options={"num_warps": 8, "num_stages": 3}, schedules="few",
    )  # fmt: skip


def scaled(name: str, a_kind: str, b_kind: str, a_dtype: Any, b_dtype: Any, arch: int = 100) -> Case:
    """A block-scaled matmul on sm_100a; scales are powers of two near one, so that accumulation is exact."""
    m, n, k, group = 128, 128, 256, 32
    a_pack, b_pack = (2 if kind == "e2m1" else 1 for kind in (a_kind, b_kind))

    def operand(kind: str, dtype: Any, rows: int, pack: int) -> Any:
        if kind == "e2m1":
            return integers(np.uint8, rows, k // pack, low=0, high=256)
        return integers(dtype, rows, k)

    def value(array: Array, kind: str) -> Array:
        return ref.unpack_fp4(array) if kind == "e2m1" else array

    def expected(arrays: Arrays) -> Arrays:
        a = ref.scaled(value(arrays["a"], a_kind), ref.scale_e8m0(arrays["a_scale"]), group)
        b = ref.scaled(value(arrays["b"], b_kind), ref.scale_e8m0(arrays["b_scale"]), group)
        return {"c": a @ b.T}

    return triton_case(
        f"scaled_{name}", arch, (1, 1),
        {
            "a": operand(a_kind, a_dtype, m, a_pack), "a_scale": integers(np.uint8, m, k // group, low=125, high=130),
            "b": operand(b_kind, b_dtype, n, b_pack), "b_scale": integers(np.uint8, n, k // group, low=125, high=130),
            "c": output(np.float32, m, n),
        },
        {"a": "a", "a_scale": "a_scale", "b": "b", "b_scale": "b_scale", "c": "c", "n": n, "k": k},
        {
            "BM": 128, "BN": 128, "BK": 128, "A_KIND": a_kind, "B_KIND": b_kind,
            "A_PACK": a_pack, "B_PACK": b_pack, "GROUP": group,
        },
        expected, kernel="matmul_scaled", module=MODULE, schedules="few",
    )  # fmt: skip


def attention(arch: int, *, causal: bool, length: int = 150) -> Case:
    d, bm, bn = 64, 64, 32
    scale = LOG2_E / 8
    return triton_case(
        "attention_causal" if causal else "attention", arch, (-(-length // bm),),
        {name: normal(np.float16, length, d) for name in "qkv"} | {"out": output(np.float16, length, d)},
        {"q": "q", "k": "k", "v": "v", "out": "out", "scale": scale, "length": length},
        {"D": d, "BM": bm, "BN": bn, "CAUSAL": causal},
        lambda x: {"out": ref.attention(x["q"], x["k"], x["v"], scale, causal=causal)},
        kernel="attention", module=MODULE, exact=False, rtol=4e-3, atol=4e-3, schedules="few",
    )  # fmt: skip


def attention_descriptor(arch: int, *, specialise: bool) -> Case:
    length, d, bm, bn = 256, 64, 128, 64
    scale = LOG2_E / 8
    return triton_case(
        "attention_specialised" if specialise else "attention_descriptor", arch, (length // bm,),
        {name: normal(np.float16, length, d) for name in "qkv"} | {"out": output(np.float16, length, d)},
        {
            "q": Tile("q", (bm, d)), "k": Tile("k", (bn, d)), "v": Tile("v", (bn, d)), "out": Tile("out", (bm, d)),
            "length": length, "scale": scale,
        },
        {"D": d, "BM": bm, "BN": bn, "SPECIALISE": specialise},
        lambda x: {"out": ref.attention(x["q"], x["k"], x["v"], scale)},
        kernel="attention_descriptor", module=MODULE, exact=False, rtol=4e-3, atol=4e-3, schedules="few",
    )  # fmt: skip


def device_descriptor(arch: int) -> Case:
    m, n, k = 128, 96, 128
    return triton_case(
        "device_descriptor", arch, (2, 2),
        {"a": integers(np.float16, m, k), "b": integers(np.float16, n, k), "c": output(np.float16, m, n)},
        {"a": "a", "b": "b", "c": "c", "m": m, "n": n, "k": k},
        {"BM": 64, "BN": 64, "BK": 64},
        ref.product(b_transposed=True), kernel="matmul_device_descriptor", module=MODULE,
    )  # fmt: skip


def split_k(arch: int) -> Case:
    m, n, k, split = 60, 64, 224, 3
    return triton_case(
        "matmul_split_k", arch, (1, split),
        {"a": integers(BFLOAT16, m, k), "b": integers(BFLOAT16, k, n), "c": zeros(np.float32, m, n)},
        {"a": "a", "b": "b", "c": "c", "m": m, "n": n, "k": k},
        {"BM": 64, "BN": 64, "BK": 32, "SPLIT": split},
        ref.product(), kernel="matmul_split_k", module=MODULE,
    )  # fmt: skip


def batched(arch: int) -> Case:
    batches, m, n, k = 3, 72, 64, 80
    return triton_case(
        "descriptor_batched", arch, (batches, 2),
        {"a": integers(np.float16, batches, m, k), "b": integers(np.float16, batches, k, n),
            "c": output(np.float32, batches, m, n)},
        {"a": Tile("a", (1, 64, 64)), "b": Tile("b", (1, 64, 64)), "c": Tile("c", (1, 64, 64)), "k": k},
        {"BM": 64, "BN": 64, "BK": 64},
        ref.product(), kernel="matmul_batched", module=MODULE,
    )  # fmt: skip


CASES = [
    *(masked("masked_f16", arch, np.float16, (100, 77, 50), (64, 64, 32), np.float32) for arch in (90, 100)),
    *(masked("masked_bf16", arch, BFLOAT16, (128, 192, 96), (128, 64, 32), BFLOAT16) for arch in (90, 100)),
    *(masked("e4m3", arch, E4M3, (130, 64, 96), (64, 64, 32), np.float16) for arch in (90, 100)),
    masked("e5m2", 90, E5M2, (64, 72, 64), (64, 64, 64), np.float32),
    *(masked("tf32", arch, np.float32, (64, 80, 72), (64, 64, 32), np.float32) for arch in (90, 100)),
    masked("ieee", 90, np.float32, (33, 40, 48), (32, 32, 16), np.float32, precision="ieee"),
    masked("tf32x3", 90, np.float32, (64, 64, 64), (64, 64, 32), np.float32, precision="tf32x3"),
    *(
        masked("int8", arch, np.int8, (96, 64, 100), (64, 64, 64), np.int32, accumulator="tl.int32")
        for arch in (90, 100)
    ),
    # Triton unpacks the f16 accumulators before wgmma.wait_group: ptxas serialises, the emulator shows old values.
    masked("f16_accumulator", 90, np.float16, (64, 64, 64), (64, 64, 32), np.float16, accumulator="tl.float16",
        schedules="none"),
    masked("small_tiles", 90, np.float16, (40, 40, 40), (16, 16, 16), np.float32, options={"num_warps": 2}),
    masked("f64", 90, np.float64, (20, 24, 20), (16, 16, 16), np.float64, precision="ieee", accumulator="tl.float64"),
    masked("two_ctas", 90, np.float16, (256, 128, 64), (128, 128, 32), np.float16, options={"num_ctas": 2},
        schedules="few"),
    eight_warps(90), eight_warps(100),
    split_k(90), split_k(100),
    *(described("f16", arch, np.float16, (128, 256, 128), (128, 128, 64), np.float16, b_t=False) for arch in (90, 100)),
    *(described("transposed", arch, BFLOAT16, (128, 128, 128), (64, 128, 64), BFLOAT16, a_t=True,
        b_t=False) for arch in (90, 100)),
    *(described("e4m3", arch, E4M3, (128, 128, 256), (128, 128, 128), np.float32) for arch in (90, 100)),
    described("ragged", 90, BFLOAT16, (100, 72, 88), (64, 64, 32), np.float32, options={"num_stages": 4}),
    described("ragged", 100, BFLOAT16, (130, 72, 88), (128, 64, 32), np.float32, options={"num_stages": 4}),
    described("two_ctas", 100, np.float16, (256, 256, 128), (256, 128, 64), np.float16, options={"num_ctas": 2},
        schedules="few"),
    batched(90), batched(100),
    persistent("loop", 90, programs=2, specialise=False, flatten=False, parts=1),
    persistent("8warps", 90, programs=2, specialise=False, flatten=False, parts=2, num_warps=8),
    persistent("flat", 100, programs=2, specialise=False, flatten=True, parts=2),
    persistent("specialised", 100, programs=2, specialise=True, flatten=False, parts=1),
    persistent("specialised_flat", 100, programs=3, specialise=True, flatten=True, parts=2, num_warps=8),
    device_descriptor(90), device_descriptor(100),
    scaled("mxfp8", "e4m3", "e5m2", E4M3, E5M2),
    scaled("mxfp4", "e2m1", "e2m1", np.uint8, np.uint8),
    scaled("mixed", "e4m3", "e2m1", E4M3, np.uint8),
    attention(90, causal=True), attention(100, causal=False),
    attention_descriptor(90, specialise=False), attention_descriptor(100, specialise=True),
]  # fmt: skip
