"""Measured shapes, M × N × K with B as N × K: a fixed list, odd ones, and random ones."""

from __future__ import annotations

import math
import random

Shape = tuple[int, int, int]

LISTED: tuple[Shape, ...] = (
    (8192, 8192, 8192),
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (1024, 1024, 1024),
    (4096, 14336, 4096),
    (4096, 4096, 14336),
    (512, 4096, 16384),
    (128, 4096, 4096),
    (64, 14336, 4096),
    (16, 4096, 14336),
    (256, 256, 65536),
)
ODD: tuple[Shape, ...] = (
    (1, 14336, 4096),
    (7, 4096, 4096),
    (33, 5120, 13824),
    (100, 32000, 4096),
    (129, 11008, 4096),
    (777, 1333, 2048),
    (1000, 1000, 1000),
    (1024, 1024, 1021),
    (2047, 2049, 2056),
    (3000, 12288, 3072),
    (4096, 4097, 4096),
    (5000, 5000, 5000),
    (8191, 4096, 1024),
)
"""Sizes that no tile divides, some with rows that are not TMA-compatible."""
SMALL: tuple[Shape, ...] = ((130, 136, 200), (16, 200, 72), (33, 61, 50))
"""For the emulator."""
RANDOM_SHAPES, MOST_ROWS, MOST_OTHERS, LEAST_OTHERS, STEP = 60, 8192, 16384, 64, 8


def random_shapes(seed: int, count: int) -> list[Shape]:
    """Draw log-uniform sizes, N and K in steps of 8."""
    rng = random.Random(seed)

    def size(least: int, most: int) -> int:
        return round(math.exp(rng.uniform(math.log(least), math.log(most))))

    def step(least: int, most: int) -> int:
        return STEP * size(least // STEP, most // STEP)

    return [
        (size(1, MOST_ROWS), step(LEAST_OTHERS, MOST_OTHERS), step(LEAST_OTHERS, MOST_OTHERS)) for _ in range(count)
    ]


def parsed(text: str) -> list[Shape]:
    """Parse `MxNxK,…`."""
    return [(int(m), int(n), int(k)) for m, n, k in (each.split("x") for each in text.split(","))]


def label_of(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def flops_of(shape: Shape) -> float:
    m, n, k = shape
    return 2.0 * m * n * k
