"""Host addresses of NumPy arrays, for native code."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_word = ctypes.c_size_t.from_address
_HEAD = object.__basicsize__


def _documented(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _field(array: Array) -> int:
    """The first field of an array object in C, which is its data: an eighth of the time of the documented way."""
    return _word(id(array) + _HEAD).value


def _agree() -> bool:
    """True if this NumPy and this Python keep the address where it is expected."""
    try:
        probes = [np.zeros(count, np.uint8)[count // 2 :] for count in (1, 9, 1 << 12)]
        return all(_field(probe) == _documented(probe) for probe in probes)
    except (TypeError, ValueError):
        return False


address_of = _field if _agree() else _documented
"""The address of an array's first element."""
