"""What is wrong with a call, collected: one error tells it all, and nothing has been run or written before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from warploom.diagnostics import Diag
from warploom.host.arrays import HOST


def described(value: Any) -> str:
    """An argument in a few words: an array by dtype and shape, strides that leave gaps, and a device."""
    if getattr(value, "is_nested", False):
        return f"{value.dtype} nested"  # of its shape PyTorch may not tell
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple) and not isinstance(value, np.generic):
        return f"{dtype} {tuple(shape)}{_strides(value)}{_place(value)}"
    if isinstance(value, type):
        return value.__name__
    if type(value).__name__ == "dtype":  # PyTorch's
        return str(value)
    return f"{value!r:.40}" if isinstance(value, int | float | str | tuple | None) else f"a {type(value).__name__}"


def _strides(value: Any) -> str:
    """The strides where elements do not lie one after another, in the units of the array's own library."""
    if isinstance(value, np.ndarray):
        return "" if value.flags.c_contiguous else f", strides {value.strides}"
    if hasattr(value, "is_contiguous") and str(value.layout) == "torch.strided":
        return "" if value.is_contiguous() else f", strides {tuple(value.stride())}"
    return ""


def _place(value: Any) -> str:
    device = str(getattr(value, "device", HOST))
    return "" if device == HOST else f" on {device}"


_CALLED: ContextVar[str | None] = ContextVar("called", default=None)
"""The function that the caller knows of, where another does its work."""


@contextmanager
def called(function: str | None) -> Iterator[None]:
    """Tell faults as those of this function; None leaves them to the one that finds them."""
    token = _CALLED.set(function)
    try:
        yield
    finally:
        _CALLED.reset(token)


class Faults:
    """The faults of one call of a function."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._notes: dict[str, list[str]] = {}

    def add(self, argument: str, value: Any, sentence: str) -> None:
        """Say what is wrong with an argument; its value is told with it."""
        self._notes.setdefault(argument, []).append(f"{argument}, {described(value)}: {sentence}")

    def __len__(self) -> int:
        return sum(map(len, self._notes.values()))

    @property
    def notes(self) -> list[str]:
        """What was found, argument by argument."""
        return [note for each in self._notes.values() for note in each]

    def check(self) -> None:
        """Raise what was found, if anything."""
        if self._notes:
            notes = self.notes
            names = ", ".join(f"`{name}`" for name in self._notes)
            function = _CALLED.get() or self._function
            raise Diag.BAD_ARGUMENTS.error(notes=notes, function=function, count=len(notes), what=names)
