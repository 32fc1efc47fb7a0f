"""The gradients of gate and up from that of a gated function's result, element by element, in one pass over memory.

With h = activation(gate)·up, the gradient of gate is that of h times up times the activation's gradient, and the
gradient of up that of h times the activation. Both are computed in float32 from the same loads, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from warploom.structured.epilogue.epilogue import PAIRS
from warploom.trace import Tensor, cta_index, kernel, s32, select, thread, when
from warploom.trace.language import mathematics
from warploom.trace.language.operations import fma
from warploom.trace.language.values import Value, valued

THREADS = 256
ELEMENTS = 8
"""Elements of a thread: one 16-byte load of each array."""

Graded = tuple[Value, Value]
"""An activation, and its gradient at the same place."""


def _sigmoid(x: Value) -> Graded:
    made = mathematics.sigmoid(x)
    return made, made * (1.0 - made)


def _silu(x: Value) -> Graded:
    sigmoid = mathematics.sigmoid(x)
    made = x * sigmoid
    return made, fma(made, 1.0 - sigmoid, sigmoid)


def _relu(x: Value) -> Graded:
    return mathematics.relu(x), select(x > 0.0, valued(1.0, "f32"), valued(0.0, "f32"))


def _gelu(x: Value) -> Graded:
    below = fma(mathematics.erf(x * math.sqrt(0.5)), 0.5, 0.5)
    density = mathematics.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return x * below, fma(x, density, below)


def _gelu_tanh(x: Value) -> Graded:
    slope, cube = math.sqrt(2 / math.pi), mathematics.GELU_CUBE
    squared = x * x
    tanh = mathematics.tanh(x * fma(squared, cube * slope, slope))
    below = fma(tanh, 0.5, 0.5)
    rate = fma(squared, 3 * cube * slope, slope)
    return x * below, fma(x * 0.5 * (1.0 - tanh * tanh), rate, below)


GRADED: Mapping[str, Callable[[Value], Graded]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "sigmoid": _sigmoid,
}
assert {*GRADED} == {*PAIRS.values()}


@kernel(target="sm_90a", block=THREADS)
def gated_gradient(
    of_hidden: Tensor, gate: Tensor, up: Tensor, of_gate: Tensor, of_up: Tensor, vectors: s32, *, activation: str
) -> None:
    """Compute both gradients of arrays with one axis; `vectors` is their length in runs of `ELEMENTS`."""
    at = (cta_index() * THREADS + thread()).to(s32)
    with when(at < vectors):
        loaded = (each.load(at * ELEMENTS, count=ELEMENTS) for each in (of_hidden, gate, up))
        made: list[Graded] = []
        for gradient, of_pair, factor in zip(*loaded, strict=True):
            value, slope = GRADED[activation](of_pair.to("f32"))
            wide = gradient.to("f32")
            made.append((wide * factor.to("f32") * slope, wide * value))
        for results, out in zip(zip(*made, strict=True), (of_gate, of_up), strict=True):
            out.store([each.to(out.dtype) for each in results], at * ELEMENTS)
