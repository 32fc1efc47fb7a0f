"""How an op gets its derivative: as PyTorch registers one, with a short way for calls that nobody derives.

Ops that compiled code calls need no derivative, as the compiler has derived them already; by PyTorch's own registration
each would still go through Python twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from warploom.torch.fast_path import is_graded
from warploom.torch.op_library import LIBRARY

_BACKENDS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CPU)  # noqa: SLF001


class _Replaced:
    """An op in whose place another is dispatched to below the derivative."""

    def __init__(self, op: Any, redispatch: Callable[..., Any]) -> None:
        self._op, self.redispatch = op, redispatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._op, name)


def register_autograd(
    name: str,
    derive: Callable[..., Any],
    keep: Callable[..., None],
    make: Callable[..., Any],
    below: Callable[..., Any] | None = None,
) -> None:
    """Give an op its derivative, by what `keep` keeps for it; `make` is what the op does on every device.

    `below` takes the dispatcher's keys and what the op takes, and goes on in the place of the op.
    """
    try:
        from torch._library.autograd import Info, make_autograd_impl

        beyond = torch._C._after_autograd_keyset  # noqa: SLF001
    except (ImportError, AttributeError):  # nobody has promised them
        torch.library.register_autograd(f"warploom::{name}", derive, setup_context=keep, lib=LIBRARY)
        return
    op = getattr(torch.ops.warploom, name).default
    followed = make_autograd_impl(op if below is None else _Replaced(op, below), Info(derive, keep))

    def call(keys: Any, *given: Any) -> Any:
        if not is_graded() and (keys & beyond).highestPriorityTypeId() in _BACKENDS:
            return make(*given)
        return followed(keys, *given)

    LIBRARY.impl(name, call, "Autograd", with_keyset=True)
