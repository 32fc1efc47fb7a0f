"""Bias, residual and operands: arrays that broadcast against D as in NumPy, and what an epilogue reads of them.

() is a scalar, (n,) or (1, n) a row that every row of D gets, (m, 1) a column that every column gets, (m, n) a tile;
batches stand in front. A vector is a row, also where m equals n.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np

from warploom.ops.planning.arrays import ANY_RANK, is_array
from warploom.ops.planning.violations import Faults
from warploom.structured.epilogue.epilogue import Operand
from warploom.trace.language.types import OF_NUMPY

Array = np.ndarray[Any, Any]
ADDENDS = ("bias", "up_bias", "residual")
"""In the order in which a launch takes them."""
_TOO_LARGE = 2.0**128 - 2.0**103
"""The first number that float32 rounds to an infinity."""
OUT_OF_RANGE = "float32, in which it is computed, has no such number"


@dataclass(frozen=True, slots=True)
class Result:
    """D as the caller sees it, and which of its axes are batches, rows and columns to the kernel.

    `batches` and `rows` count axes from the front; there may be no row axis, or no column axis, where a factor was a
    vector, and several row axes where they are flattened.
    """

    shape: tuple[int, ...]
    batches: int
    rows: int

    @property
    def groups(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The extents of the axes of each kind."""
        middle = self.batches + self.rows
        return self.shape[: self.batches], self.shape[self.batches : middle], self.shape[middle:]

    @property
    def batch(self) -> int:
        return prod(self.groups[0])

    @property
    def m(self) -> int:
        return prod(self.groups[1])

    @property
    def n(self) -> int:
        return prod(self.groups[2])

    @property
    def core(self) -> tuple[int, ...]:
        """The shape that the kernel sees: with an axis for batches if there are any."""
        return ((self.batch,) if self.batches else ()) + (self.m, self.n)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python's or of NumPy's."""
    if isinstance(value, np.generic):
        return isinstance(value, np.floating) or value.dtype.name in OF_NUMPY
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_in_range(number: Any) -> bool:
    """Whether float32, in which everything is computed, has a number, rounded; an infinity and a NaN it has."""
    try:
        wide = float(number)
    except OverflowError:
        return False
    return not isfinite(wide) or abs(wide) < _TOO_LARGE


def placed(argument: str, value: Any, result: Result | None, faults: Faults) -> tuple[Operand, Any] | None:
    """An addend as the epilogue knows it, and as a launch passes it; None where something is wrong, or D not known."""
    if is_number(value):
        if is_in_range(value):
            return Operand("scalar"), float(value)
        faults.add(argument, value, OUT_OF_RANGE)
        return None
    if not isinstance(value, np.ndarray):
        faults.add(argument, value, "it is neither an array nor a number")
        return None
    if not is_array(argument, value, faults, types=tuple(OF_NUMPY), axes=ANY_RANK):
        return None
    value = np.asarray(value)
    if result is None:
        return None
    shape = (1,) * (len(result.shape) - value.ndim) + value.shape
    if len(shape) != len(result.shape) or any(e not in (1, d) for e, d in zip(shape, result.shape, strict=True)):
        faults.add(argument, value, f"it does not broadcast to D, which is {result.shape}{_hint(value, result)}")
        return None
    return _grouped(value.reshape(shape), result)


def _hint(value: Array, result: Result) -> str:
    if value.shape == (result.m,) and result.rows == 1:
        return f"; a value for each row has the shape ({result.m}, 1)"
    return ""


def _grouped(value: Array, result: Result) -> tuple[Operand, Array]:
    """A value for each batch, row and column, with an axis for those of them that it varies along."""
    extents, at = list[int](), 0
    full = list[int]()
    for group in result.groups:
        own = value.shape[at : at + len(group)]
        varies = any(extent != 1 for extent in own)
        extents.append(prod(group) if varies else 1)
        full += group if varies else own
        at += len(group)
    spread = np.broadcast_to(value, full).reshape(extents)
    batch, m, n = (extent != 1 for extent in extents)
    kind = {(False, False): "scalar", (False, True): "row", (True, False): "column", (True, True): "tile"}[m, n]
    core = {"scalar": (1,), "row": extents[2:], "column": extents[1:2], "tile": extents[1:]}[kind]
    return Operand(kind), spread.reshape((*extents[:1], *core) if batch else core)
