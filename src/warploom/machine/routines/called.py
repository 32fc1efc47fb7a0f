"""Native routines that Python calls for one operation at a time."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from warploom.machine.engine.objects import OPTIMISED

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine, Form

WEIGHT = 1024
"""Executions of an instruction by a warp that gain as much, once it is optimised, as one call of a routine."""
_PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p)


class Called:
    """The routine of a form, called with its packed arguments."""

    def __init__(self, engine: Engine, form: Form) -> None:
        self._engine = engine  # its code exists as long as it does
        self._kernel = engine.routine(form)
        engine.callers.add(self)
        self.enter_addresses()

    def enter_addresses(self) -> None:
        """Call the routine where it is now."""
        self._run = _PROTOTYPE(self._kernel.address)

    def __call__(self, given: bytes) -> int:
        if self._kernel.level < OPTIMISED:
            self._engine.count([self._kernel], [WEIGHT])
        found: int = self._run(given, None)
        return found
