"""Attributes that are replaced for a while and put back."""

from __future__ import annotations

import os
from collections.abc import Callable, MutableMapping
from typing import Any

from warploom.triton.children.environment import set_variable

_ABSENT = object()


class Patches:
    """Replaced attributes, with what they were; `restore` puts all of them back in reverse order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute of a module, a class or an object; the value it had is returned."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append(lambda: delattr(owner, name) if before is _ABSENT else setattr(owner, name, before))
        setattr(owner, name, value)
        return None if before is _ABSENT else before

    def set_item(self, owner: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Replace an item of a dictionary that has one."""
        before = owner[key]
        self._undo.append(lambda: owner.__setitem__(key, before))
        owner[key] = value

    def keep_variable(self, name: str) -> None:
        """Put a variable of the environment back to what it is now."""
        before = os.environ.get(name)
        self._undo.append(lambda: set_variable(name, before))

    def later(self, function: Callable[[], None]) -> None:
        """Call a function when everything is restored."""
        self._undo.append(function)

    def restore(self) -> None:
        while self._undo:
            self._undo.pop()()
