"""A feed-forward layer of experts in MXFP8, in two kernels: SwiGLU with its result quantised, then the way down.

Tokens are sorted by expert; a token that no expert takes is in a group with the id -1. The first kernel multiplies by
gate and up weights, combines them, and stores MXFP8 with scales in the order that the second kernel reads.

Run: python examples/mixture_of_experts.py
"""

from __future__ import annotations

import numpy as np

import warploom as wl
from warploom.ops import Quantised

TOKENS, WIDTH, HIDDEN, EXPERTS = 40, 128, 64, 3


def quantised(rng: np.random.Generator, *shape: int) -> Quantised:
    """Random weights or tokens in MXFP8."""
    return wl.quantise_mxfp8(rng.standard_normal(shape).astype(np.float32))


def reference(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    """The layer of one expert, in float64 but for the MXFP8 in the middle."""
    a, b = x @ gate.T, x @ up.T
    hidden = wl.quantise_mxfp8((a / (1 + np.exp(-a)) * b).astype(np.float32))
    return hidden.dequantised().astype(np.float64) @ down.T


def main() -> None:
    rng = np.random.default_rng(0)
    x = quantised(rng, TOKENS, WIDTH)
    gate, up = quantised(rng, EXPERTS, HIDDEN, WIDTH), quantised(rng, EXPERTS, HIDDEN, WIDTH)
    down = quantised(rng, EXPERTS, WIDTH, HIDDEN)
    ends, ids = (
        np.array([9, 20, 23, TOKENS]),
        np.array([2, 0, -1, 1]),
    )  # the three tokens of the third group are dropped

    hidden = wl.gated_grouped_block_scaled_matmul(
        x.values, gate.values, up.values, x.scales, gate.scales, up.scales, ends,
        expert_ids=ids, pair="swiglu", quantise_to="mxfp8",
    )  # fmt: skip
    y = wl.grouped_block_scaled_matmul(
        hidden.values, down.values, hidden.scales, down.scales, ends, expert_ids=ids, out_dtype=np.float32
    )

    start = 0
    for end, expert in zip(ends, ids, strict=True):
        if expert >= 0:
            weights = (each.dequantised()[expert].astype(np.float64) for each in (gate, up, down))
            wanted = reference(x.dequantised()[start:end].astype(np.float64), *weights)
            error = np.abs(y[start:end] - wanted).max() / np.abs(wanted).max()
            print(f"expert {expert}: {end - start} tokens, relative error {error:.4f}")
            assert error < 0.05  # another rounding of an activation may be another element of MXFP8
        else:
            assert not y[start:end].any()
        start = end


if __name__ == "__main__":
    main()
