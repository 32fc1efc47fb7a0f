"""Cases: the data that are tried where the ends of groups steer a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.checker.recurrence.variants import Variants
from warploom.host.launch import Launch
from warploom.ptx.analysis.operand_registers import registers_of
from warploom.ptx.syntax.model import Register

Ends = npt.NDArray[Any]

CASES: dict[str, Callable[[Ends], Ends]] = {
    "all groups empty": np.zeros_like,
    "one row in the first group, the others empty": np.ones_like,
    "all rows in the first group, the others empty": lambda ends: np.full_like(ends, ends[-1]),
    "all rows in the last group, the others empty": lambda ends: np.where(_index(ends) < len(ends) - 1, 0, ends[-1]),
    "every second group empty": lambda ends: ends[_index(ends) // 2 * 2],
    "one row in each group": lambda ends: np.minimum(_index(ends) + 1, ends[-1]),
}
"""Ends of groups, made from those of the launch."""


def cases_of(variants: Variants) -> dict[str, Launch]:
    """The launch with other ends of groups, for every array that steers it and does not decrease."""
    found: dict[str, Launch] = {}
    for name in _arrays(variants):
        at = variants.params[name]
        ends = variants.launch.args[at]
        if ends.ndim == 1 and ends.size and ends[0] >= 0 and bool((np.diff(ends) >= 0).all()):
            for case, make in CASES.items():
                args = list(variants.launch.args)
                args[at] = make(ends).astype(ends.dtype)
                found[f"{name}: {case}"] = replace(variants.launch, args=tuple(args))
    return found


def _arrays(variants: Variants) -> list[str]:
    """The arrays of integers from which steering values are loaded."""
    expressions = []
    for op in variants.steering.data_loads:
        for slot in op.form.slots:
            operand = op.operands[slot.name]
            if slot.kind == "address":
                expressions += [variants.loops.expression(Register(each), op) for each in registers_of(operand)]
    return variants.arrays_of(expressions)


def _index(ends: Ends) -> Ends:
    return np.arange(len(ends), dtype=ends.dtype)
