"""`gated_gradient`: both gradients against exact gradients, at the ends of arrays, on both targets."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from warploom import launch
from warploom.kernels.gated_gradient import ELEMENTS, GRADED, THREADS, gated_gradient

SLOPE, CUBE = math.sqrt(2 / math.pi), 0.044715


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(SLOPE * (x + CUBE * x**3)))


ACTIVATIONS = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x * math.sqrt(0.5))),
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": sigmoid,
}


def slope_of(function, x):
    """The slope by central differences, whose error is below 1e-9 here."""
    step = 1e-5
    return (function(x + step) - function(x - step)) / (2 * step)


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("activation", GRADED)
def test_gradients_are_right_up_to_one_rounding(activation, dtype, target):
    rng = np.random.default_rng()
    count = ELEMENTS * int(rng.choice([1, 7, THREADS, THREADS + 1]))
    gradient, gate, up = (rng.normal(0, 2, count).astype(dtype) for _ in range(3))
    gate = np.where(np.abs(gate.astype(np.float64)) < 2e-5, dtype(1), gate)  # relu has none at zero
    room = np.full((2, count + ELEMENTS), np.nan, dtype)
    of_gate, of_up = (each[:count] for each in room)
    vectors = count // ELEMENTS
    grid = -(-vectors // THREADS)
    kernel = gated_gradient.for_target(target)
    launch(kernel.bind(gradient, gate, up, of_gate, of_up, vectors, grid=grid, activation=activation))
    exact, x = ACTIVATIONS[activation], gate.astype(np.float64)
    wide = gradient.astype(np.float64)
    rounding = float(ml_dtypes.finfo(dtype).eps)
    for found, want in (
        (of_gate, wide * up.astype(np.float64) * slope_of(exact, x)),
        (of_up, wide * exact(x)),
    ):
        assert (np.abs(found.astype(np.float64) - want) <= rounding * np.abs(want) + 1e-5 * (1 + np.abs(wide))).all()
    assert np.isnan(room[:, count:].astype(np.float32)).all(), "nothing after the end is written"
