"""A small case of each kernel family for Hopper, with its NumPy reference: for tools that check every memory access.

Sizes are not multiples of the tiles, inputs are small integers, results are exact. The GPU is said to have few SMs, so a CTA has
several tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

import warploom
from warploom.ops.grouped import padded_weights
from warploom.structured.config.sm90 import HopperConfig
from warploom.structured.config.sm90_blockwise import HopperBlockwiseConfig

Array = np.ndarray[Any, Any]
BF16, FP8 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
M, N, K = 200, 200, 200


@dataclass(frozen=True)
class Made:
    """One call: the operation, its arguments with `out` last, and the result."""

    operation: Any
    arguments: dict[str, Any]
    want: Array

    further: dict[str, Array] = field(default_factory=dict)
    """Expected auxiliary outputs, by name."""

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays of the call by name, including those in mappings."""
        nested = {
            name: each for value in self.arguments.values() if isinstance(value, dict) for name, each in value.items()
        }
        return {name: each for name, each in (*self.arguments.items(), *nested.items()) if isinstance(each, np.ndarray)}


@dataclass(frozen=True)
class Case:
    """A family, and the configuration that makes the case interesting."""

    make: Callable[..., Made]
    fields: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)
    sms: int = 4
    """The number of SMs that the kernel is launched for."""

    def made(self) -> Made:
        return self.make(np.random.default_rng(), dict(self.fields), **self.sizes)


def integers(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> Array:
    return rng.integers(-2, 3, shape).astype(dtype)


def poisoned(shape: tuple[int, ...], dtype: Any = BF16) -> Array:
    return np.full(shape, np.nan, dtype)


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def product(
    rng: np.random.Generator,
    fields: dict[str, Any],
    *,
    m: int = M,
    n: int = N,
    k: int = K,
    batch: tuple[int, ...] = (),
    dtype: Any = BF16,
    fused: bool = False,
    keeps: bool = False,
) -> Made:
    a, b = integers(rng, *batch, m, k, dtype=dtype), integers(rng, *batch, n, k, dtype=dtype)
    want = wide(a) @ np.swapaxes(wide(b), -1, -2)
    more: dict[str, Any] = {}
    further: dict[str, Array] = {}
    if fused:
        bias, residual = integers(rng, n), integers(rng, *batch, m, n)
        more = {"bias": bias, "residual": residual, "activation": "relu"}
        want = want + wide(bias)
        if keeps:
            more["outputs"] = {"pre_activation": poisoned(want.shape)}
            further["pre_activation"] = want.astype(BF16)
        want = np.maximum(want, 0) + wide(residual)
    out = poisoned(want.shape, BF16 if dtype == FP8 else dtype)
    given = {"a": a, "b": np.swapaxes(b, -1, -2), **more, "config": HopperConfig(**fields), "out": out}
    return Made(warploom.matmul, given, want.astype(out.dtype), further)


def gated(rng: np.random.Generator, fields: dict[str, Any], *, m: int = M, k: int = K) -> Made:
    """relu(x·gateᵀ) · (x·upᵀ)."""
    x, gate, up = (integers(rng, rows, k) for rows in (m, N, N))
    want = np.maximum(wide(x) @ wide(gate).T, 0) * (wide(x) @ wide(up).T)
    given = {"x": x, "w_gate": gate, "w_up": up, "pair": "reglu", "config": HopperConfig(**fields)}
    return Made(warploom.gated_linear, {**given, "out": poisoned((m, N))}, want.astype(BF16))


def convolution(rng: np.random.Generator, fields: dict[str, Any], *, fused: bool = False) -> Made:
    """A 3 × 3 filter with a stride of 2 and padding."""
    x, w = integers(rng, 3, 15, 13, 40), integers(rng, 72, 3, 3, 40)
    padded = np.pad(wide(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    want = np.einsum("nhwcrs,krsc->nhwk", windows, wide(w), optimize=True)
    given: dict[str, Any] = {"x": x, "w": w, "stride": 2, "padding": 1, "config": HopperConfig(**fields)}
    if fused:
        bias, residual = integers(rng, 72), integers(rng, *want.shape)
        given |= {"bias": bias, "residual": residual, "activation": "relu"}
        want = np.maximum(want + wide(bias), 0) + wide(residual)
    return Made(warploom.conv2d, {**given, "out": poisoned(want.shape)}, want.astype(BF16))


def exact_float32(rng: np.random.Generator, fields: dict[str, Any]) -> Made:
    """Integers that tf32 would round."""
    a, b = integers(rng, M, K, dtype=np.float32) * 4095, integers(rng, N, K, dtype=np.float32)
    given: dict[str, Any] = {"a": a, "b": b.T, "precision": "tf32x3", "out": poisoned((M, N), np.float32)}
    return Made(warploom.matmul, given, (wide(a) @ wide(b).T).astype(np.float32))


def by_groups(a: Array, b: Array, ends: Array) -> Array:
    """Rows of a times the transposed matrix b of their group."""
    parts = pairwise((0, *ends.tolist()))
    return np.concatenate([wide(a[start:end]) @ wide(each).T for (start, end), each in zip(parts, b, strict=True)])


def grouped(rng: np.random.Generator, fields: dict[str, Any], *, rows: tuple[int, ...], keeps: bool = False) -> Made:
    a, b = integers(rng, sum(rows), K), integers(rng, len(rows), N, K)
    ends = np.cumsum(rows).astype(np.int32)
    want = by_groups(a, b, ends)
    given: dict[str, Any] = {"a": a, "b": np.swapaxes(b, -1, -2), "ends": ends, "config": HopperConfig(**fields)}
    further: dict[str, Array] = {}
    if keeps:
        given |= {"activation": "relu", "outputs": {"pre_activation": poisoned(want.shape, np.float32)}}
        further["pre_activation"], want = want.astype(np.float32), np.maximum(want, 0)
    return Made(warploom.grouped_matmul, {**given, "out": poisoned(want.shape)}, want.astype(BF16), further)


def gated_groups(rng: np.random.Generator, fields: dict[str, Any], *, rows: tuple[int, ...]) -> Made:
    """relu(a·gate) · (a·up), with both matrices of a row's group; the gate is kept."""
    a, gate, up = integers(rng, sum(rows), K), *(integers(rng, len(rows), N, K) for _ in range(2))
    ends = np.cumsum(rows).astype(np.int32)
    before = by_groups(a, gate, ends)
    want = np.maximum(before, 0) * by_groups(a, up, ends)
    given = {"a": a, "b_gate": np.swapaxes(gate, -1, -2), "b_up": np.swapaxes(up, -1, -2), "ends": ends}
    given |= {"pair": "reglu", "config": HopperConfig(**fields), "outputs": {"gate": poisoned(want.shape)}}
    given["out"] = poisoned(want.shape)
    return Made(warploom.gated_grouped_matmul, given, want.astype(BF16), {"gate": before.astype(BF16)})


def experts(rng: np.random.Generator, fields: dict[str, Any]) -> Made:
    """Expert ids, permuted and repeated, one group inactive; expert scales, and a bias for each expert."""
    ends, ids = np.array([70, 70, 73, 140, 202], np.int32), np.array([2, 0, 0, -1, 1], np.int32)
    a, b, bias = integers(rng, 202, K), integers(rng, 3, N, K), integers(rng, 3, N)
    scales, out = np.array([0.5, 2.0, -1.0], np.float32), poisoned((202, N))
    out[73:140] = 7  # rows of the inactive group stay as they are
    want = out.copy()
    for start, end, expert in zip((0, *ends), ends, ids, strict=False):
        if expert >= 0:
            each = scales[expert] * (wide(a[start:end]) @ wide(b[expert]).T) + wide(bias[expert])
            want[start:end] = each.astype(BF16)
    given = {"a": a, "b": np.swapaxes(b, -1, -2), "ends": ends, "expert_ids": ids, "expert_scales": scales}
    return Made(warploom.grouped_matmul, {**given, "bias": bias, "config": HopperConfig(**fields), "out": out}, want)


def batched_blockwise(rng: np.random.Generator, fields: dict[str, Any]) -> Made:
    m, k = 72, 272
    a, b = integers(rng, 3, m, k, dtype=FP8), integers(rng, 3, N, k, dtype=FP8)
    of_rows, of_columns = (2.0 ** rng.integers(-2, 3, shape) for shape in ((3, 3, m), (3, 2, 3)))
    left = wide(a) * np.repeat(np.swapaxes(of_rows, 1, 2), 128, axis=2)[:, :, :k]
    right = wide(b) * np.repeat(np.repeat(of_columns, 128, axis=1), 128, axis=2)[:, :N, :k]
    given = {"a": a, "b": b, "a_scale": np.swapaxes(of_rows.astype(np.float32), 1, 2)}
    given |= {"b_scale": of_columns.astype(np.float32), "config": HopperBlockwiseConfig(**fields)}
    want = left @ np.swapaxes(right, 1, 2)
    return Made(warploom.blockwise_matmul, {**given, "out": poisoned(want.shape)}, want.astype(BF16))


def weights(rng: np.random.Generator, fields: dict[str, Any], *, tiles: tuple[int, ...]) -> Made:
    """Batches with a K extent each, in K tiles; one without any is zero."""
    starts = np.cumsum((0, *tiles)).astype(np.int32)
    a, d = integers(rng, 64 * sum(tiles), M), integers(rng, 64 * sum(tiles), N)
    parts = [np.s_[64 * first : 64 * last] for first, last in pairwise(starts)]
    want = np.stack([wide(a[part]).T @ wide(d[part]) for part in parts])
    given = {"a": a, "d": d, "starts": starts, "out": poisoned(want.shape)}
    return Made(padded_weights, given, want.astype(BF16))


def blockwise(rng: np.random.Generator, fields: dict[str, Any], *, keeps: bool = False) -> Made:
    k = 272
    a, b = integers(rng, M, k, dtype=FP8), integers(rng, N, k, dtype=FP8)
    blocks = -(-k // 128)
    of_rows, of_columns = (2.0 ** rng.integers(-2, 3, shape) for shape in ((blocks, M), (-(-N // 128), blocks)))
    want = np.zeros((M, N))
    for block in range(blocks):
        part = np.s_[:, 128 * block : 128 * block + 128]
        columns = np.repeat(of_columns[:, block], 128)[:N]
        want += (wide(a[part]) @ wide(b[part]).T) * of_rows[block][:, None] * columns
    scales = {"a_scale": of_rows.astype(np.float32).T, "b_scale": of_columns.astype(np.float32)}
    given: dict[str, Any] = {"a": a, "b": b, **scales, "config": HopperBlockwiseConfig(**fields)}
    further: dict[str, Array] = {}
    if keeps:
        given |= {"activation": "relu", "outputs": {"pre_activation": poisoned((M, N), np.float32)}}
        further["pre_activation"], want = want.astype(np.float32), np.maximum(want, 0)
    return Made(warploom.blockwise_matmul, {**given, "out": poisoned((M, N))}, want.astype(BF16), further)


_ONE = {"tile": (64, 64), "consumers": 1}
_SPLIT = {"tile": (128, 64), "num_split_k": 2}
CASES: dict[str, Case] = {
    "cooperative": Case(product, {"tile": (128, 64)}),
    "cooperative, registers moved": Case(product, {"tile": (128, 192)}),
    "ping-pong": Case(product, {"tile": (64, 64), "pingpong": True}),
    "ping-pong in clusters": Case(product, {"tile": (64, 64), "pingpong": True, "cluster_shape": (2, 1, 1)}),
    "clusters of four": Case(product, {"tile": (128, 64), "cluster_shape": (2, 2, 1)}),
    "swapped": Case(product, {**_ONE, "tile": (64, 24), "AB_swapped": True}, {"m": 33}),
    "splits in a cluster": Case(product, _SPLIT, {"n": 64}),
    "splits in memory": Case(product, {**_SPLIT, "split_in_cluster": False}, {"n": 64}),
    "splits by units": Case(
        product,
        {"tile": (128, 32), "num_split_k": 8, "split_in_cluster": False, "use_tma_store": False},
        {"m": 100, "n": 32, "k": 520},
        sms=8,
    ),
    "stream-K": Case(product, {"tile": (128, 64), "stream_k": True}, {"k": 520}, sms=3),
    "stream-K, ping-pong": Case(product, {"tile": (64, 64), "pingpong": True, "stream_k": True}, {"k": 520}, sms=3),
    "stream-K, three groups in flight": Case(
        product, {"tile": (128, 64), "stream_k": True, "mmas_in_flight": 3}, sms=3
    ),
    "more groups in flight than K tiles": Case(
        product, {"tile": (64, 64), "pingpong": True, "mmas_in_flight": 3}, {"k": 72}
    ),
    "odd sizes, stored by threads": Case(product, {"tile": (128, 64)}, {"m": 131, "n": 61, "k": 72}),
    "dependent": Case(product, {"tile": (64, 64), "pingpong": True, "dependent": True}),
    "bias, relu, residual": Case(product, {"tile": (128, 64)}, {"fused": True}),
    "residual in place": Case(product, {"tile": (128, 64), "residual_in_place": True}, {"fused": True}),
    "an auxiliary output": Case(product, {"tile": (128, 64)}, {"fused": True, "keeps": True}),
    "gated": Case(gated, {"tile": (128, 128)}),
    "gated, swapped": Case(gated, {"tile": (256, 32), "AB_swapped": True}, {"m": 33}),
    "gated, splits in a cluster": Case(gated, _SPLIT, {"m": 33}),
    "gated, splits in memory": Case(gated, {**_SPLIT, "split_in_cluster": False}, {"m": 33}, sms=16),
    "gated, swapped, splits in a cluster": Case(
        gated, {"tile": (128, 32), "consumers": 1, "AB_swapped": True, "num_split_k": 2}, {"m": 33}
    ),
    "gated, stream-K": Case(gated, {"tile": (128, 64), "stream_k": True}, {"m": 150, "k": 520}, sms=3),
    "conv2d": Case(convolution, {"tile": (128, 64)}),
    "conv2d, bias, relu, residual": Case(convolution, {"tile": (64, 64), "pingpong": True}, {"fused": True}),
    "conv2d, swapped, multicast": Case(
        convolution, {"tile": (64, 96), "consumers": 1, "AB_swapped": True, "cluster_shape": (2, 1, 1)}
    ),
    "tf32x3": Case(exact_float32),
    "fp8": Case(product, {"tile": (128, 64), "pingpong": True}, {"dtype": FP8, "k": 272}),
    "tf32": Case(product, {"tile": (128, 64)}, {"dtype": np.float32}),
    "batched": Case(product, _ONE, {"batch": (3,), "m": 70, "n": 72}),
    "grouped": Case(grouped, {"tile": (64, 64), "pingpong": True}, {"rows": (70, 0, 3, 129)}),
    "grouped, swapped": Case(grouped, {**_ONE, "tile": (64, 16), "AB_swapped": True}, {"rows": (5, 0, 16, 17)}),
    "grouped, an auxiliary output": Case(
        grouped, {"tile": (64, 64), "pingpong": True}, {"rows": (70, 0, 3, 129), "keeps": True}
    ),
    "grouped, gated": Case(gated_groups, {"tile": (64, 128), "pingpong": True}, {"rows": (70, 0, 3, 129)}),
    "grouped, expert ids": Case(experts, {"tile": (64, 64), "pingpong": True}),
    "depths of their own": Case(weights, sizes={"tiles": (0, 2, 0, 0, 3, 1, 0)}),
    "blockwise": Case(blockwise, {"tile": (128, 64)}),
    "blockwise, 64s of rows in turn": Case(blockwise, {"tile": (256, 64)}),
    "blockwise, batched": Case(batched_blockwise, {"tile": (128, 64)}),
    "blockwise, an auxiliary output": Case(blockwise, {"tile": (128, 64)}, {"keeps": True}),
}
