"""Traces that outlive their process: a trace for a GPU is looked up in the registered store before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from warploom.host.arrays import is_array, place_of
from warploom.host.program import Traced
from warploom.host.tensor_map import TensorMap

Keeper = Callable[[tuple[object, ...], Callable[[], Traced]], Traced]
"""A function of all that a trace depends on and of the function that makes it; returns a stored or a new trace."""

_keepers: list[Keeper] = []


def keep_traces(keeper: Keeper) -> None:
    """Register the store for GPU traces; it is in a package that `trace` does not import."""
    _keepers[:] = [keeper]


def is_for_a_gpu(arguments: Iterable[Any]) -> bool:
    """Return whether a launch with these arguments is for a GPU."""
    return any(map(_is_on_gpu, arguments))


def _is_on_gpu(argument: Any) -> bool:
    array = argument.array if isinstance(argument, TensorMap) else argument
    return is_array(array) and place_of(array).startswith("cuda")


def kept(parts: tuple[object, ...], make: Callable[[], Traced]) -> Traced:
    """A trace for a GPU."""
    return _keepers[0](parts, make) if _keepers else make()
