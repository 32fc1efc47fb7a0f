"""Functions of f32 against float64, within the errors that their module states."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from tests.trace.harness import elementwise

from warploom import trace
from warploom.trace.language import mathematics

SIZE = 4096
ERF = np.vectorize(math.erf)
SIGMOID = {"sigmoid": lambda x: 1 / (1 + np.exp(-x))}["sigmoid"]


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


REFERENCES = {
    "exp": (np.exp, -80, 80, lambda x, y: 2e-7 * (2 + np.abs(x)) * y),
    "exp2": (np.exp2, -100, 100, lambda x, y: 3e-7 * y),
    "log": (np.log, 1e-6, 1e6, lambda x, y: 3e-7 * (1 + np.abs(y))),
    "log2": (np.log2, 1e-6, 1e6, lambda x, y: 3e-7 * (1 + np.abs(y))),
    "reciprocal": (np.reciprocal, 0.01, 1e6, lambda x, y: 2e-7 * y),
    "sqrt": (np.sqrt, 0, 1e6, lambda x, y: 1e-7 * y),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-3, 1e6, lambda x, y: 3e-7 * y),
    "sin": (np.sin, -3, 3, lambda x, y: 1e-6),
    "cos": (np.cos, -3, 3, lambda x, y: 1e-6),
    "tanh": (np.tanh, -20, 20, lambda x, y: 1e-6),
    "fast_tanh": (np.tanh, -20, 20, lambda x, y: 6e-4),
    "sigmoid": (SIGMOID, -60, 60, lambda x, y: 2e-6 * y * (1 + np.abs(x) / 8)),
    "silu": (lambda x: x * SIGMOID(x), -60, 60, lambda x, y: 2e-6 * np.abs(y) * (1 + np.abs(x) / 8)),
    "relu": (lambda x: np.maximum(x, 0), -9, 9, lambda x, y: 0),
    "squared_relu": (lambda x: np.maximum(x, 0) ** 2, -9, 9, lambda x, y: 1e-7 * y),
    "erf": (ERF, -6, 6, lambda x, y: 1.2e-6),
    "gelu": (lambda x: 0.5 * x * (1 + ERF(x / math.sqrt(2))), -12, 12, lambda x, y: 1e-6 * (1 + np.abs(x))),
    "gelu_tanh": (gelu_tanh, -12, 12, lambda x, y: 1e-6 * (1 + np.abs(x))),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_f32(name):
    reference, low, high, tolerance = REFERENCES[name]
    x = np.random.default_rng().uniform(low, high, SIZE).astype(np.float32)
    x[:2] = low, high
    (found,) = elementwise([getattr(trace, name)], x, dtype=np.float32)
    wide = x.astype(np.float64)
    exact = reference(wide)
    error = np.abs(found - exact)
    allowed = np.broadcast_to(tolerance(wide, exact), error.shape) + 1e-37
    worst = np.argmax(error / allowed)
    assert np.all(error <= allowed), f"{name}({x[worst]}) = {found[worst]}, exactly {exact[worst]}"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_computed_in_f32(dtype):
    x = np.random.default_rng().uniform(-3, 3, 77).astype(dtype)
    (found,) = elementwise([trace.gelu], x, dtype=dtype)
    wide = x.astype(np.float64)
    exact = 0.5 * wide * (1 + ERF(wide / math.sqrt(2)))
    np.testing.assert_allclose(found.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-5)


def test_extreme_arguments():
    x = np.array([-np.inf, np.inf, np.nan, 0.0, -0.0, 1e30, -1e30], np.float32)
    found = elementwise([trace.sigmoid, trace.tanh, trace.erf, trace.exp, trace.gelu], x, dtype=np.float32)
    np.testing.assert_array_equal(found[0], [0, 1, np.nan, 0.5, 0.5, 1, 0])
    np.testing.assert_array_equal(found[1], [-1, 1, np.nan, 0, 0, 1, -1])
    np.testing.assert_array_equal(found[2][[0, 1, 2, 5, 6]], [-1, 1, np.nan, 1, -1])
    assert np.all(np.abs(found[2][3:5]) < 1e-6)
    np.testing.assert_array_equal(found[3], [0, np.inf, np.nan, 1, 1, np.inf, 0])
    assert found[4][1] == np.inf
    assert found[4][5] == np.float32(1e30)


def test_fast_activations_of_half_their_argument():
    """Within what eleven bits of tanh leave, for every bf16 there is but those that are not finite."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    halves = halves[np.isfinite(halves) & (np.abs(halves) < 1e18)]
    names = ("sigmoid", "silu", "gelu_tanh")
    found = elementwise([getattr(mathematics, f"fast_{name}_of_half") for name in names], halves, dtype=np.float32)
    x = 2 * halves.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = (SIGMOID(x), x * SIGMOID(x), gelu_tanh(x))
    for name, got, want in zip(names, found, exact, strict=True):
        size = 1 if name == "sigmoid" else np.abs(halves)
        assert np.all(np.abs(got - want) <= 2.0**-11 * size + 1e-6 * np.abs(want) + 1e-30), name
