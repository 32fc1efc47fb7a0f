"""The functions of comparisons: for each its implementation, the type of its result and its cost.

A result's type is known before anything is computed, so that a file that requests too much is rejected at once.
Numbers are float64; integer buffers count in int64 with wrap-around, as the hardware does in its own width.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Compute = Callable[..., Any]
Result = Callable[..., "Type"]

BOOLEAN, INTEGER, REAL = "boolean", "integer", "real"
_ORDER = (BOOLEAN, INTEGER, REAL)

# Nanoseconds per element on one core, rounded up; only the order of magnitude matters.
CHEAP, TRANSCENDENTAL, CONVERSION, SLOW = 3.0, 20.0, 60.0, 200.0


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a value, known before it is computed."""

    shape: tuple[int, ...]
    number: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Function:
    """One function: its implementation on arrays, and the result's type and the nanoseconds as functions of types."""

    compute: Compute
    result: Result
    nanoseconds: Callable[..., float]
    parameters: tuple[inspect.Parameter, ...]


FUNCTIONS: dict[str, Function] = {}

ARRAY, COUNT, WORD = "a number or an array", "an integer literal", "a quoted type name"


def wants(parameter: inspect.Parameter) -> str:
    """The kind of argument that a parameter takes, from its annotation."""
    return {int: COUNT, int | None: COUNT, str: WORD}.get(parameter.annotation, ARRAY)


def function(name: str, result: Result, cost: float | Callable[..., float] = CHEAP) -> Callable[[Compute], Compute]:
    """Register a function; the annotations of its parameters (Array, int, str) are the kinds of its arguments."""

    def per_element(*arguments: Any) -> float:
        assert isinstance(cost, float)
        sizes = [argument.size for argument in arguments if isinstance(argument, Type)]
        return cost * max(*sizes, result(*arguments).size, 1)

    def enter(compute: Compute) -> Compute:
        parameters = tuple(inspect.signature(compute, eval_str=True).parameters.values())
        FUNCTIONS[name] = Function(compute, result, cost if callable(cost) else per_element, parameters)
        return compute

    return enter


def join(*types: Type) -> str:
    """The kind of number that can represent all of them; booleans count as 0 and 1."""
    widest = max((t.number for t in types), key=_ORDER.index)
    return INTEGER if widest == BOOLEAN else widest


def arithmetic(*types: Type) -> Type:
    """The result of an element-wise operation."""
    return Type(np.broadcast_shapes(*(t.shape for t in types)), join(*types))


def real(*types: Type) -> Type:
    """The result of an element-wise operation whose result is never an integer."""
    return Type(arithmetic(*types).shape, REAL)


def relation(*types: Type) -> Type:
    """The result of an element-wise comparison."""
    return Type(arithmetic(*types).shape, BOOLEAN)


def number(x: Array) -> Array:
    """Booleans as 0 and 1, other values unchanged."""
    return x.astype(np.int64) if x.dtype == np.bool_ else x


def axis_of(x: Type, axis: int) -> int:
    """The axis counted from the front."""
    if not -len(x.shape) <= axis < len(x.shape):
        raise ValueError(f"there is no axis {axis} in the shape {x.shape}")
    return axis % len(x.shape)
