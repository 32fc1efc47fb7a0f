"""What of a call is no array and no number: the caller's functions, names and configuration, as one value with a name.

A custom op of PyTorch takes tensors, numbers and texts; the rest travels by such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import Any

from warploom.diagnostics import Diag
from warploom.ops.planning.user_functions import Authored, authored
from warploom.ops.planning.violations import Faults


@dataclass(frozen=True)
class Extras:
    """The caller's functions, the operands that they read (with whether each is a number), configuration, target, what
    is made of a pair, the names of further outputs, and the function that was called.
    """

    epilogue: Callable[..., Any] | None = None
    store: Callable[..., Any] | None = None
    operands: tuple[tuple[str, bool], ...] = ()
    config: Any = None
    target: str | None = None
    pair: Any = None
    outputs: tuple[str, ...] = ()
    function: str | None = None

    def options(self) -> dict[str, Any]:
        """As an operation takes them, without those that say nothing."""
        names = ("epilogue", "store", "config", "target", "pair")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def key(self) -> Hashable:
        """Equal for functions that do the same; None where one may change without notice."""
        names = tuple(name for name, _ in self.operands)
        functions = (self.epilogue, self.store, self.pair if callable(self.pair) else None)
        keys = [_key(each, names) for each in functions if each is not None]
        pair = None if callable(self.pair) else self.pair
        named = (self.operands, self.config, self.target, pair, self.outputs, self.function)
        return None if None in keys else (tuple(each is None for each in functions), *keys, *named)


def _key(function: Callable[..., Any], names: tuple[str, ...]) -> Authored | None:
    made = authored("epilogue", function, (*names, "out"), Faults("matmul"))
    return made if made is not None and made.key is not None else None


PLAIN = ""
"""The name of extras that say nothing."""
_CHANGING = "?"
"""What the name begins with where a function may change without notice."""
_NAMED: dict[str, Extras] = {PLAIN: Extras()}
_NAMES: dict[Hashable, str] = {Extras().key(): PLAIN}
_LASTING: set[str] = {PLAIN}
_MOST_PASSING = 1024
_numbers = count()


def name_of(extras: Extras, *, lasts: bool = True) -> str:
    """The name of extras: the same for equal ones, and a new one where a function may change without notice.

    A name that does not last is forgotten when a thousand others have been given: who runs a call needs no more.
    """
    key = extras.key()
    try:
        name = _NAMES.get(key) if key is not None else None
    except TypeError:  # a configuration that is none: binding tells
        key = name = None
    if name is None:
        name = f"{_CHANGING if key is None else ''}{next(_numbers)}"
        if key is not None:
            _NAMES[key] = name
    _NAMED[name] = extras  # an earlier one was equal, but what its functions reach may have changed since
    if lasts:
        _LASTING.add(name)
    elif len(_NAMED) > len(_LASTING) + _MOST_PASSING:
        _forget()
    return name


def _forget() -> None:
    """Drop the older half of the names that do not last."""
    passing = [name for name in list(_NAMED) if name not in _LASTING]
    gone = set(passing[: len(passing) // 2])
    for name in gone:
        del _NAMED[name]
    for key in [key for key, name in list(_NAMES.items()) if name in gone]:
        del _NAMES[key]


def may_change(name: str) -> bool:
    """Whether what a name stands for may do something else at the next call."""
    return name.startswith(_CHANGING)


def extras_by(name: str) -> Extras:
    """What a name stands for."""
    if name not in _NAMED:
        raise Diag.NOT_IN_THIS_PROCESS.error(name=name)
    return _NAMED[name]
