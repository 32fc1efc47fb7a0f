"""The Gluon cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import references as ref
from .case import BFLOAT16, E4M3, Arrays, Buffer, Case, Tile, drawn, integers, normal, output
from .triton_case import triton_case

BLACKWELL = (
    "tcgen05_ring", "tcgen05_left_in_tmem", "two_cta_matmul", "roles_matmul",
    "clc_tiles", "block_scaled", "packed_math",
)  # fmt: skip


def tile(
    buffer: str, block: tuple[int, ...], bits: int, cga: tuple[tuple[int, ...], ...] = (), *, plain: bool = False
) -> Tile:
    """A descriptor argument with the widest swizzle that its rows (those of one CTA) can take."""
    columns = block[-1]
    for basis in cga:
        columns //= 2 if basis[-1] else 1
    swizzle = 0 if plain else min(128, columns * bits // 8)
    layout = (
        f"NVMMASharedLayout(swizzle_byte_width={swizzle}, element_bitwidth={bits}, rank={len(block)}, "
        f"transposed=False, fp4_padded=False, cga_layout={[list(basis) for basis in cga]})"
    )
    return Tile(buffer, block, layout)


def gluon_case(
    name: str,
    arch: int,
    grid: tuple[int, ...],
    buffers: Mapping[str, Buffer],
    args: Mapping[str, str | Tile | int | float],
    constants: Mapping[str, Any],
    expected: Callable[[Arrays], Arrays],
    **facts: Any,
) -> Case:
    """A case of one of the two Gluon modules; kernels for both generations are in the Hopper one."""
    kernel = facts.get("kernel", name)
    facts.setdefault("schedules", "all")
    module = "kernels_gluon_blackwell" if kernel in BLACKWELL else "kernels_gluon"
    return triton_case(name, arch, grid, buffers, args, constants, expected, module=module, **facts)


def ring(
    name: str, arch: int, kernel: str, dtype: Any, sizes: tuple[int, int, int], block: tuple[int, int, int],
    result: Any,
    constants: Mapping[str, Any], grid: tuple[int, ...] | None = None, **facts: Any,
) -> Case:  # fmt: skip
    """c = a @ b.T through descriptors."""
    m, n, k = sizes
    bm, bn, bk = block
    bits, out_bits = 8 * np.dtype(dtype).itemsize, 8 * np.dtype(result).itemsize
    return gluon_case(
        name, arch, grid or (-(-m // bm), -(-n // bn)),
        {"a": integers(dtype, m, k), "b": integers(dtype, n, k), "c": output(result, m, n)},
        {"a": tile("a", (bm, bk), bits), "b": tile("b", (bn, bk), bits), "c": tile("c", (bm, bn), out_bits)},
        constants, ref.product(b_transposed=True), kernel=kernel, **facts,
    )  # fmt: skip


def multicast(arch: int) -> Case:
    m, n, k, bm = 256, 64, 128, 128
    return gluon_case(
        "cluster_multicast", arch, (m // bm,),
        {"a": integers(BFLOAT16, m, k), "b": integers(BFLOAT16, n, k), "c": output(BFLOAT16, m, n)},
        {
            "a": tile("a", (bm, 64), 16, ((1, 0),)), "b": tile("b", (n, 64), 16, ((0, 0),)),
            "c": tile("c", (bm, n), 16, ((1, 0),)),
        },
        {"WARPS": 4}, ref.product(b_transposed=True), options={"num_ctas": 2}, schedules="few",
    )  # fmt: skip


def two_cta(arch: int) -> Case:
    m, n, k = 256, 256, 128
    return gluon_case(
        "two_cta_matmul", arch, (1, 2),
        {"a": integers(np.float16, m, k), "b": integers(np.float16, k, n), "c": output(np.float16, m, n)},
        {
            "a": tile("a", (256, 64), 16, ((1, 0),)), "b": tile("b", (64, 128), 16, ((0, 1),)),
            "c": tile("c", (256, 128), 16, ((1, 0),)),
        },
        {}, ref.product(), options={"num_ctas": 2}, schedules="few",
    )  # fmt: skip


def ping_pong(arch: int) -> Case:
    tiles, bm, bn = 5, 16, 32

    def expected(arrays: Arrays) -> Arrays:
        return {"target": arrays["source"] ** 2 + np.repeat(np.arange(tiles), bm)[:, None]}

    return gluon_case(
        "ping_pong", arch, (1,),
        {"source": integers(np.float32, tiles * bm, bn), "target": output(np.float32, tiles * bm, bn)},
        {"source": tile("source", (bm, bn), 32), "target": tile("target", (bm, bn), 32), "tiles": tiles},
        {"STAGES": 2, "WARPS": 4}, expected,
    )  # fmt: skip


def packed_scales(scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(mn, k) scales in the order of blocks of 128 × 4 that tcgen05.cp wants, as rank 5."""
    mn, k = scales.shape
    blocks = scales.reshape(mn // 128, 4, 32, k // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(blocks).reshape(1, mn // 128, k // 4, 2, 256)


def unpacked_scales(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The inverse of `packed_scales`."""
    _, rows, columns, _, _ = blocks.shape
    return blocks.reshape(rows, columns, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(rows * 128, columns * 4)


def block_scaled(arch: int, kind: str, bk: int = 128) -> Case:
    """mxfp8, mxfp4 (a scale per 32, powers of two) or nvfp4 (a scale per 16, e4m3); tiles of `bk` along K."""
    m, n, k = 128, 128, 256
    four, of_e4m3 = kind != "mxfp8", kind == "nvfp4"
    group, pack = 16 if of_e4m3 else 32, 2 if four else 1
    scale = (
        drawn(E4M3, lambda rng, shape: np.exp2(rng.integers(-2, 3, shape)), 1, 1, k // group // 4, 2, 256)
        if of_e4m3
        else integers(np.uint8, 1, 1, k // group // 4, 2, 256, low=125, high=130)
    )

    def operand(arrays: Arrays, name: str) -> np.ndarray[Any, Any]:
        values = ref.unpack_fp4(arrays[name]) if four else arrays[name]
        scales = unpacked_scales(arrays[f"{name}_scale"])
        return ref.scaled(values, scales.astype(np.float64) if of_e4m3 else ref.scale_e8m0(scales), group)

    def packed(rows: int) -> Buffer:
        return integers(np.uint8, rows, k // 2, low=0, high=256) if four else integers(E4M3, rows, k)

    rep = bk // group // 4
    return gluon_case(
        f"block_scaled_{kind}", arch, (1,),
        {"a": packed(m), "b": packed(n), "a_scale": scale, "b_scale": scale, "c": output(np.float32, m, n)},
        {
            "a": tile("a", (m, bk // pack), 8), "b": tile("b", (n, bk // pack), 8),
            "a_scale": tile("a_scale", (1, 1, rep, 2, 256), 8, plain=True),
            "b_scale": tile("b_scale", (1, 1, rep, 2, 256), 8, plain=True),
            "c": tile("c", (m, n), 32),
        },
        {"KIND": "e2m1" if four else "e4m3", "GROUP": group, "PACK": pack},
        lambda x: {"c": operand(x, "a") @ operand(x, "b").T}, kernel="block_scaled", schedules="few",
    )  # fmt: skip


def cluster_softmax(arch: int) -> Case:
    rows, n = 2, 1000
    return gluon_case(
        "cluster_softmax", arch, (rows,),
        {"x": normal(np.float32, rows, n), "out": output(np.float32, rows, n)},
        {"x": "x", "out": "out", "n": n}, {"BLOCK": 1024},
        lambda x: {"out": ref.softmax(x["x"])}, options={"num_ctas": 4, "num_warps": 2},
        exact=False, rtol=2e-5, atol=1e-8,
    )  # fmt: skip


def registers(arch: int) -> Case:
    m, n, k = 100, 64, 64
    return gluon_case(
        "wgmma_from_registers", arch, (2,),
        {"a": integers(BFLOAT16, m, k), "b": integers(BFLOAT16, k, n), "c": output(np.float32, m, n)},
        {"a": "a", "b": "b", "c": "c", "m": m, "n": n, "k": k}, {"BM": 64, "BN": n, "BK": 32},
        lambda x: {"c": 2 * ref.product()(x)["c"]},
    )  # fmt: skip


def mma_sync(arch: int) -> Case:
    m, n, k = 64, 96, 96
    return gluon_case(
        "mma_sync_pipeline", arch, (2, 3),
        {"a": integers(np.float16, m, k), "b": integers(np.float16, k, n), "c": output(np.float16, m, n)},
        {"a": "a", "b": "b", "c": "c", "n": n, "k": k}, {"BM": 32, "BN": 32, "BK": 32}, ref.product(),
    )  # fmt: skip


def left_in_tmem(arch: int) -> Case:
    m, n, k = 128, 64, 64
    return gluon_case(
        "tcgen05_left_in_tmem", arch, (1,),
        {"a": integers(np.float16, m, k), "b": integers(np.float16, k, n), "c": output(np.float32, m, n)},
        {"a": "a", "b": "b", "c": "c", "n": n}, {"BM": m, "BN": n, "BK": k},
        lambda x: {"c": (x["a"].astype(np.float64) + 1) @ x["b"].astype(np.float64)},
    )  # fmt: skip


def clc(arch: int) -> Case:
    tiles, block = 7, 128
    return gluon_case(
        "clc_tiles", arch, (tiles,),
        {"x": integers(np.int32, tiles * block), "out": output(np.int32, tiles * block)},
        {"x": "x", "out": "out"}, {"BLOCK": block},
        lambda x: {"out": x["x"] * 3 + np.repeat(np.arange(tiles, dtype=np.int32), block)},
    )  # fmt: skip


def packed_math(arch: int) -> Case:
    n = 700
    return gluon_case(
        "packed_math", arch, (2,),
        {"x": integers(np.float32, n), "y": integers(np.float32, n), "out": output(np.float32, n)},
        {"x": "x", "y": "y", "out": "out", "n": n}, {"BLOCK": 512},
        lambda x: {"out": (x["x"] * x["y"] + x["y"]) * (x["x"] - x["y"])},
    )  # fmt: skip


def shared_scatter(arch: int) -> Case:
    n, bins = 256, 32

    def expected(arrays: Arrays) -> Arrays:
        order = np.empty(n, np.float32)
        order[arrays["index"]] = arrays["values"]
        return {"counts": np.bincount(arrays["index"] % bins, minlength=bins), "order": order}

    return gluon_case(
        "shared_scatter", arch, (1,),
        {
            "index": drawn(np.int32, lambda rng, shape: rng.permutation(n), n), "values": normal(np.float32, n),
            "counts": output(np.int32, bins), "order": output(np.float32, n),
        },
        {"index": "index", "values": "values", "counts": "counts", "order": "order"}, {"N": n, "BINS": bins}, expected,
    )  # fmt: skip


def remote_store(arch: int) -> Case:
    rows, columns = 16, 64
    return gluon_case(
        "remote_store", arch, (1,),
        {"x": integers(np.float32, rows, columns), "out": output(np.float32, rows, columns)},
        {"x": "x", "out": "out"}, {"ROWS": rows, "COLUMNS": columns}, lambda x: {"out": x["x"] ** 2},
        options={"num_ctas": 2},
    )  # fmt: skip


CASES = [
    ring("wgmma_ring", 90, "wgmma_ring", np.float16, (128, 128, 256), (64, 64, 64), np.float16,
        {"STAGES": 3, "WARPS": 4}),
    ring(
        "wgmma_ring_8warps", 90, "wgmma_ring", BFLOAT16, (128, 128, 192), (128, 128, 64), BFLOAT16,
        {"STAGES": 2, "WARPS": 8}, options={"num_warps": 8}, schedules="few",
    ),
    ring("wgmma_ring_e4m3", 90, "wgmma_ring", E4M3, (64, 96, 256), (64, 32, 128), np.float32,
        {"STAGES": 2, "WARPS": 4}),
    registers(90), mma_sync(90), mma_sync(100), ping_pong(90), ping_pong(100), cluster_softmax(90), multicast(90),
    shared_scatter(90), remote_store(90),
    ring(
        "tcgen05_ring", 100, "tcgen05_ring", np.float16, (128, 128, 256), (128, 64, 64), np.float16,
        {"STAGES": 2, "WARPS": 4, "VARIANT": "32x32b"},
    ),
    ring(
        "tcgen05_ring_m64", 100, "tcgen05_ring", BFLOAT16, (64, 128, 192), (64, 128, 64), np.float32,
        {"STAGES": 3, "WARPS": 4, "VARIANT": "16x64b"},
    ),
    ring(
        "tcgen05_ring_16x256b", 100, "tcgen05_ring", E4M3, (128, 64, 256), (128, 64, 128), np.float16,
        {"STAGES": 2, "WARPS": 4, "VARIANT": "16x256b"},
    ),
    left_in_tmem(100), two_cta(100),
    ring(
        "roles_matmul", 100, "roles_matmul", BFLOAT16, (256, 192, 128), (128, 64, 64), BFLOAT16, {"STAGES": 3},
        grid=(2,), schedules="few",
    ),
    clc(100), block_scaled(100, "mxfp8"), block_scaled(100, "nvfp4"), packed_math(100),
]  # fmt: skip
