"""Fast reading of pickled objects: a program on disk has tens of thousands of small frozen dataclasses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def quickly_read(cls: type[T]) -> type[T]:
    """Give a frozen dataclass with slots a `__setstate__` that does not ask for its fields each time, as the standard
    library's does; the state is the same.
    """
    setters = tuple(cls.__dict__[each.name].__set__ for each in fields(cls))  # type: ignore[arg-type]

    def __setstate__(self: T, state: list[Any]) -> None:  # noqa: N807  (pickle's name)
        for set_, value in zip(setters, state, strict=True):
            set_(self, value)

    cls.__setstate__ = __setstate__  # type: ignore[attr-defined]
    return cls
