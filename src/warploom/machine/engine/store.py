"""The place where compiled kernels are kept between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Store(Protocol):
    """A cache of bytes by key, such as `runtime/cache/disk.py`."""

    def get(self, key: tuple[str | int, ...]) -> bytes | None: ...

    def put(self, key: tuple[str | int, ...], value: bytes) -> None: ...


_stores: list[Callable[[], Store]] = []


def keep_in(store: Callable[[], Store]) -> None:
    """Keep compiled kernels in a cache; without one every process compiles those that it uses."""
    _stores[:] = [store]


def store() -> Store | None:
    """The cache, if there is one."""
    return _stores[0]() if _stores else None
