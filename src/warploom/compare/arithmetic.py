"""Operators, element-wise functions, products and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from warploom.compare.table import (
    CHEAP,
    INTEGER,
    REAL,
    SLOW,
    TRANSCENDENTAL,
    Array,
    Compute,
    Result,
    Type,
    arithmetic,
    axis_of,
    function,
    join,
    number,
    real,
    relation,
)

REAL_PRODUCT, INTEGER_PRODUCT = 0.2, 3.0  # nanoseconds per multiply-add
_ROOT_HALF = math.sqrt(0.5)
_GELU_SLOPE, _GELU_CUBE = math.sqrt(2 / math.pi), 0.044715  # of the usual approximation by tanh


def _erf(x: Array) -> Array:
    return np.fromiter(map(math.erf, x.flat), np.float64, x.size).reshape(x.shape)


BINARY: dict[str, tuple[Result, Callable[[Array, Array], Any]]] = {
    "+": (arithmetic, np.add),
    "-": (arithmetic, np.subtract),
    "*": (arithmetic, np.multiply),
    "/": (real, np.true_divide),
    "//": (arithmetic, np.floor_divide),
    "%": (arithmetic, np.mod),
    "maximum": (arithmetic, np.maximum),
    "minimum": (arithmetic, np.minimum),
    "<": (relation, np.less),
    "<=": (relation, np.less_equal),
    ">": (relation, np.greater),
    ">=": (relation, np.greater_equal),
    "==": (relation, np.equal),
    "!=": (relation, np.not_equal),
}

UNARY: dict[str, tuple[Result, float, Callable[[Array], Any]]] = {
    "negative": (arithmetic, CHEAP, np.negative),
    "abs": (arithmetic, CHEAP, np.abs),
    "relu": (arithmetic, CHEAP, lambda x: np.maximum(x, x.dtype.type(0))),
    "floor": (real, CHEAP, np.floor),
    "ceil": (real, CHEAP, np.ceil),
    "round": (real, CHEAP, np.rint),
    "exp": (real, TRANSCENDENTAL, np.exp),
    "exp2": (real, TRANSCENDENTAL, np.exp2),
    "log": (real, TRANSCENDENTAL, np.log),
    "log2": (real, TRANSCENDENTAL, np.log2),
    "sqrt": (real, TRANSCENDENTAL, np.sqrt),
    "rsqrt": (real, TRANSCENDENTAL, lambda x: 1 / np.sqrt(x)),
    "sin": (real, TRANSCENDENTAL, np.sin),
    "cos": (real, TRANSCENDENTAL, np.cos),
    "tanh": (real, TRANSCENDENTAL, np.tanh),
    "erf": (real, SLOW, _erf),
    "sigmoid": (real, TRANSCENDENTAL, lambda x: 1 / (1 + np.exp(-x))),
    "silu": (real, TRANSCENDENTAL, lambda x: x / (1 + np.exp(-x))),
    "gelu": (real, SLOW, lambda x: x / 2 * (1 + _erf(x * _ROOT_HALF))),
    "gelu_tanh": (real, TRANSCENDENTAL, lambda x: x / 2 * (1 + np.tanh(_GELU_SLOPE * (x + _GELU_CUBE * x * x * x)))),
}


def _reduced(x: Type, axis: int | None = None) -> tuple[int, ...]:
    """The shape without the axis, or without all axes if none is named."""
    if axis is None:
        return ()
    axis = axis_of(x, axis)
    return x.shape[:axis] + x.shape[axis + 1 :]


def _reduced_elements(x: Type, axis: int | None = None) -> tuple[int, ...]:
    """As `_reduced`, for a non-empty array."""
    if 0 in x.shape:
        raise ValueError(f"the shape {x.shape} has no elements")
    return _reduced(x, axis)


REDUCTIONS: dict[str, tuple[Result, Callable[..., Any]]] = {
    "sum": (lambda x, axis=None: Type(_reduced(x, axis), join(x)), np.sum),
    "max": (lambda x, axis=None: Type(_reduced_elements(x, axis), join(x)), np.max),
    "min": (lambda x, axis=None: Type(_reduced_elements(x, axis), join(x)), np.min),
    "mean": (lambda x, axis=None: Type(_reduced_elements(x, axis), REAL), np.mean),
    "argmax": (lambda x, axis=None: Type(_reduced_elements(x, axis), INTEGER), np.argmax),
    "argmin": (lambda x, axis=None: Type(_reduced_elements(x, axis), INTEGER), np.argmin),
}


def _of_two(apply: Callable[[Array, Array], Any]) -> Compute:
    def compute(x: Array, y: Array) -> Array:
        return np.asarray(apply(number(x), number(y)))

    return compute


def _of_one(apply: Callable[[Array], Any], result: Result) -> Compute:
    def compute(x: Array) -> Array:
        return np.asarray(apply(x.astype(np.float64) if result is real else number(x)))

    return compute


def _of_many(apply: Callable[..., Any]) -> Compute:
    def compute(x: Array, axis: int | None = None) -> Array:
        return np.asarray(apply(number(x), axis=axis))

    return compute


for _name, (_result, _apply_two) in BINARY.items():
    function(_name, _result)(_of_two(_apply_two))
for _name, (_result, _cost, _apply_one) in UNARY.items():
    function(_name, _result, _cost)(_of_one(_apply_one, _result))
for _name, (_result, _apply_many) in REDUCTIONS.items():
    function(_name, _result)(_of_many(_apply_many))


def _product(x: Type, y: Type) -> Type:
    if not x.shape or not y.shape:
        raise ValueError("`@` needs an axis on both sides")
    if x.shape[-1] != y.shape[-2:][0]:
        raise ValueError(f"the shapes {x.shape} and {y.shape} do not match for `@`")
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return Type((*batch, *x.shape[-2:-1], *y.shape[-1:][: len(y.shape) - 1]), join(x, y))


def _product_cost(x: Type, y: Type) -> float:
    result = _product(x, y)
    return max(result.size, 1) * x.shape[-1] * (REAL_PRODUCT if result.number == REAL else INTEGER_PRODUCT)


@function("@", _product, _product_cost)
def matmul(x: Array, y: Array) -> Array:
    return np.asarray(np.matmul(number(x), number(y)))
