"""The functions and arrays that translated source calls by name, each made from a recipe that can be stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from warploom.machine.numerics.bits import settle_lanes
from warploom.machine.numerics.products import has_nan
from warploom.machine.semantics.functions import Literals, Types, array_function, scalar_function
from warploom.machine.tensor.register_rows import Rows, as_rows

Recipe = tuple[Hashable, ...]
"""The name of a maker, and what it takes."""


def first_lane(row: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None) -> int | bool:
    """The value of the first lane that executes."""
    value: int | bool = row[0 if mask is None else int(mask.argmax())].item()
    return value


_FIXED: dict[str, Any] = {
    "settle_nan": settle_lanes, "has_nan": has_nan, "Rows": Rows, "as_rows": as_rows, "first_lane": first_lane
}  # fmt: skip


def on_arrays(family: str, signature: Mapping[str, Any], types: Types, literals: Literals = ()) -> Recipe:
    """The recipe of an instruction's function on arrays of lanes."""
    return ("array", family, tuple(sorted(signature.items())), types, literals)


def on_scalars(family: str, signature: Mapping[str, Any], types: Types, literals: Literals = ()) -> Recipe:
    """The recipe of an instruction's function on Python integers."""
    return ("scalar", family, tuple(sorted(signature.items())), types, literals)


def fixed(name: str) -> Recipe:
    """The recipe of a function that all programs share."""
    return ("fixed", name)


def row_numbers(numbers: tuple[int, ...]) -> Recipe:
    """The recipe of an index of rows."""
    return ("rows", numbers)


def column(values: tuple[int, ...], bits: int, dtype: str) -> Recipe:
    """The recipe of a literal for each row, [row, 1], its bits read as a type."""
    return ("column", values, bits, dtype)


_MAKERS: dict[str, Callable[..., Any]] = {
    "array": lambda family, signature, types, literals: array_function(family, dict(signature), types, literals),
    "scalar": lambda family, signature, types, literals: scalar_function(family, dict(signature), types, literals),
    "fixed": _FIXED.__getitem__,
    "rows": lambda numbers: np.array(numbers, np.intp),
    "column": lambda values, bits, dtype: np.array(values, f"u{bits // 8}").view(dtype)[:, None],
}


def made(recipe: Recipe) -> Any:
    """The function or array that a recipe makes."""
    maker, *given = recipe
    return _MAKERS[str(maker)](*given)
