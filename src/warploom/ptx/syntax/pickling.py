"""Fast pickling of small objects: a program on disk has tens of thousands of frozen dataclasses."""

from __future__ import annotations

import gc
from dataclasses import fields
from operator import attrgetter
from typing import Any, Self, TypeVar

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


class Pause:
    """A pause of the garbage collector, which may end before its block does."""

    __slots__ = ("_holds",)

    def __enter__(self) -> Self:
        self._holds = gc.isenabled()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let the collector go on, if it was on before."""
        if self._holds:
            self._holds = False
            gc.enable()


def without_collection() -> Pause:
    """Pause the garbage collector while thousands of objects are made that all stay."""
    return Pause()
