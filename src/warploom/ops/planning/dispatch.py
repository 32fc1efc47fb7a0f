"""Which module has the operations for arrays that are not NumPy's: PyTorch's, and by way of it those of others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from warploom.host.arrays import is_array
from warploom.ops.planning.violations import Faults

_NO_ARRAYS = (list, tuple, dict, str, int, float, complex, type(None))
"""For these no library is loaded."""


def elsewhere(operation: str, first: Any) -> Callable[..., Any] | None:
    """The operation for arrays of the library of the first argument; None where that is NumPy, or nobody's.

    PyTorch's compiler follows this, and an import statement, but no call of the import system; nor may it see
    `sys.modules`, which it walks over while it imports. What it reads must not change, or it compiles again.
    """
    if isinstance(first, _NO_ARRAYS):
        return None
    try:
        from warploom.torch import dispatch as front
    except ImportError:
        return None
    if front.is_tensor(first):
        found: Callable[..., Any] | None = getattr(front, operation, None)
        return found
    return front.for_others(operation) if is_array(first) and hasattr(front, operation) else None


def refuse(operation: str, argument: str, first: Any) -> None:
    """Say why there is no operation for an array that is not NumPy's."""
    if not is_array(first):
        return
    faults = Faults(operation)
    what = f"`{operation}` takes NumPy arrays only, and runs on the machine"
    try:
        from warploom.torch import dispatch as front  # noqa: F401
    except ImportError:
        what = "arrays of other libraries than NumPy come by way of PyTorch, which is not installed"
    faults.add(argument, first, what)
    faults.check()


def replan() -> None:
    """Let calls that were planned before be planned anew: another configuration may be the fastest now."""
    for module, table in (("warploom.torch.fast_path", "CALLS"), ("warploom.torch.op_library", "_PLANS")):
        if module in sys.modules:
            getattr(sys.modules[module], table).clear()
