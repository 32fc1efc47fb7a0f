"""Count what one fused `linear` call executes between the call and its `Launch`, for NumPy arrays and PyTorch tensors.

    python bench/front_door_path.py [--list]

A module counts when at least one of its functions runs (`sys.setprofile`), not when it is imported. Counted are the
modules of the front door, `warploom.ops`, `warploom.torch` and `warploom.nn`; `--list` names them, and the modules of
every other package on the way. Value classes are the dataclasses and named tuples of the front door and of `kernels`
that are instantiated on the way; a request class is one of these that holds operands, that is arrays or tensors.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np

import warploom
from warploom.host.launch import Launch

_FRONT = ("warploom.ops", "warploom.torch", "warploom.nn")
_COUNTED = (*_FRONT, "warploom.kernels")
_ANSWERS = ("Plan", "Quick", "Prepared", "Launcher", "Violations")
"""Classes that hold arrays but are the result of planning, not a form of the request."""


class Walk:
    """The modules and value classes that were executed until the first `Launch` was made."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.classes: dict[type, bool] = {}
        """With whether an instance holds operands."""
        self.is_over = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_over:
            return
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("warploom"):
            self.modules.setdefault(name)
        if frame.f_code.co_name in ("__init__", "__new__", "<lambda>") and event == "return":
            self._made(frame.f_locals.get("self", argument))

    def _made(self, made: Any) -> None:
        if isinstance(made, Launch):
            self.is_over = True
            return
        kind = type(made)
        is_value = dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        if is_value and kind.__module__.startswith(_COUNTED):
            self.classes[kind] = self.classes.get(kind, False) or _holds_arrays(made)

    @property
    def front(self) -> list[str]:
        return [name for name in self.modules if name.startswith(_FRONT)]

    @property
    def requests(self) -> list[str]:
        return [kind.__name__ for kind, holds in self.classes.items() if holds and kind.__name__ not in _ANSWERS]


def _fields(value: Any) -> Iterator[Any]:
    names = value._fields if isinstance(value, tuple) else [each.name for each in dataclasses.fields(value)]
    yield from (getattr(value, name, None) for name in names)


def _holds_arrays(value: Any, depth: int = 0) -> bool:
    for each in _fields(value):
        parts = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else (each,)
        for part in parts:
            if hasattr(part, "__dlpack__") or hasattr(part, "__cuda_array_interface__"):
                return True
            if (
                depth == 0
                and (dataclasses.is_dataclass(part) and not isinstance(part, type))
                and _holds_arrays(part, 1)
            ):
                return True
    return False


@contextmanager
def _walking() -> Iterator[Walk]:
    walk = Walk()
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def walk_of(make: Callable[[np.ndarray[Any, Any]], Any]) -> Walk:
    """The walk of one call that has not been made before, with arrays of some library."""
    random = np.random.default_rng()
    x, w = (random.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((40, 72), (48, 72)))
    bias, residual = (random.integers(-3, 4, shape).astype(ml_dtypes.bfloat16) for shape in ((48,), (40, 48)))
    x, w, bias, residual = map(make, (x, w, bias, residual))
    warploom.linear(x[:8], w)  # what is done once for a process is not of a call
    with _walking() as walk:
        warploom.linear(x, w, bias=bias, activation="silu", residual=residual)
    if not walk.is_over:
        raise SystemExit("no launch was made")
    return walk


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name modules and classes")
    listed = parser.parse_args().list
    sides: dict[str, Callable[[Any], Any]] = {"NumPy": lambda array: array, "PyTorch": _tensor}
    for library, make in sides.items():
        walk = walk_of(make)
        counts = f"{len(walk.front)} front-door modules, {len(walk.requests)} request classes"
        print(f"{library}: {counts} ({len(walk.classes)} value classes, {len(walk.modules)} modules of warploom)")
        if listed:
            print("  modules:", *walk.front)
            print("  request classes:", *walk.requests)
            print("  value classes:", *(kind.__name__ for kind in walk.classes))
            print("  other modules:", *(name for name in walk.modules if name not in walk.front))


if __name__ == "__main__":
    main()
