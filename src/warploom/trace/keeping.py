"""Traces that outlive their process: a trace for a GPU is asked for where somebody keeps them, before it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from warploom.ptx.program import Traced

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


def kept(parts: tuple[object, ...], make: Callable[[], Traced], *, is_for_a_gpu: bool) -> Traced:
    """A trace; the machine's are made anew, since it needs the module itself."""
    if _keepers and (is_for_a_gpu or _for_a_gpu.get()):
        return _keepers[0](parts, make)
    return make()
