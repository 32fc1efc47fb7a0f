"""Fast pickling of small objects: a program on disk has tens of thousands of frozen dataclasses."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
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
def without_collection() -> Iterator[Callable[[], None]]:
    """Pause the garbage collector while thousands of objects are made that all stay; the function that it gives ends
    the pause early.
    """
    paused = gc.isenabled()
    gc.disable()

    def end() -> None:
        nonlocal paused
        if paused:
            paused = False
            gc.enable()

    try:
        yield end
    finally:
        end()
