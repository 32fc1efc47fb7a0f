"""Random cases of the reference's test matrix, and of the families that came later, on the emulator against NumPy.

`python bench/reference_matrix.py --count 200 --seed 1` runs a sample: small integers, awkward sizes, one of four schedules
each, sm_100a. A case is exact, wrong, or refused with an error before it runs. `--save` writes
bench/results/reference_matrix.json. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import random
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


def _mx(draw: Draw, *shape: int) -> tuple[Any, Any, Any]:
    """Return MXFP8 values, scales, and their products."""
    values, scales = draw.integers(*shape, dtype=E4M3), draw.powers(*shape[:-1], -(-shape[-1] // 32), dtype=E8M0)
    return values, scales, wide(values) * np.repeat(wide(scales), 32, axis=-1)[..., : shape[-1]]


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
    "conv2d": convolution,
}


def outcome(section: str, seed: int) -> str:
    """Run a case: `exact`, `wrong` or `refused`."""
    draw = Draw(seed)
    operation, arrays, options, exact = SECTIONS[section](draw)
    dtype = np.dtype(options.get("out_dtype", BF16))
    out = np.full(exact.shape, np.nan, dtype)
    if "ends" in operation.arrays:  # rows of no group are not written
        out[...] = 0
    try:
        bound = operation.bind(*arrays, out=out, **options)
    except LaunchError:
        return "refused"
    wl.launch(bound, schedule=draw.choose.choice(SCHEDULES), seed=seed)
    return "exact" if (wide(out) == wide(exact.astype(dtype))).all() else "wrong"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    found: dict[str, Counter[str]] = {section: Counter() for section in SECTIONS}
    for number in range(asked.count):
        section, seed = list(SECTIONS)[number % len(SECTIONS)], asked.seed * 1_000_000 + number
        try:
            result = outcome(section, seed)
        except Exception:  # noqa: BLE001  a case that fails is wrong, and the others go on
            traceback.print_exc()
            result = "wrong"
        found[section][result] += 1
        if result == "wrong":
            print("wrong:", section, seed, flush=True)
        if asked.save:
            FILE.write_text(json.dumps({"seed": asked.seed, "sections": found}, indent=1) + "\n", "utf-8")
    total = sum(found.values(), Counter[str]())
    print(dict(total), {section: dict(counts) for section, counts in found.items()})
    return int(total["wrong"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
