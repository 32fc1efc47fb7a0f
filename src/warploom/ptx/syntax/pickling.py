"""Fast pickling of small objects: a program on disk has tens of thousands of frozen dataclasses."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def quickly_pickled(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots a state that does not ask for its fields each time, as the standard library's
    does.
    """
    names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
    setters = tuple(cls.__dict__[name].__set__ for name in names)
    getter = attrgetter(*names)  # of a single name it returns the value alone

    def __getstate__(self: T) -> tuple[Any, ...]:  # noqa: N807  (pickle's name)
        return getter(self) if len(names) > 1 else (getter(self),)

    def __setstate__(self: T, state: tuple[Any, ...]) -> None:  # noqa: N807  (pickle's name)
        for set_, value in zip(setters, state, strict=True):
            set_(self, value)

    cls.__getstate__, cls.__setstate__ = __getstate__, __setstate__  # type: ignore[assignment, attr-defined, method-assign]
    return cls


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the garbage collector while thousands of objects are made that all stay."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            _promote()
            gc.enable()


_MANY, _MOST = 1 << 10, 1 << 20
_promoted = [0]
"""Objects that were promoted since the last collection."""


def _promote() -> None:
    """Move many new objects to the oldest generation, as the collector does with those that it has found to
    stay: it would follow all their references for nothing, and after a hundred such pauses those of the whole process.
    After many objects it has to, because garbage may have been promoted with them.
    """
    made = gc.get_count()[0]
    if made < _MANY or gc.get_freeze_count():  # the program that uses this library freezes objects itself
        return
    _promoted[0] += made
    if _promoted[0] > _MOST:
        _promoted[0] = 0
        gc.collect()
        return
    gc.freeze()
    gc.unfreeze()
