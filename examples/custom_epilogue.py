"""A custom epilogue: a Python function of the accumulator is traced into the GEMM kernel.

One layer of a gated network, y = silu(gate) · (x·wᵀ + bias), scaled per token and clipped; then the same GEMM stored in
another layout by a function that does its own store. The kernels run on the CPU emulator and are compared with NumPy.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.trace import clamp, silu

TOKENS, OUTPUTS, INPUTS, HEADS = 100, 96, 72, 4
LIMIT = 3.0

rng = np.random.default_rng()
x, w, bias, gate = (
    rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    for shape in ((TOKENS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,), (TOKENS, OUTPUTS))
)
scale = rng.uniform(0.5, 2.0, (TOKENS, 1)).astype(np.float32)


def gated(acc, at, gate, scale):
    """Compute one element: `acc` is float32, `at` its position, operands come by name; numbers like LIMIT may be captured."""
    return clamp(acc * silu(gate) * scale, -LIMIT, LIMIT)


def main() -> None:
    # Operands broadcast as in NumPy: (m, n) is a matrix, (m, 1) a value per row, (n,) a value per column.
    y = wl.linear(x, w, bias=bias, operands={"gate": gate, "scale": scale}, epilogue=gated, out_dtype=np.float32)

    xs, ws, bs, gs = (each.astype(np.float64) for each in (x, w, bias, gate))
    expected = np.clip((xs @ ws.T + bs) * gs / (1 + np.exp(-gs)) * scale, -LIMIT, LIMIT)
    error = np.abs(y - expected).max()
    print(f"gated layer {y.shape}: largest error {error:.1e}")
    assert error < 1e-4

    # A store function replaces the store: here heads become the leading axis.
    def by_heads(value, at, out):
        width = OUTPUTS // HEADS
        out[at.column // width, at.row, at.column % width] = value

    heads = np.full((HEADS, TOKENS, OUTPUTS // HEADS), np.nan, np.float32)
    wl.linear(x, w, store=by_heads, out=heads)
    assert np.allclose(heads.transpose(1, 0, 2).reshape(TOKENS, OUTPUTS), xs @ ws.T, atol=1e-4)
    print(f"stored by heads {heads.shape}: right")

    # Arrays must be passed as operands; capturing one is an error.
    try:
        wl.linear(x, w, epilogue=lambda acc, at: acc * scale)
    except wl.LaunchError as error:
        print(error)

    text = wl.ptx_of(wl.linear, x, w, operands={"gate": gate, "scale": scale}, epilogue=gated)
    print(f"one kernel: {len(text.splitlines()):,} lines of PTX")


if __name__ == "__main__":
    main()
