"""Native routines that Python calls for one operation at a time."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, TypeAlias

from warploom.machine.engine.objects import OPTIMISED

if TYPE_CHECKING:
    from warploom.machine.engine.native import Engine
    from warploom.machine.routines.column_kernels import Unpack
    from warploom.machine.routines.granule_kernels import BoxCopy, Gather, LaneCopy
    from warploom.machine.routines.product_kernels import Multiply

    Routine: TypeAlias = Multiply | BoxCopy | Gather | Unpack | LaneCopy

_PROTOTYPE = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p)


def executions(form: Routine, size: int) -> int:
    """The executions of an instruction by a warp that a call of some size counts as.

    A routine has a size `per_execution`: with `_OFTEN` times that (`engine/native.py`) its optimised code has gained
    what its compilation takes.
    """
    return -(-size // form.per_execution)


class Called:
    """The routine of a form, called with its packed arguments."""

    def __init__(self, engine: Engine, form: Routine) -> None:
        self._engine = engine  # its code exists as long as it does
        self._form, self._kernel = form, engine.routine(form)
        self._size, self._enough = 0, engine.counted_together * form.per_execution
        """The size of the calls that are not counted, and that from which they are."""
        engine.callers.add(self)
        self.enter_addresses()

    def enter_addresses(self) -> None:
        """Call the routine where it is now."""
        self._run = _PROTOTYPE(self._kernel.address)

    def __call__(self, given: bytes, size: int) -> int:
        if self._kernel.level < OPTIMISED:
            self._size += size
            if self._size >= self._enough:
                size, self._size = self._size, 0
                self._engine.count([self._kernel], [executions(self._form, size)])
        found: int = self._run(given, None)
        return found
