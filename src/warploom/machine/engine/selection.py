"""The choice of the engine: native kernels where llvmlite is installed, else NumPy.

`WARPLOOM_ENGINE` is `native`, `numpy` or, by default, `auto`: native code for forms that are executed more than a few
times, once a process has executed so many instructions that this repays the import of llvmlite. All give the same
results, bit for bit.
"""

from __future__ import annotations

import os
import warnings
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from warploom.diagnostics import Diag, WarploomError

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine

VARIABLE = "WARPLOOM_ENGINE"
_CHOICES = ("auto", "native", "numpy")
_made: list[Engine | None] = []
_LOAD_AFTER = 1 << 15
"""Instructions of warps that NumPy executes in a process before llvmlite is loaded: both take about 30 ms."""
_executed = [0]
"""Those so far."""


def choice() -> str:
    """The setting of the environment."""
    value = os.environ.get(VARIABLE, "") or "auto"
    if value not in _CHOICES:
        raise Diag.BAD_SETTING.error(variable=VARIABLE, value=value, what=f"an engine is {', '.join(_CHOICES)}")
    return value


def instructions_before_loading() -> int:
    """Instructions of warps that NumPy executes before it pays to load llvmlite; 0 if the engine is chosen now."""
    if choice() != "auto" or _made or PathFinder.find_spec("llvmlite") is None:  # metadata would take milliseconds
        return 0
    return max(_LOAD_AFTER - _executed[0], 0)


def count(instructions: int) -> None:
    """Count instructions of warps that NumPy has executed while llvmlite was not loaded."""
    _executed[0] += instructions


def engine() -> Engine | None:
    """The native engine of this process; None where NumPy executes everything."""
    chosen = choice()
    if chosen == "numpy":
        return None
    if chosen == "native":
        _require_llvmlite()
    if not _made:
        _made[:] = [_engine()]
    found = _made[0]
    if found is not None:
        found.seldom = _seldom(chosen)
    return found


def _seldom(chosen: str) -> int:
    """Executions of a form by the reference before it is compiled."""
    from warploom.machine.engine.native import SELDOM

    return 0 if chosen == "native" else SELDOM


def _require_llvmlite() -> None:
    from warploom.machine.engine.native import installed

    if not (_made and _made[0]) and installed() is None:
        raise Diag.BAD_SETTING.error(
            variable=VARIABLE, value="native", what="llvmlite is not installed: pip install 'warploom[fast]'"
        )


def _engine() -> Engine | None:
    from warploom.machine.engine.native import Engine, installed

    if installed() is None:
        return None
    try:
        return Engine()
    except Exception as error:  # noqa: BLE001  (whatever is wrong with llvmlite, NumPy executes the kernels)
        disable(error)
        return None


def disable(error: Exception) -> None:
    """Report once that native code cannot be used, and use NumPy in this process from now on."""
    _made[:] = [None]
    warnings.warn(f"llvmlite cannot be used, NumPy executes the kernels: {error}", RuntimeWarning, stacklevel=3)


def describe() -> str:
    """The engine in words, for `warploom doctor`."""
    from warploom.machine.engine.native import installed

    version = installed()
    try:
        chosen = choice()
    except WarploomError as error:
        return str(error)
    if chosen == "numpy":
        return f"NumPy ({VARIABLE}=numpy)"
    if version is None:
        return "NumPy; pip install 'warploom[fast]' makes it several times faster"
    found = engine()
    return f"native, by llvmlite {version}" if found is not None else f"NumPy: llvmlite {version} cannot be used"
