"""Which module has the operations for arrays that are not NumPy's: PyTorch's, and by way of it those of others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from warploom.ptx.arrays import is_array

_FRONT = "warploom.ops.torch"


def elsewhere(operation: str, first: Any) -> Callable[..., Any] | None:
    """The operation for arrays of the library of the first argument; None where that is NumPy, or nobody's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        found: Callable[..., Any] | None = getattr(sys.modules.get(_FRONT) or import_module(_FRONT), operation, None)
        return found
    if not is_array(first) or not _has_torch():
        return None
    return import_module(_FRONT).for_others(operation)  # type: ignore[no-any-return]


def _has_torch() -> bool:
    try:
        import_module("torch")
    except ImportError:
        return False
    return True
