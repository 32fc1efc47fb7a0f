"""References in float64, and the tolerance of a kernel."""

from __future__ import annotations

import inspect
from math import erf

import ml_dtypes
import numpy as np

from warploom.ops.planning.arrays import Violations
from warploom.ops.planning.planner import plan

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E8M0, E2M1 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn
RNG = np.random.default_rng()
"""Fresh inputs in every run."""

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "squared_relu": lambda x: np.maximum(x, 0) ** 2,
}


def integers(*shape, dtype=BF16, largest=3):
    """Small integers: every dot product is exact."""
    return RNG.integers(-largest, largest + 1, shape).astype(dtype)


def reals(*shape, dtype=BF16, scale=1.0):
    return (RNG.standard_normal(shape) * scale).astype(dtype)


def exact(array):
    return np.asarray(array).astype(np.float64)


def rounded(values, dtype):
    """Integers in float64, rounded to another type."""
    return exact(values.astype(np.float32).astype(dtype))


def poisoned(shape, dtype):
    return np.full(shape, np.nan, dtype)


def tolerance(dtype, k, size):
    """Half a unit in the result's last place, plus the error of summing k terms in float32."""
    digits = ml_dtypes.finfo(dtype).nmant
    return size * 2.0 ** -(digits + 1) + (k + 16) * 2.0**-22 * max(size.max(initial=1.0), 1.0)


def close(got, wanted, k):
    """Check that every element is within the tolerance of its type and K."""
    error = np.abs(exact(got) - wanted)
    return bool((error <= tolerance(got.dtype, k, np.abs(wanted))).all())


def plan_on(gpu, operation, *given, **options):
    """Plan a call on host arrays for a GPU with this many SMs."""
    arguments = inspect.signature(operation).bind(*given, **options).arguments
    violations = Violations(operation.__name__)
    return plan(operation.request(arguments, violations, gpu=gpu), violations)
