"""A SwiGLU feed-forward block in two kernels: y = w_down·(silu(w_gate·x) * (w_up·x)), with what training needs.

The two GEMMs of the first kernel share x, and their accumulators are combined in registers: only the gated result is
stored, unless gate and up are requested. The kernels run on the CPU emulator and are compared with NumPy; with CUDA
tensors the same calls run on the GPU.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.trace import clamp, sigmoid

TOKENS, WIDTH, HIDDEN = 70, 64, 104
LIMIT, STEEPNESS = 2.0, 1.702

rng = np.random.default_rng()
x = rng.standard_normal((TOKENS, WIDTH)).astype(ml_dtypes.bfloat16)
w_in = (rng.standard_normal((2 * HIDDEN, WIDTH)) / 8).astype(ml_dtypes.bfloat16)  # rows of gate, then rows of up
w_down = (rng.standard_normal((WIDTH, HIDDEN)) / 8).astype(ml_dtypes.bfloat16)


def clipped(gate, up):
    """Combine gate and up: here both are clamped first."""
    gate, up = clamp(gate, -LIMIT, LIMIT), clamp(up, -LIMIT, LIMIT)
    return gate * sigmoid(gate * STEEPNESS) * (up + 1)


def main() -> None:
    gate, up = np.split(x.astype(np.float64) @ w_in.astype(np.float64).T, 2, axis=1)

    # Weights may be views: halves of one matrix here, or w_in[0::2] and w_in[1::2] for interleaved rows.
    hidden = wl.gated_linear(x, *np.split(w_in, 2), pair="swiglu")
    y = wl.linear(hidden, w_down, residual=x)
    wanted = gate / (1 + np.exp(-gate)) * up
    error = np.abs(hidden.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    print(f"hidden {hidden.shape}, then y {y.shape}: largest error {error:.1e} of the largest value")
    assert error < 2**-7

    # Training needs gate and up: the same kernel stores them too, each in the dtype of its array.
    kept = {name: np.full((TOKENS, HIDDEN), np.nan, np.float32) for name in ("gate", "up")}
    wl.gated_linear(x, *np.split(w_in, 2), outputs=kept)
    assert np.allclose(kept["gate"], gate, atol=1e-4)
    assert np.allclose(kept["up"], up, atol=1e-4)
    print("gate and up, from the same kernel: right")

    mine = wl.gated_linear(x, *np.split(w_in, 2), pair=clipped, out_dtype=np.float32)
    bounded = np.clip(gate, -LIMIT, LIMIT)
    wanted = bounded / (1 + np.exp(-STEEPNESS * bounded)) * (np.clip(up, -LIMIT, LIMIT) + 1)
    assert np.allclose(mine, wanted, atol=1e-4)
    print("a custom pair function: right")

    # A plain layer stores the input of its activation in the same way.
    before = np.full((TOKENS, HIDDEN), np.nan, ml_dtypes.bfloat16)
    wl.linear(x, w_in[:HIDDEN], activation="gelu_tanh", outputs={"pre_activation": before})
    assert np.allclose(before.astype(np.float64), gate, atol=2**-7 * np.abs(gate).max())
    print("the value before an activation: right")


if __name__ == "__main__":
    main()
