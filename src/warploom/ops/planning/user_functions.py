"""The caller's functions in an epilogue: the values they capture, and when two of them are equal.

A kernel is traced once for equal functions: the same code with equal captured values, compared by fingerprint, so that
a lambda made anew for each call needs no new trace, and a changed number needs one. Arrays cannot be captured: they are
passed at launch, as operands.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from warploom.ops.planning.arrays import Violations
from warploom.runtime.cache.fingerprint import fingerprint

PYTHON_ERRORS = (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""The errors of a mistake in a function."""
MARK = "is_of_callers_function"
"""The attribute of an error that left a caller's function."""
_ARRAYS = ("__array_interface__", "__cuda_array_interface__", "__dlpack__")
_FIRST = 2
"""Positional parameters that every function has."""
_FORMS = {"pair": "two values: pair(gate, up)"}
"""Those parameters in words, by argument, where they are not a value and its position."""


@dataclass(frozen=True, eq=False)
class UserFunction:
    """A function as a trace calls it: with the operands that it names; equal to functions with the same fingerprint."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    key: str | None = field(default=None, compare=False)
    """Its fingerprint: code and captured values; None where something that it captures may change unnoticed."""

    def __call__(self, value: Any, at: Any, /, **operands: Any) -> Any:
        try:
            return self.function(value, at, **{name: operands[name] for name in self.names})
        except PYTHON_ERRORS as error:
            setattr(error, MARK, True)
            raise

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserFunction):
            return NotImplemented
        return self is other or (self.key is not None and (self.names, self.key) == (other.names, other.key))

    def __hash__(self) -> int:
        if self.key is None:
            raise TypeError("it captures a value that may change: it is traced at each call")
        return hash((self.names, self.key))


def user_function(
    argument: str, function: Any, operands: tuple[str, ...], violations: Violations
) -> UserFunction | None:
    """A caller's function, checked: it is callable, captures no arrays, and asks for operands that exist."""
    if not callable(function):
        violations.add(argument, function, "must be a function")
        return None
    for name in sorted({name for name, value in _captured(function) if _holds_array(value)}):
        own = name.rpartition(".")[2]
        rule = f"must not capture the array `{name}`: pass operands={{{own!r}: {name}}} and take `{own}` as a parameter"
        violations.add(argument, function, rule)
    names = _asked(argument, function, operands, violations)
    return UserFunction(function, names, fingerprint(function, lasting=False))


def _asked(
    argument: str, function: Callable[..., Any], operands: tuple[str, ...], violations: Violations
) -> tuple[str, ...]:
    """The operands that a function names."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return operands
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if len(positional) < _FIRST and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
        form = _FORMS.get(argument, "a value and its position: f(value, at, **operands)")
        violations.add(argument, function, f"must take {form}")
        return ()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        taken = {each.name for each in positional[:_FIRST] if each.kind is not each.POSITIONAL_ONLY}
        return tuple(name for name in operands if name not in taken)
    rest = [each for each in parameters if each not in positional[:_FIRST]]
    for each in rest:
        if each.name not in operands and each.default is each.empty and each.kind is not each.VAR_POSITIONAL:
            violations.add(argument, function, f"takes `{each.name}`, which must be in `operands`")
    return tuple(name for name in operands if name in {each.name for each in rest})


def _captured(function: Any, seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Names and values that a function captures, with those of its helper functions in the same module."""
    if id(function) in seen:
        return
    seen |= {id(function)}
    if isinstance(function, partial):
        yield from ((f"argument {at}", value) for at, value in enumerate(function.args))
        yield from function.keywords.items()
        yield from _captured(function.func, seen)
    elif isinstance(function, MethodType):
        yield ("self", function.__self__)
        yield from _attributes("self", function.__self__)
        yield from _captured(function.__func__, seen)
    elif isinstance(function, FunctionType):
        defaults, code = function.__defaults__ or (), function.__code__
        yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
        yield from (function.__kwdefaults__ or {}).items()
        for name, value in (*_cells(function), *_globals(function)):
            if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                yield name, value.__code__
                yield from _captured(value, seen)
            else:
                yield name, value
    elif not isinstance(function, type):
        yield from _attributes(type(function).__name__, function)


def _attributes(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a callable object."""
    yield from ((f"{name}.{attribute}", value) for attribute, value in getattr(thing, "__dict__", {}).items())


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a name that its scope has not bound yet
            continue


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in dict.fromkeys(global_names(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def global_names(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)


def _holds_array(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return any(_is_array(each) for each in (value.values() if isinstance(value, dict) else value))
    return _is_array(value)


def _is_array(value: Any) -> bool:
    return not isinstance(value, type | np.generic) and any(hasattr(value, name) for name in _ARRAYS)
