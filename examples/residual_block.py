"""A residual block of a convolutional network in two kernels: y = relu(conv(relu(conv(x) + b1)) + b2 + x).

Each convolution is one launch of a GEMM kernel whose A tiles are loaded with im2col tensor maps: the im2col matrix is
never built. Bias, activation and the addition of x are in the same kernel. The kernels run on the CPU emulator and are
compared with NumPy; with CUDA tensors (NCHW in channels_last) the same calls run on the GPU.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import warploom as wl
from warploom.trace import relu

IMAGES, EXTENT, CHANNELS = 2, 9, 40

rng = np.random.default_rng()
x = rng.integers(-2, 3, (IMAGES, EXTENT, EXTENT, CHANNELS)).astype(ml_dtypes.bfloat16)  # NHWC
w1, w2 = rng.integers(-1, 2, (2, CHANNELS, 3, 3, CHANNELS)).astype(ml_dtypes.bfloat16)  # KRSC
b1, b2 = rng.integers(-2, 3, (2, CHANNELS)).astype(ml_dtypes.bfloat16)


def convolved(images: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Convolve 3 by 3 with padding 1, tap by tap in float64."""
    padded = np.pad(images.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = np.ndindex(3, 3)
    return sum(padded[:, r : r + EXTENT, s : s + EXTENT] @ filters[:, r, s].astype(np.float64).T for r, s in taps)


def main() -> None:
    hidden = wl.conv2d(x, w1, padding=1, bias=b1, activation="relu", out_dtype=np.float16)
    wanted = np.maximum(convolved(x, w1) + b1.astype(np.float64), 0)
    print(f"hidden {hidden.shape}: {np.count_nonzero(hidden != wanted)} wrong elements")
    assert (hidden == wanted).all()

    # `residual=x` would be added after the activation; a function of the accumulator adds it before.
    y = wl.conv2d(
        hidden,
        w2.astype(np.float16),
        padding=1,
        bias=b2,
        epilogue=lambda acc, at, skip: relu(acc + skip),
        operands={"skip": x},
        out_dtype=np.float32,
    )
    wanted = np.maximum(convolved(hidden, w2) + b2.astype(np.float64) + x.astype(np.float64), 0)
    print(f"y {y.shape}: {np.count_nonzero(y != wanted)} wrong elements")
    assert (y == wanted).all()


if __name__ == "__main__":
    main()
