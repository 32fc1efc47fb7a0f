"""Sums that do not depend on the order of their terms, for `explore`.

Atomics add floating-point numbers in the order of a schedule, and every order rounds differently. A run with exact sums
keeps the exact total of each cell next to its rounded value. Two such runs that agree differ in rounding alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import copysign, inf, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.ptx.syntax.model import Instruction

Array = npt.NDArray[Any]
_ONE = 1 << 1074
"""1, in units of the least subnormal number of f64."""


def _units(value: float) -> int:
    above, below = value.as_integer_ratio()
    return above * (_ONE // below)


def _nearest(total: int) -> float:
    try:
        return total / _ONE
    except OverflowError:
        return copysign(inf, total)


@dataclass(slots=True)
class ExactSums:
    """The exact totals of cells by host address, with the bits that each was rounded to."""

    instructions: dict[int, Instruction] = field(default_factory=dict)
    """Those that have added, by identity."""
    _totals: dict[int, tuple[bytes, int]] = field(default_factory=dict)

    def of(self, instruction: Instruction) -> ExactSums:
        """The same sums, for additions by an instruction."""
        self.instructions[id(instruction)] = instruction
        return self

    def add(self, places: Array, current: Array, operand: Array) -> tuple[Array, Array]:
        """Add to cells in order, where places may repeat: the values before and after each addition.

        A cell with other bits than it was rounded to was stored to since, and its total begins anew.
        """
        before, after = current.copy(), current.copy()
        present: dict[int, Any] = {}
        for at, place in enumerate(places.tolist()):
            old = present.get(place, current[at])
            before[at] = old
            after[at] = self._added(place, old, operand[at])
            present[place] = after[at]
        return before, after

    def _added(self, place: int, old: Any, term: Any) -> Any:
        if not (isfinite(old) and isfinite(term)):
            self._totals.pop(place, None)
            return old + term
        bits, total = self._totals.get(place, (b"", 0))
        total = (total if bits == old.tobytes() else _units(float(old))) + _units(float(term))
        new = old.dtype.type(_nearest(total))
        self._totals[place] = new.tobytes(), total
        return new


def is_exact_sum(operation: str, dtype: npt.DTypeLike) -> bool:
    """True for a change of cells whose rounding depends on the order: the addition of floating-point numbers."""
    return operation == "add" and np.dtype(dtype).kind not in "iub"


__all__ = ["ExactSums", "is_exact_sum"]
