"""Traces that outlive their process: a trace for a GPU is asked for where somebody keeps them, before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from warploom.host.arrays import is_array, place_of
from warploom.host.program import Traced
from warploom.host.tensor_map import TensorMap

Keeper = Callable[[tuple[object, ...], Callable[[], Traced]], Traced]
"""Of all that a trace depends on, and what makes it: the trace, as somebody made it before or as it is made now."""

_keepers: list[Keeper] = []
_for_a_gpu: ContextVar[bool] = ContextVar("for_a_gpu", default=False)


def keep_traces(keeper: Keeper) -> None:
    """Let traces for a GPU be kept; packages that trace does not know have the means."""
    _keepers[:] = [keeper]


@contextmanager
def for_a_gpu() -> Iterator[None]:
    """Let what is bound here be for a GPU, whatever its arrays are: some only stand for those of the launch."""
    token = _for_a_gpu.set(True)
    try:
        yield
    finally:
        _for_a_gpu.reset(token)


def is_for_a_gpu(arguments: Iterable[Any]) -> bool:
    """Whether what is bound to arguments is for a GPU."""
    return _for_a_gpu.get() or any(map(_is_on_gpu, arguments))


def _is_on_gpu(argument: Any) -> bool:
    array = argument.array if isinstance(argument, TensorMap) else argument
    return is_array(array) and place_of(array).startswith("cuda")


def kept(parts: tuple[object, ...], make: Callable[[], Traced]) -> Traced:
    """A trace for a GPU."""
    return _keepers[0](parts, make) if _keepers else make()
