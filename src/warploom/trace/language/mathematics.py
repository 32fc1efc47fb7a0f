"""Functions of f32 values over the GPU's approximations of 2^x, log2 x, 1/x and similar functions.

16-bit floats are computed in f32 and rounded back. Errors, measured against float64 by tests/trace: `exp` is within
2e-7·(2 + |x|) of its result, `sigmoid` and `silu` within 2e-6 of their results, `tanh` and `erf` within 1e-6
absolutely, and `gelu` within 1e-6·(1 + |x|).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from warploom.diagnostics import Diag
from warploom.trace.builder import here
from warploom.trace.language.operations import abs_, copysign, fma, max_
from warploom.trace.language.values import Value, compute

_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_SCALE = 0.3275911
"""Abramowitz and Stegun 7.1.26: 1 - P(t)·exp(-x²) with t = 1/(1 + 0.3275911·x), within 1.5e-7 for x ≥ 0."""
GELU_CUBE = 0.044715


def _in_f32(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """A function of f32 that 16-bit floats go through, too."""

    @functools.wraps(function)
    def wrapped(x: Value) -> Value:
        if x.type not in ("f16", "bf16", "f32"):
            raise Diag.TYPE_MISMATCH.error(here(), what=f"`{function.__name__}` of .{x.type}")
        return function(x.to("f32")).to(x.type)

    return wrapped


@_in_f32
def exp2(x: Value) -> Value:
    """2ˣ by `ex2.approx`."""
    return compute("ex2.approx.f32", "f32", x)


@_in_f32
def exp(x: Value) -> Value:
    """eˣ by `ex2.approx`."""
    return exp2(x * math.log2(math.e))


@_in_f32
def log2(x: Value) -> Value:
    """Logarithm to base 2 by `lg2.approx`."""
    return compute("lg2.approx.f32", "f32", x)


@_in_f32
def log(x: Value) -> Value:
    """Natural logarithm by `lg2.approx`."""
    return log2(x) * math.log(2)


@_in_f32
def reciprocal(x: Value) -> Value:
    """1 / x by `rcp.approx`."""
    return compute("rcp.approx.f32", "f32", x)


@_in_f32
def sqrt(x: Value) -> Value:
    """Square root, correctly rounded."""
    return compute("sqrt.rn.f32", "f32", x)


@_in_f32
def rsqrt(x: Value) -> Value:
    """1 / √x by `rsqrt.approx`."""
    return compute("rsqrt.approx.f32", "f32", x)


@_in_f32
def sin(x: Value) -> Value:
    """Accurate near zero only: the instruction does not reduce its argument."""
    return compute("sin.approx.f32", "f32", x)


@_in_f32
def cos(x: Value) -> Value:
    """Accurate near zero only: the instruction does not reduce its argument."""
    return compute("cos.approx.f32", "f32", x)


@_in_f32
def fast_tanh(x: Value) -> Value:
    """One instruction, accurate to about eleven bits."""
    return compute("tanh.approx.f32", "f32", x)


@_in_f32
def tanh(x: Value) -> Value:
    """Hyperbolic tangent by `ex2.approx` and `rcp.approx`."""
    magnitude = 1.0 - 2.0 * reciprocal(1.0 + exp2(abs_(x) * (2 * math.log2(math.e))))
    return copysign(magnitude, x)


@_in_f32
def sigmoid(x: Value) -> Value:
    """1 / (1 + e⁻ˣ)."""
    return reciprocal(1.0 + exp2(x * -math.log2(math.e)))


@_in_f32
def silu(x: Value) -> Value:
    """SiLU (swish): x · sigmoid(x)."""
    return x * sigmoid(x)


@_in_f32
def relu(x: Value) -> Value:
    """max(x, 0)."""
    return max_(x, 0.0)


@_in_f32
def squared_relu(x: Value) -> Value:
    """max(x, 0)²."""
    positive = relu(x)
    return positive * positive


@_in_f32
def erf(x: Value) -> Value:
    """Error function, by a polynomial approximation."""
    size = abs_(x)
    t = reciprocal(fma(size, _ERF_SCALE, 1.0))
    polynomial = t * _ERF[-1]
    for coefficient in reversed(_ERF[:-1]):
        polynomial = (polynomial + coefficient) * t
    return copysign(1.0 - polynomial * exp(-(size * size)), x)


@_in_f32
def gelu(x: Value) -> Value:
    """x·Φ(x) with the error function."""
    half = x * 0.5
    return fma(half, erf(x * math.sqrt(0.5)), half)


@_in_f32
def gelu_tanh(x: Value) -> Value:
    """The approximation of gelu by tanh that many models were trained with."""
    half = x * 0.5
    inner = x * fma(x * x, GELU_CUBE * math.sqrt(2 / math.pi), math.sqrt(2 / math.pi))
    return fma(half, tanh(inner), half)


@_in_f32
def fast_sigmoid_of_half(half: Value) -> Value:
    """sigmoid(2·half) by one instruction, accurate to about eleven bits."""
    return fma(fast_tanh(half), 0.5, 0.5)


@_in_f32
def fast_silu_of_half(half: Value) -> Value:
    """silu(2·half), accurate to about eleven bits."""
    return fma(half, fast_tanh(half), half)


@_in_f32
def fast_gelu_tanh_of_half(half: Value) -> Value:
    """gelu_tanh(2·half), accurate to about eleven bits."""
    slope = 2 * math.sqrt(2 / math.pi)
    inner = half * fma(half * half, 4 * GELU_CUBE * slope, slope)
    return fma(half, fast_tanh(inner), half)
