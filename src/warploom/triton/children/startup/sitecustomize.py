"""Makes the emulator the GPU of a Python process that a program on the emulator has started.

Python imports a module of this name when a process begins. `warploom.triton.children.environment` puts this folder on
the `PYTHONPATH` of such processes. The module that comes after it on the path is imported too. Only modules that
Python has loaded anyway are imported here: most processes need neither Triton nor PyTorch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

TYPE_CHECKING = False  # that of `typing`, which takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_AWAITED = ("torch", "triton")


class Awaiting:
    """A finder of modules that enters the session when the first of the awaited packages has been imported."""

    awaits_import = True
    """`warploom.triton.children.environment.leave` finds it by this."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find an awaited package, and let its loader enter the session."""
        if fullname not in _AWAITED:
            return None
        sys.meta_path.remove(cls)
        found = _found(fullname)
        if found is not None and found.loader is not None and all(map(_found, _AWAITED)):
            loader: Any = found.loader
            execute = loader.exec_module

            def execute_and_enter(module: ModuleType) -> None:
                execute(module)
                _enter()

            loader.exec_module = execute_and_enter
        return found


def _found(name: str) -> ModuleSpec | None:
    specs = (finder.find_spec(name, None) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def _enter() -> None:
    try:
        from warploom.triton.children.environment import enter
    except ModuleNotFoundError as error:  # another installation of Python, without warploom
        if (error.name or "").partition(".")[0] != "warploom":
            raise
        return
    enter()


def _import_next() -> None:
    """Import the module that Python would have found without this one; it takes the name."""
    own = os.path.realpath(os.path.join(__file__, os.pardir))  # noqa: PTH118  (pathlib takes 5 ms to import)
    path, this = sys.path[:], sys.modules.pop(__name__)
    sys.path[:] = [each for each in path if os.path.realpath(each) != own]
    try:
        import_module(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        sys.path[:] = path
        sys.modules.setdefault(__name__, this)


if os.environ.get("WARPLOOM_TRITON"):
    sys.meta_path.insert(0, Awaiting)
_import_next()
