"""Small launches of every kernel family of the library, for mutants: several tiles by one CTA, more k-tiles than stages.

Inputs are small integers, so that every sum is exact and results do not depend on the order of MMAs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.structured.config import (
    BlockScaledMatmulConfig,
    BlockwiseFP8MatmulConfig,
    HopperBlockwiseConfig,
    HopperConfig,
    MatmulConfig,
)

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A launch and its output; `sms` is the number of SMs that the emulator has."""

    launch: wl.Launch
    out: Array
    sms: int | None = None


def _integers(*shape: int, dtype: Any = BF16, low: int = -2, high: int = 3) -> Array:
    rng = np.random.default_rng(sum(shape))
    return rng.integers(low, high, shape).astype(dtype)


def _powers(*shape: int) -> Array:
    """Scale factors: 1/2, 1 and 2."""
    return np.exp2(np.random.default_rng(5).integers(-1, 2, shape)).astype(np.float32)


def _empty(*shape: int, dtype: Any = np.float32) -> Array:
    return np.full(shape, np.nan, dtype)


def _matmul(config: Any, m: int, n: int, k: int, *, grid: tuple[int, int, int] | None = None, sms: int = 1) -> Case:
    hopper = isinstance(config, HopperConfig)
    out = _empty(m, n)
    a, b = _integers(m, k), _integers(k, n)
    made = wl.matmul.bind(a, b, out=out, config=config, target="sm_90a" if hopper else "sm_100a")
    return Case(made if grid is None else replace(made, grid=grid), out, None if hopper else sms)


def _on_two(made: wl.Launch, target: str) -> wl.Launch:
    """The launch with the grid of a GPU with two SMs, where each CTA loops over its tiles."""
    return replace(made, grid=(2, 1, 1)) if target == "sm_90a" else made


def _small(target: str, **fields: Any) -> Any:
    """A configuration with small tiles and two stages, so that barriers and buffers are used again and again."""
    if target == "sm_90a":
        return HopperConfig(tile=(64, 32), consumers=1, num_pipeline_stages=2, **fields)
    return MatmulConfig(cta_group=1, mma_shape=(128, 32, 16), num_pipeline_stages=2, **fields)


def _linear(target: str) -> Case:
    out = _empty(136, 72, dtype=BF16)
    x, w = _integers(136, 256), _integers(72, 256)
    loads = {"residual_in_place": True} if target == "sm_90a" else {"use_tma_epilogue_load": True}
    more = {"bias": _integers(72), "residual": _integers(136, 72), "config": _small(target, **loads)}
    made = wl.linear.bind(x, w, out=out, target=target, **more)
    return Case(_on_two(made, target), out, 1 if target == "sm_100a" else None)


def _gated(target: str) -> Case:
    out = _empty(136, 40, dtype=BF16)
    x, gate, up = _integers(136, 256), _integers(40, 256), _integers(40, 256, low=-1, high=2)
    made = wl.gated_linear.bind(x, gate, up, out=out, target=target, config=_small(target))
    return Case(_on_two(made, target), out, 1 if target == "sm_100a" else None)


def _grouped(target: str) -> Case:
    # The second group has a whole tile of rows, which TMA stores, and a ragged one, which the threads do.
    out = _empty(186, 72, dtype=BF16)
    a, b, ends = _integers(186, 256), _integers(3, 256, 72), np.array([9, 150, 186])
    made = wl.grouped_matmul.bind(a, b, ends, out=out, target=target, config=_small(target))
    return Case(replace(made, grid=(2, 1, 1)), out, 1 if target == "sm_100a" else None)


def _blockwise(target: str) -> Case:
    out = _empty(136, 128, dtype=BF16)
    a, b = _integers(136, 512, dtype=E4M3), _integers(128, 512, dtype=E4M3)
    config = (
        HopperBlockwiseConfig(tile=(64, 64), consumers=1, num_pipeline_stages=2)
        if target == "sm_90a"
        else BlockwiseFP8MatmulConfig(cta_group=1, mma_shape=(128, 64, 32), num_pipeline_stages=2)
    )
    made = wl.blockwise_matmul.bind(a, b, _powers(136, 4), _powers(1, 4), out=out, target=target, config=config)
    return Case(_on_two(made, target), out, 1 if target == "sm_100a" else None)


def _block_scaled() -> Case:
    out = _empty(264, 136, dtype=BF16)
    a, b = (wl.quantise_mxfp8(_integers(rows, 512, dtype=np.float32)) for rows in (264, 136))
    config = BlockScaledMatmulConfig(cta_group=1, mma_shape=(128, 64, 32), num_pipeline_stages=2)
    made = wl.block_scaled_matmul.bind(a.values, b.values, a.scales, b.scales, out=out, config=config)
    return Case(made, out, 1)


_ONE = (1, 1, 1)
CASES: dict[str, Callable[[], Case]] = {
    "sm_90a cooperative": lambda: _matmul(
        HopperConfig(tile=(128, 64), num_pipeline_stages=2), 136, 72, 256, grid=_ONE
    ),
    "sm_90a ping-pong": lambda: _matmul(
        HopperConfig(tile=(64, 64), pingpong=True, num_pipeline_stages=3), 136, 72, 256, grid=_ONE
    ),
    "sm_90a cluster": lambda: _matmul(
        HopperConfig(tile=(64, 64), consumers=1, cluster_shape=(2, 1, 1), num_pipeline_stages=2), 200, 72, 256,
        grid=(2, 1, 1),
    ),
    "sm_90a split-K in a cluster": lambda: _matmul(
        HopperConfig(tile=(64, 32), consumers=1, num_split_k=2, num_pipeline_stages=2), 72, 40, 512
    ),
    "sm_90a split-K in memory": lambda: _matmul(
        HopperConfig(tile=(64, 32), consumers=1, num_split_k=2, split_in_cluster=False, num_pipeline_stages=2),
        72, 40, 512,
    ),
    "sm_90a stream-K": lambda: _matmul(
        HopperConfig(tile=(64, 64), consumers=1, stream_k=True, num_pipeline_stages=2), 136, 136, 320, grid=(4, 1, 1)
    ),
    "sm_90a linear": lambda: _linear("sm_90a"),
    "sm_90a gated": lambda: _gated("sm_90a"),
    "sm_90a grouped": lambda: _grouped("sm_90a"),
    "sm_90a blockwise": lambda: _blockwise("sm_90a"),
    "sm_100a pair": lambda: _matmul(
        MatmulConfig(mma_shape=(256, 64, 16), num_pipeline_stages=2), 264, 136, 256
    ),
    "sm_100a one CTA": lambda: _matmul(
        MatmulConfig(cta_group=1, mma_shape=(128, 64, 16), num_pipeline_stages=2), 264, 72, 256
    ),
    "sm_100a split-K": lambda: _matmul(
        MatmulConfig(cta_group=1, mma_shape=(64, 32, 16), num_split_k=2, num_pipeline_stages=2), 72, 40, 512, sms=4
    ),
    "sm_100a linear": lambda: _linear("sm_100a"),
    "sm_100a gated": lambda: _gated("sm_100a"),
    "sm_100a grouped": lambda: _grouped("sm_100a"),
    "sm_100a blockwise": lambda: _blockwise("sm_100a"),
    "sm_100a block-scaled": _block_scaled,
}  # fmt: skip
