"""NumPy ufuncs, PyTorch functions and Python's `math` on device values: the device's version, or an error naming it.

`np.exp(x)` reaches a value through `__array_ufunc__`, `torch.relu(x)` through `__torch_function__`; both are looked up
by name in one table. `math.exp(x)` asks for a float, which only the device has.
"""

from __future__ import annotations

import linecache
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from warploom.diagnostics import Diag
from warploom.trace.builder import here
from warploom.trace.language import mathematics as device
from warploom.trace.language.operations import abs_, fma, max_, min_
from warploom.trace.language.types import TYPES, Number
from warploom.trace.language.values import Value, compute, literal, select, unified, valued

_MOST_FACTORS = 64
_DEFAULTS: dict[str, Any] = {"inplace": False, "out": None}
"""Options that libraries pass on although they ask for nothing."""
_MATH_CALL = re.compile(r"\b(?:math|m)\.(\w+)\s*\(")


def power(base: Value | Number, exponent: Value | Number) -> Value:
    """Raise to a power: whole exponents by multiplication, 0.5 and -0.5 by roots, others by 2^(y·log2 x).

    The last has a result for positive bases only; for others it is NaN.
    """
    number = exponent.literal if isinstance(exponent, Value) else exponent
    if not isinstance(base, Value):
        assert isinstance(exponent, Value)
        if base <= 0:
            raise Diag.TYPE_MISMATCH.error(here(), what=f"{base} to a power that only the device knows")
        return device.exp2(exponent * math.log2(base))
    whole = TYPES[base.type].kind in ("signed", "unsigned")
    if number is None:
        if whole:
            raise Diag.TYPE_MISMATCH.error(here(), what="an integer to a power that only the device knows")
        assert isinstance(exponent, Value)
        left, right = unified("pow", base, exponent)
        return device.exp2(device.log2(left) * right)
    if float(number).is_integer() and abs(number) <= _MOST_FACTORS and (number >= 0 or not whole):
        product = _whole_power(base, abs(int(number)))
        return product if number >= 0 else 1.0 / product
    if whole:
        raise Diag.TYPE_MISMATCH.error(here(), what=f"a .{base.type} to the power {number}; convert it to f32 first")
    if number == 0.5:
        return device.sqrt(base)
    if number == -0.5:
        return device.rsqrt(base)
    return device.exp2(device.log2(base) * number)


def _whole_power(base: Value, exponent: int) -> Value:
    """Multiply by repeated squaring, which rounds as often as there are multiplications."""
    result: Value | None = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return literal(1, base.type) if result is None else result.get()


def _with_nan(family: str) -> Callable[[Any, Any], Value]:
    """Return NumPy's and PyTorch's minimum or maximum, which is NaN where a side is; `min_` takes the number."""

    def chosen(a: Any, b: Any) -> Value:
        first, second = (a, b) if isinstance(a, Value) else (b, a)
        left, right = unified(family, first, valued(second, first.type))
        if left.type in ("f16", "bf16", "f32"):
            return compute(f"{family}.NaN.{left.type}", left.type, left, right)
        return min_(left, right) if family == "min" else max_(left, right)

    return chosen


def _without_nan(family: str) -> Callable[[Any, Any], Value]:
    """Return NumPy's `fmin` or `fmax`."""
    function = min_ if family == "min" else max_
    return lambda a, b: function(a, b) if isinstance(a, Value) else function(b, a)


def _clip(x: Value, low: Any = None, high: Any = None, **bounds: Any) -> Value:
    low = bounds.get("min", bounds.get("a_min", low))
    high = bounds.get("max", bounds.get("a_max", high))
    result = x if low is None else max_(x, low)
    return result if high is None else min_(result, high)


def _gelu(x: Value, approximate: str = "none") -> Value:
    return device.gelu_tanh(x) if approximate == "tanh" else device.gelu(x)


def _where(condition: Value, then: Any, other: Any) -> Value:
    return select(condition, then, other)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(device, name)
        for name in ("cos", "erf", "exp", "exp2", "log", "log2", "reciprocal", "relu", "rsqrt", "sigmoid", "silu")
    },
    **{name: getattr(device, name) for name in ("sin", "sqrt", "tanh")},
    **dict.fromkeys(("abs", "absolute", "fabs"), abs_),
    **{name: lambda a: -a for name in ("neg", "negative")},
    **{name: lambda a, b: a + b for name in ("add",)},
    **{name: lambda a, b: a - b for name in ("sub", "subtract")},
    **{name: lambda a, b: a * b for name in ("mul", "multiply")},
    **{name: lambda a, b: a / b for name in ("div", "divide", "true_divide")},
    **{name: lambda a, b: a // b for name in ("floor_divide",)},
    **{name: lambda a, b: a % b for name in ("remainder", "mod")},
    **{name: lambda a, b: a < b for name in ("less", "lt")},
    **{name: lambda a, b: a <= b for name in ("less_equal", "le")},
    **{name: lambda a, b: a > b for name in ("greater", "gt")},
    **{name: lambda a, b: a >= b for name in ("greater_equal", "ge")},
    **{name: lambda a, b: a == b for name in ("equal", "eq")},
    **{name: lambda a, b: a != b for name in ("not_equal", "ne")},
    **{name: lambda a, b: a & b for name in ("bitwise_and", "logical_and")},
    **{name: lambda a, b: a | b for name in ("bitwise_or", "logical_or")},
    **{name: lambda a, b: a ^ b for name in ("bitwise_xor", "logical_xor")},
    **{name: lambda a: ~a for name in ("bitwise_not", "invert", "logical_not")},
    **{name: lambda a, b: a << b for name in ("left_shift",)},
    **{name: lambda a, b: a >> b for name in ("right_shift",)},
    "pow": power,
    "power": power,
    "float_power": power,
    "square": lambda a: a * a,
    "positive": lambda a: a,
    "isnan": lambda a: a != a,  # noqa: PLR0124 - NaN is the number that differs from itself
    "minimum": _with_nan("min"),
    "maximum": _with_nan("max"),
    "fmin": _without_nan("min"),
    "fmax": _without_nan("max"),
    "clip": _clip,
    "clamp": _clip,
    "where": _where,
    "gelu": _gelu,
    "expm1": lambda a: device.exp(a) - 1.0,
    "log1p": lambda a: device.log(a + 1.0),
    "softplus": lambda a: device.log(device.exp(a) + 1.0),
    "fma": fma,
}
"""Functions by the names that NumPy and PyTorch give them."""


def applied(library: str, name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """Call the device's version of a library's function."""
    full = f"{library}.{name}"
    if name not in FUNCTIONS:
        known = sorted({"abs_", "min_", "max_", "select", *(each for each in FUNCTIONS if hasattr(device, each))})
        raise Diag.NOT_ON_DEVICE.error(here(), function=full, use=f"one of {', '.join(known)} of warploom.trace")
    settled = [_number(full, each) for each in arguments]
    asked = {option: value for option, value in options.items() if value is not _DEFAULTS.get(option, _DEFAULTS)}
    try:
        return FUNCTIONS[name](*settled, **asked)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # raised inside the function, not by the call
        use = f"`{name}` of warploom.trace, without {', '.join(asked) or 'other arguments'}"
        raise Diag.NOT_ON_DEVICE.error(here(), function=full, use=use) from None


def _number(full: str, argument: Any) -> Any:
    if isinstance(argument, np.generic) or (isinstance(argument, np.ndarray) and argument.ndim == 0):
        return argument.item()
    if isinstance(argument, np.ndarray):
        use = "arrays as parameters of the kernel, and their elements by index"
        raise Diag.NOT_ON_DEVICE.error(here(), function=f"{full} with a NumPy array", use=use)
    return argument


def as_float() -> NoReturn:
    """Raise the error for `float(x)` and for functions of `math`, by the name of the one on the author's line."""
    loc = here()
    called = [name for name in _MATH_CALL.findall(linecache.getline(loc.file, loc.line)) if hasattr(math, name)]
    name = called[0] if called else ""
    function = f"math.{name}" if name else "float() or a function of `math`"
    same = {"fabs": "abs", "pow": "**"}.get(name, name)
    use = f"`{same}` of warploom.trace" if hasattr(device, same) else "`abs(x)`" if same == "abs" else "`x ** y`"
    if not name or (not hasattr(device, name) and name == same):
        use = "functions of warploom.trace such as exp, log, sqrt, tanh"
    raise Diag.NOT_ON_DEVICE.error(loc, function=function, use=use)
