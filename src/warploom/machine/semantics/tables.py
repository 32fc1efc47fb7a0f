"""Tables that instruction semantics look up: those of the transcendental functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.numerics import transcendental

Array = npt.NDArray[Any]


def _part_of_circle(part: int) -> Callable[[], Array]:
    return lambda: transcendental.circle().parts[part]


TABLES: dict[str, Callable[[], Array]] = {
    "powers": lambda: transcendental.powers().values,
    "powers.less_one": transcendental.powers_less_one,
    "powers.words": lambda: transcendental.powers().words,
    "logarithms": lambda: transcendental.logarithms().logarithms,
    "logarithms.inverses": lambda: transcendental.logarithms().inverses,
    **{f"circle.{part}": _part_of_circle(part) for part in range(4)},
}
"""Elements of 64 bits, by name; each is made at first use."""

ORDER = {name: number for number, name in enumerate(TABLES)}
ADDRESSES = np.zeros(len(TABLES), np.uint64)
"""The address of every table that `need` has been called for, in order; native code reads it."""


@cache
def need(name: str) -> Array:
    """Make a table and enter its address; it lives as long as the process."""
    table = np.ascontiguousarray(TABLES[name]())
    ADDRESSES[ORDER[name]] = table.ctypes.data
    return table
