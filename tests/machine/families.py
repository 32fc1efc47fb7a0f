"""One small launch of every kernel family of the library, on data for which the order of summation matters."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

import warploom as wl

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn

Bound = tuple[wl.Launch, np.ndarray]


def normal(*shape: int, dtype: object = BF16) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def matmul(config: object, m: int = 72, n: int = 56, k: int = 256) -> Bound:
    target = "sm_90a" if isinstance(config, wl.HopperConfig) else "sm_100a"
    out = empty(m, n)
    return wl.matmul.bind(normal(m, k), normal(k, n), out=out, config=config, target=target), out


def linear(target: str) -> Bound:
    out = empty(72, 56, dtype=BF16)
    x, w = normal(72, 128), normal(56, 128)
    return wl.linear.bind(x, w, bias=normal(56), residual=normal(72, 56), out=out, target=target), out


def gated(target: str) -> Bound:
    out = empty(40, 32, dtype=BF16)
    return wl.gated_linear.bind(normal(40, 128), normal(32, 128), normal(32, 128), out=out, target=target), out


def grouped(target: str) -> Bound:
    out = empty(70, 48, dtype=BF16)
    return wl.grouped_matmul.bind(normal(70, 64), normal(3, 64, 48), np.array([9, 40, 70]), out=out, target=target), out


def blockwise(target: str) -> Bound:
    out = empty(40, 64, dtype=BF16)
    a, b = normal(40, 256, dtype=E4M3), normal(64, 256, dtype=E4M3)
    scales = np.abs(normal(40, 2, dtype=np.float32)), np.abs(normal(1, 2, dtype=np.float32))
    return wl.blockwise_matmul.bind(a, b, *scales, out=out, target=target), out


def block_scaled() -> Bound:
    out = empty(72, 56, dtype=BF16)
    a, b = (wl.quantise_mxfp8(normal(rows, 128, dtype=np.float32)) for rows in (72, 56))
    return wl.block_scaled_matmul.bind(a.values, b.values, a.scales, b.scales, out=out), out


IN_MEMORY = wl.HopperConfig(tile=(64, 32), consumers=1, num_split_k=4, split_in_cluster=False)
FAMILIES: dict[str, Callable[[], Bound]] = {
    "sm_90a cooperative": lambda: matmul(wl.HopperConfig(tile=(128, 64))),
    "sm_90a ping-pong": lambda: matmul(wl.HopperConfig(tile=(64, 64), pingpong=True)),
    "sm_90a split-K in a cluster": lambda: matmul(wl.HopperConfig(tile=(64, 32), consumers=1, num_split_k=4)),
    "sm_90a split-K in memory": lambda: matmul(IN_MEMORY),
    "sm_90a stream-K": lambda: matmul(wl.HopperConfig(tile=(64, 64), consumers=1, stream_k=True)),
    "sm_90a linear": lambda: linear("sm_90a"),
    "sm_90a gated": lambda: gated("sm_90a"),
    "sm_90a grouped": lambda: grouped("sm_90a"),
    "sm_90a blockwise": lambda: blockwise("sm_90a"),
    "sm_100a pair": lambda: matmul(wl.MatmulConfig()),
    "sm_100a one CTA": lambda: matmul(wl.MatmulConfig(cta_group=1, mma_shape=(128, 64, 16))),
    "sm_100a split-K": lambda: matmul(wl.MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=3)),
    "sm_100a linear": lambda: linear("sm_100a"),
    "sm_100a gated": lambda: gated("sm_100a"),
    "sm_100a grouped": lambda: grouped("sm_100a"),
    "sm_100a blockwise": lambda: blockwise("sm_100a"),
    "sm_100a block-scaled": block_scaled,
}
