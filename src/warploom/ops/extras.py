"""What of a call is no array and no number: the caller's functions, names and configuration, as one value with a name.

A custom op of PyTorch takes tensors, numbers and texts; the rest travels by such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from warploom.ops.authored import Authored, authored
from warploom.ops.faults import Faults


@dataclass(frozen=True)
class Extras:
    """The caller's functions, the operands that they read (with whether each is a number), configuration, target."""

    epilogue: Callable[..., Any] | None = None
    store: Callable[..., Any] | None = None
    operands: tuple[tuple[str, bool], ...] = ()
    config: Any = None
    target: str | None = None

    def options(self) -> dict[str, Any]:
        """As an operation takes them, without those that say nothing."""
        named = {"epilogue": self.epilogue, "store": self.store, "config": self.config, "target": self.target}
        return {name: value for name, value in named.items() if value is not None}

    def key(self) -> Hashable:
        """Equal for functions that do the same; of one that may change, its identity."""
        names = tuple(name for name, _ in self.operands)
        functions = tuple(_key(each, names) for each in (self.epilogue, self.store))
        return (*functions, self.operands, self.config, self.target)


def _key(function: Callable[..., Any] | None, names: tuple[str, ...]) -> Hashable:
    if function is None:
        return None
    made = authored("epilogue", function, (*names, "out"), Faults("matmul"))
    return made if isinstance(made, Authored) and made.key is not None else id(function)


PLAIN = ""
"""The name of extras that say nothing."""
_NAMED: dict[str, Extras] = {PLAIN: Extras()}
_NAMES: dict[Hashable, str] = {Extras().key(): PLAIN}


def name_of(extras: Extras) -> str:
    """The name of extras; the same for equal ones, for as long as the process lives."""
    key = extras.key()
    if key not in _NAMES:
        name = f"#{len(_NAMED)}"
        _NAMED[name], _NAMES[key] = extras, name
    return _NAMES[key]


def extras_by(name: str) -> Extras:
    """What a name stands for."""
    return _NAMED[name]
