"""The functions of instructions on arrays of lanes and on Python integers, made from their semantics.

A few forms have no semantics in the vector language and are written for NumPy only (`machine/numerics`): double
precision that the host cannot round in one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from warploom.hardware.dtypes import PACKED_TYPES, storage_of
from warploom.machine import numerics
from warploom.machine.numerics.bits import per_element
from warploom.machine.semantics.array_code import array_code
from warploom.machine.semantics.array_text import Call, Leaf, short_text
from warploom.machine.semantics.forms import BY_ELEMENT, meaning
from warploom.machine.semantics.graph import GraphOps
from warploom.machine.semantics.scalar_code import scalar_code, scalar_expression
from warploom.machine.semantics.vectors import UnsupportedError

Function = Callable[..., Any]
Signature = Mapping[str, Any]
Types = tuple[str, ...]
Literals = tuple[int | None, ...]
_Modifiers = tuple[tuple[str, Any], ...]


def _type_of(name: str) -> str:
    """The type of the vector language that holds a PTX type; immediates have 32 bits."""
    if name == "pred":
        return "i1"
    return f"i{8 * storage_of(name).itemsize}" if name else "i32"


@lru_cache(maxsize=256)
def _graph(
    family: str, modifiers: _Modifiers, types: Types, literals: Literals
) -> tuple[GraphOps, tuple[int, ...], list[str]]:
    """The graph of a form, its results, and the names of the operands that are not literals; one that is too long to be
    written where it is used becomes a function next.
    """
    signature = dict(modifiers)
    pair = signature.pop("pair", None)
    function = meaning(family, signature)
    if function is None:
        raise UnsupportedError(family)
    ops, names, operands = GraphOps(), list[str](), []
    for at, (type_, literal) in enumerate(zip(types, literals, strict=True)):
        if literal is None:
            names.append(f"x{at}")
            operands.append(ops.operand(names[-1], _type_of(type_)))
        else:
            operands.append(ops.constant(_type_of(type_), literal))
    results = tuple(value.ref for value in function(*operands))
    if family == "setp" and not pair and signature["type"] not in PACKED_TYPES:
        results = results[:1]
    return ops, results, names


@lru_cache(maxsize=4096)
def _array_function(family: str, modifiers: _Modifiers, types: Types, literals: Literals) -> Function:
    signature = dict(modifiers)
    packed = PACKED_TYPES.get(signature.get("type", ""))
    try:
        if packed is None or family not in BY_ELEMENT:
            return array_code(*_graph(family, modifiers, types, literals), family)
        # A view of all elements at once is faster than two halves of registers.
        of_elements = tuple(sorted({**signature, "type": packed.element.name}.items()))
        graph = _graph(family, of_elements, (packed.element.name,) * len(types), literals)
        return per_element(array_code(*graph, family), packed.name)
    except UnsupportedError:
        return _with_literals(numerics.array_function(family, signature), types, literals)


def _with_literals(function: Function, types: Types, literals: Literals) -> Function:
    """A function that takes its literals as arrays."""
    if not any(literal is not None for literal in literals):
        return function

    def whole(*operands: Any) -> Any:
        given, shape = iter(operands), operands[0].shape if operands else (1,)
        return function(*[
            next(given) if literal is None else np.full(shape, literal, storage_of(type_))
            for type_, literal in zip(types, literals, strict=True)
        ])  # fmt: skip

    return whole


def array_function(family: str, signature: Signature, types: Types, literals: Literals = ()) -> Function:
    """The function of an instruction on arrays of lanes, or the error that it has none.

    `types` are the PTX types of its operands, in order, empty for an immediate. Operands are arrays in the storage type
    of their PTX types (`storage_of`), bool for predicates; one whose literal is given is not passed. The result is a
    new array, or a pair where the instruction has two results (carries; `setp` with `pair` or of packed types). Call it
    inside `numpy.errstate(all="ignore")`, entered once per run rather than per call.
    """
    return _array_function(family, tuple(sorted(signature.items())), types, literals or (None,) * len(types))


@lru_cache(maxsize=4096)
def _scalar_function(family: str, modifiers: _Modifiers, types: Types, literals: Literals) -> Function:
    try:
        return scalar_code(*_graph(family, modifiers, types, literals), family)
    except UnsupportedError:
        return _on_one_lane(_array_function(family, modifiers, types, literals), types, literals)


def scalar_function(family: str, signature: Signature, types: Types, literals: Literals = ()) -> Function:
    """The function of an instruction on Python integers within their widths, and bools for predicates.

    Forms with floats run as arrays of one lane.
    """
    return _scalar_function(family, tuple(sorted(signature.items())), types, literals or (None,) * len(types))


def scalar_text(
    family: str, signature: Signature, types: Types, literals: Literals, operands: Sequence[str]
) -> str | None:
    """An expression for a short form of integers, with the texts of the operands that are not literals; else None."""
    try:
        ops, results, names = _graph(family, tuple(sorted(signature.items())), types, literals)
    except UnsupportedError:
        return None
    return scalar_expression(ops, results[0], dict(zip(names, operands, strict=True))) if len(results) == 1 else None


@lru_cache(maxsize=4096)
def _short(family: str, modifiers: _Modifiers, types: Types, literals: Literals) -> Leaf | Call | None:
    try:
        ops, results, _ = _graph(family, modifiers, types, literals)
    except UnsupportedError:
        return None
    return short_text(ops, results[0]) if len(results) == 1 else None


def short(family: str, signature: Signature, types: Types, literals: Literals) -> Leaf | Call | None:
    """The calls of NumPy that a short form is (`semantics/array_text.py`), with its literals if it is short by them;
    else None.
    """
    modifiers = tuple(sorted(signature.items()))
    plain = tuple(None if type_ else literal for type_, literal in zip(types, literals, strict=True))
    found = _short(family, modifiers, types, plain)
    return _short(family, modifiers, types, literals) if found is None and literals != plain else found


def _on_one_lane(function: Function, types: Types, literals: Literals) -> Function:
    dtypes = [
        np.dtype(bool) if name == "pred" else storage_of(name)
        for name, literal in zip(types, literals, strict=True)
        if literal is None
    ]

    @lru_cache(maxsize=1 << 8)  # the same for every CTA, most often
    def whole(*values: int) -> Any:
        with np.errstate(all="ignore"):
            found = function(*[np.array([value], dtype) for value, dtype in zip(values, dtypes, strict=True)])
        return tuple(part[0].item() for part in found) if isinstance(found, tuple) else found[0].item()

    return whole
