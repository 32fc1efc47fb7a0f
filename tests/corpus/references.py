"""References that more than one case needs, in plain NumPy."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from .case import Array, Arrays

Reference = Callable[[Arrays], Arrays]


def product(*, a_transposed: bool = False, b_transposed: bool = False) -> Reference:
    """c = a @ b in float64, which is exact for the small integers that the cases draw."""

    def expected(arrays: Arrays) -> Arrays:
        a = arrays["a"].astype(np.float64)
        b = arrays["b"].astype(np.float64)
        a = a.swapaxes(-1, -2) if a_transposed else a
        b = b.swapaxes(-1, -2) if b_transposed else b
        return {"c": np.asarray(a @ b)}

    return expected


def softmax(x: Array) -> Array:
    """The softmax of each row, in float64."""
    x = x.astype(np.float64)
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def attention(q: Array, k: Array, v: Array, scale: float, *, causal: bool = False) -> Array:
    """softmax(q kᵀ · scale) v in float64; the kernels use powers of two, so `scale` already holds log2(e)."""
    scores = q.astype(np.float64) @ k.astype(np.float64).T * (scale * np.log(2.0))
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape, bool)), scores, -np.inf)
    return np.asarray(softmax(scores) @ v.astype(np.float64))


def philox(seed: int, counter: Array, rounds: int = 10) -> Array:
    """The first word of Philox 4×32 for each counter, as Triton's `tl.randint` draws it."""
    mask = np.uint64(0xFFFFFFFF)
    c0 = counter.astype(np.uint64)
    c1, c2, c3 = (np.zeros_like(c0) for _ in range(3))
    k0, k1 = np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)
    for _ in range(rounds):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (right >> np.uint64(32)) ^ c1 ^ k0, (left >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = right & mask, left & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return np.asarray(c0.astype(np.uint32).view(np.int32))


def uniform(bits: Array) -> Array:
    """Signed 32-bit words as numbers in [0, 1), in float32."""
    folded = np.where(bits < 0, -bits - 1, bits)
    return np.asarray(folded.astype(np.float32) * np.float32(4.6566127342e-10))


def unpack_fp4(packed: Array) -> Array:
    """Bytes as pairs of e2m1 numbers, the low half first, along the last axis."""
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    return np.asarray(nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64))


def scale_e8m0(scale: Array) -> Array:
    """Bytes as powers of two."""
    return np.asarray(np.exp2(scale.astype(np.float64) - 127.0))


def scaled(values: Array, scales: Array, group: int) -> Array:
    """Each group of `group` neighbours along the last axis times its scale."""
    return np.asarray(values.astype(np.float64) * np.repeat(scales, group, -1))
