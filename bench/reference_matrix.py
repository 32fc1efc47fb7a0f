"""Random cases of the reference's test matrix, and of the families that came later, on the emulator against NumPy.

`python bench/reference_matrix.py --count 200 --seed 1` runs a sample: small integers, awkward sizes, one of four schedules
each, sm_100a. A case is exact, wrong, or refused with an error before it runs. `--jobs` processes share the work, and
`--seconds` bounds it. `--save` writes bench/results/reference_matrix.json, with the rule that each refused case breaks. Needs
no GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.diagnostics import LaunchError
from warploom.structured.config import BlockScaledMatmulConfig, BlockwiseFP8MatmulConfig, MatmulConfig

FILE = Path(__file__).parent / "results" / "reference_matrix.json"
BF16, E4M3, E8M0 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu
E2M1 = ml_dtypes.float4_e2m1fn
FORMATS = {"W4A8": (E4M3, E2M1, E8M0, 32), "MXFP4": (E2M1, E2M1, E8M0, 32), "NVFP4": (E2M1, E2M1, E4M3, 16)}
"""Types of A, of B and of the scales, and the elements of K that a scale is for."""
SCHEDULES = ("eager", "lazy", "reverse", "random")
Case = tuple[Any, tuple[Any, ...], dict[str, Any], Any]
"""An operation, its arrays, its options, and the exact result in float32."""


class Draw:
    """Random values of one case."""

    def __init__(self, seed: int) -> None:
        self.choose, self._rng = random.Random(seed), np.random.default_rng(seed)

    def integers(self, *shape: int, dtype: Any = BF16) -> Any:
        return self._rng.integers(-2, 3, shape).astype(dtype)

    def powers(self, *shape: int, dtype: Any) -> Any:
        return np.exp2(self._rng.integers(-1, 2, shape)).astype(dtype)

    def size(self, most: int) -> int:
        """Return a size: one, a prime, one more than a tile, or any."""
        return min(self.choose.choice((1, 17, 65, 127, 129, 191, self.choose.randrange(1, most + 1))), most)

    def sizes(self, multiple: int = 1) -> tuple[int, int, int]:
        n, k = self.size(300), self.size(500)
        return self.size(300), -(-n // multiple) * multiple, -(-k // multiple) * multiple

    def shape(self, groups: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
        """Return the CTAs and the shape of a dense MMA."""
        group = self.choose.choice(groups)
        m = self.choose.choice((64, 128) if group == 1 else (128, 256))
        n = self.choose.choice(range(8, 257, 8) if group == 1 else range(32, 257, 32))
        return {"cta_group": group, "mma_shape": (m, n, 16)}

    def ends(self, rows: int, groups: int) -> Any:
        return np.sort(self._rng.integers(0, rows + 1, groups)).astype(np.int32)


def wide(array: Any) -> Any:
    return array.astype(np.float32)


def dense(draw: Draw, *, more: Callable[[Draw], dict[str, Any]] = lambda _: {}, groups: Any = (1, 2)) -> Case:
    m, n, k = draw.sizes(8)
    a, b = draw.integers(m, k), draw.integers(k, n)
    config = MatmulConfig(**{**draw.shape(groups), **more(draw)})
    return wl.matmul, (a, b), {"config": config}, wide(a) @ wide(b)


def batched(draw: Draw) -> Case:
    m, n, k = draw.sizes(8)
    a, b = draw.integers(3, m, k), draw.integers(3, k, n)
    return wl.matmul, (a, b), {"config": MatmulConfig(**draw.shape())}, wide(a) @ wide(b)


def fused(draw: Draw) -> Case:
    """A bias and a residual, which an epilogue-load role may load."""
    m, n, k = draw.sizes(8)
    x, w, bias, residual = draw.integers(m, k), draw.integers(n, k), draw.integers(n), draw.integers(m, n)
    loads, is_row = draw.choose.choice(((False, False), (True, False), (True, True)))
    config = MatmulConfig(**draw.shape(), use_tma_epilogue_load=loads, epilogue_is_1d=is_row)
    options = {"config": config, "bias": bias, "residual": residual, "activation": "relu"}
    return wl.linear, (x, w), options, np.maximum(wide(x) @ wide(w).T + wide(bias), 0) + wide(residual)


def gated(draw: Draw) -> Case:
    m, n, k = draw.sizes(8)
    x, gate, up = draw.integers(m, k), draw.integers(n, k), draw.integers(n, k)
    config = MatmulConfig(**draw.shape(), AB_swapped=draw.choose.random() < 0.5)
    options = {"config": config, "pair": lambda one, two: one * two, "out_dtype": np.float32}
    return wl.gated_linear, (x, gate, up), options, (wide(x) @ wide(gate).T) * (wide(x) @ wide(up).T)


def by_groups(a: Any, weights: Any, ends: Any, ids: Any) -> Any:
    exact = np.zeros((len(a), weights.shape[1]), np.float32)
    for start, end, expert in zip((0, *ends), ends, ids, strict=False):
        if expert >= 0:
            exact[start:end] = a[start:end] @ weights[expert].T
    return exact


def grouped(draw: Draw) -> Case:
    m, n, k = draw.sizes(8)
    a, w, ends = draw.integers(m, k), draw.integers(4, n, k), draw.ends(m, 4)
    ids = np.array([draw.choose.randrange(-1, 4) for _ in range(4)], np.int32)
    config = MatmulConfig(**draw.shape(), AB_swapped=draw.choose.random() < 0.5)
    exact = by_groups(wide(a), wide(w), ends, ids)
    return wl.grouped_matmul, (a, w.mT, ends), {"expert_ids": ids, "config": config}, exact


def _blocks(values: Any, scales: Any, rows: int) -> Any:
    """Return values times their scales of blocks of some rows × 128."""
    spread = np.repeat(np.repeat(scales, rows, axis=-2), 128, axis=-1)
    return wide(values) * spread[..., : values.shape[-2], : values.shape[-1]]


def blockwise(draw: Draw) -> Case:
    m, n, k = draw.sizes(16)
    a, b = draw.integers(m, k, dtype=E4M3), draw.integers(n, k, dtype=E4M3)
    tiles, columns = -(-k // 128), -(-n // 128)
    scales = draw.powers(m, tiles, dtype=np.float32), draw.powers(columns, tiles, dtype=np.float32)
    fields = draw.shape() | {"AB_swapped": draw.choose.random() < 0.5}
    fields["mma_shape"] = (*fields["mma_shape"][:2], 32)
    exact = _blocks(a, scales[0], 1) @ _blocks(b, scales[1], 128).T
    return wl.blockwise_matmul, (a, b, *scales), {"config": BlockwiseFP8MatmulConfig(**fields)}, exact


def grouped_blockwise(draw: Draw) -> Case:
    m, n, k = draw.sizes(16)
    a, b, ends = draw.integers(m, k, dtype=E4M3), draw.integers(3, n, k, dtype=E4M3), draw.ends(m, 3)
    tiles, columns = -(-k // 128), -(-n // 128)
    scales = draw.powers(m, tiles, dtype=np.float32), draw.powers(3, columns, tiles, dtype=np.float32)
    exact = by_groups(_blocks(a, scales[0], 1), _blocks(b, scales[1], 128), ends, range(3))
    return wl.grouped_blockwise_matmul, (a, b, *scales, ends), {"target": "sm_100a"}, exact


def _mx(draw: Draw, *shape: int, dtype: Any = E4M3, of: Any = E8M0, run: int = 32) -> tuple[Any, Any, Any]:
    """Return values of a block-scaled format, scales, and their products."""
    values, scales = draw.integers(*shape, dtype=dtype), draw.powers(*shape[:-1], -(-shape[-1] // run), dtype=of)
    return values, scales, wide(values) * np.repeat(wide(scales), run, axis=-1)[..., : shape[-1]]


def _mx_shape(draw: Draw) -> dict[str, Any]:
    group, swapped = draw.choose.choice((1, 2)), draw.choose.random() < 0.4
    columns = (8, 16, 32, 64, 96, 128, 192, 256) if group == 1 else (64, 128, 192, 256)
    return {
        "cta_group": group,
        "mma_shape": (128 * group, draw.choose.choice(columns), 32),
        "AB_swapped": swapped,
        "k_group_size": draw.choose.choice((1, 1, 2)),
    }


def block_scaled(draw: Draw) -> Case:
    m, n, k = draw.sizes(32)
    (a, of_a, left), (b, of_b, right) = _mx(draw, m, k), _mx(draw, n, k)
    fields = _mx_shape(draw) | {"prefetch_tiles_n": draw.choose.choice((0, 0, 2))}
    fields["num_split_k"] = draw.choose.choice((1, 1, 2))
    config = BlockScaledMatmulConfig(**fields)
    return wl.block_scaled_matmul, (a, b, of_a, of_b), {"config": config}, left @ right.T


def grouped_block_scaled(draw: Draw) -> Case:
    m, n, k = draw.sizes(32)
    (a, of_a, left), (b, of_b, right), ends = _mx(draw, m, k), _mx(draw, 3, n, k), draw.ends(m, 3)
    options = {"config": BlockScaledMatmulConfig(**_mx_shape(draw))}
    return wl.grouped_block_scaled_matmul, (a, b, of_a, of_b, ends), options, by_groups(left, right, ends, range(3))


def four_bits(draw: Draw) -> Case:
    """A format with 4-bit elements, dense or grouped, with the library's choice of a configuration."""
    a_type, b_type, of, run = FORMATS[draw.choose.choice(list(FORMATS))]
    (m, n, k), is_grouped = draw.sizes(128), draw.choose.random() < 0.5
    a, of_a, left = _mx(draw, m, k, dtype=a_type, of=of, run=run)
    b, of_b, right = _mx(draw, 3, n, k, dtype=b_type, of=of, run=run)
    options = {"target": "sm_100a", "out_dtype": np.float32}
    if not is_grouped:
        return wl.block_scaled_matmul, (a, b[0], of_a, of_b[0]), options, left @ right[0].T
    ends, ids = draw.ends(m, 4), np.array([draw.choose.randrange(-1, 3) for _ in range(4)], np.int32)
    exact = by_groups(left, right, ends, ids)
    return wl.grouped_block_scaled_matmul, (a, b, of_a, of_b, ends), {**options, "expert_ids": ids}, exact


def gated_grouped_block_scaled(draw: Draw) -> Case:
    m, n, k = draw.sizes(32)
    (a, of_a, left), ends = _mx(draw, m, k), draw.ends(m, 3)
    (gate, of_gate, first), (up, of_up, second) = _mx(draw, 3, n, k), _mx(draw, 3, n, k)
    exact = by_groups(left, first, ends, range(3)) * by_groups(left, second, ends, range(3))
    options = {"pair": lambda one, two: one * two, "out_dtype": np.float32, "target": "sm_100a"}
    return wl.gated_grouped_block_scaled_matmul, (a, gate, up, of_a, of_gate, of_up, ends), options, exact


def exact_float32(draw: Draw) -> Case:
    """Integers of 16 bits times small ones: tf32 would round them, three products do not."""
    m, n, k = draw.sizes(8)
    a, b = draw.integers(m, k, dtype=np.float32) * 8191, draw.integers(k, n, dtype=np.float32)
    options = {"precision": "tf32x3", "target": "sm_100a", "out_dtype": np.float32}
    return wl.matmul, (a, b), options, a @ b


def convolution(draw: Draw) -> Case:
    channels, filters, size = (
        8 * draw.choose.randrange(1, 9),
        8 * draw.choose.randrange(1, 9),
        draw.choose.randrange(3, 12),
    )
    x, w = draw.integers(2, size, size, channels), draw.integers(filters, 3, 3, channels)
    padded = np.pad(wide(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    exact = np.einsum("nhwcrs,krsc->nhwk", windows, wide(w), optimize=True)
    return wl.conv2d, (x, w), {"padding": 1, "target": "sm_100a"}, exact


SECTIONS: dict[str, Callable[[Draw], Case]] = {
    "1-SM": lambda draw: dense(draw, groups=(1,)),
    "2-SM": lambda draw: dense(draw, groups=(2,)),
    "swapped": lambda draw: dense(draw, more=lambda _: {"AB_swapped": True}),
    "split-K": lambda draw: dense(draw, more=lambda one: {"num_split_k": one.choose.choice((2, 3))}),
    "prefetch": lambda draw: dense(draw, more=lambda one: {"prefetch_tiles_n": one.choose.choice((1, 2))}),
    "k-groups": lambda draw: dense(draw, more=lambda one: {"k_group_size": one.choose.choice((2, 4))}),
    "clusters": lambda draw: dense(
        draw, groups=(1,), more=lambda one: {"cluster_shape": one.choose.choice(((2, 1, 1), (1, 2, 1), (4, 2, 1)))}
    ),
    "batched": batched,
    "bias and residual": fused,
    "SwiGLU": gated,
    "grouped": grouped,
    "blockwise FP8": blockwise,
    "grouped blockwise FP8": grouped_blockwise,
    "block-scaled": block_scaled,
    "grouped block-scaled": grouped_block_scaled,
    "4-bit block-scaled": four_bits,
    "gated grouped block-scaled": gated_grouped_block_scaled,
    "float32 by tf32x3": exact_float32,
    "conv2d": convolution,
}


def outcome(section: str, seed: int) -> str:
    """Run a case: `exact`, `wrong`, or `refused` and the reason."""
    draw = Draw(seed)
    operation, arrays, options, exact = SECTIONS[section](draw)
    dtype = np.dtype(options.get("out_dtype", BF16))
    out = np.full(exact.shape, np.nan, dtype)
    if "ends" in operation.arrays:  # rows of no group are not written
        out[...] = 0
    try:
        bound = operation.bind(*arrays, out=out, **options)
    except LaunchError as error:
        return f"refused: {'; '.join(line.strip() for line in str(error).splitlines()[1:-1])}"
    wl.launch(bound, schedule=draw.choose.choice(SCHEDULES), seed=seed)
    return "exact" if (wide(out) == wide(exact.astype(dtype))).all() else "wrong"


def _outcome(case: tuple[str, int]) -> tuple[str, int, str]:
    """Run a case; one that fails is wrong, and the others go on."""
    try:
        return *case, outcome(*case)
    except Exception:  # noqa: BLE001
        return *case, f"wrong: {traceback.format_exc()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=1e9, help="end after this long")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    names, until = list(SECTIONS), time.monotonic() + asked.seconds
    chosen = [(names[number % len(names)], asked.seed * 1_000_000 + number) for number in range(asked.count)]
    found: dict[str, Counter[str]] = {section: Counter() for section in SECTIONS}
    reasons: list[str] = []
    with multiprocessing.Pool(asked.jobs) as pool:
        for section, seed, result in pool.imap_unordered(_outcome, chosen):
            kind, _, reason = result.partition(": ")
            found[section][kind] += 1
            if reason or kind == "wrong":
                reasons.append(f"{section} {seed}: {result}")
                print(reasons[-1], flush=True)
            if asked.save:
                report = {"seed": asked.seed, "sections": found, "reasons": reasons}
                FILE.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")
            if time.monotonic() > until:
                break
    total = sum(found.values(), Counter[str]())
    print(dict(total), {section: dict(counts) for section, counts in found.items()})
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
