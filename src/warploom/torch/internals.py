"""The private symbols of PyTorch that are used here, each with a fallback that PyTorch documents, or that is slower.

A symbol that a version of PyTorch does not have is replaced: calls then go through its dispatcher, or are checked one
attribute at a time, and give the same results. Two others are in `runtime/gpu`: the tensor guards, which are tried out
before they are relied on, and the raw current stream, which has a public fallback.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import torch
from torch.autograd import forward_ad

SYMBOLS: dict[str, bool] = {}
"""By path below `torch`, whether this version has the symbol."""


def symbol(path: str, fallback: Any) -> Any:
    """A private symbol, or its fallback in a version without it."""
    try:
        found = reduce(getattr, path.split("."), torch)
    except AttributeError:
        SYMBOLS[path] = False
        return fallback
    SYMBOLS[path] = True
    return found


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


dispatch_modes: Callable[[], int] = symbol("_C._len_torch_dispatch_stack", _always(1))
"""The number of dispatch modes; without the symbol one is assumed, and every call goes through the dispatcher."""
transforms: Callable[[], Any] = symbol("_C._functorch.peek_interpreter_stack", _always(True))
"""The stack of functorch transforms, None if it is empty; without the symbol one is assumed."""
tracing_state: Callable[[], Any] = symbol("_C._get_tracing_state", lambda: torch.jit.is_tracing() or None)
unwrap_dead: Callable[[Any], Any] = symbol("_C._functorch.unwrap_if_dead", lambda tensor: tensor)
"""A tensor without the wrapper of a transform that has ended."""
has_autocast: Callable[[], bool] = symbol(
    "_C._is_any_autocast_enabled", lambda: torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu")
)
is_key_excluded: Callable[[Any], bool] = symbol("_C._dispatch_tls_is_dispatch_key_excluded", _always(False))
AUTOGRAD_KEY: Any = symbol("_C.DispatchKey.AutogradCUDA", None)
BACKEND_KEYS: tuple[Any, ...] = tuple(symbol(f"_C.DispatchKey.{name}", None) for name in ("CUDA", "CPU"))
AFTER_AUTOGRAD: Any = symbol("_C._after_autograd_keyset", None)
"""The dispatch keys below autograd; without it, gradients are registered by `torch.library.register_autograd`."""
empty_on_gpu: Callable[..., torch.Tensor] | None = symbol("_C._dynamo.guards._empty_strided_cuda", None)
apply_function: Callable[..., Any] | None = symbol("_C._FunctionBase.apply", None)
"""`Function.apply` without its check for transforms."""
FORWARD_LEVEL = "_current_level"
"""The attribute of `forward_ad` with the level of forward-mode AD, negative outside it; without it one is assumed."""
SYMBOLS[f"autograd.forward_ad.{FORWARD_LEVEL}"] = hasattr(forward_ad, FORWARD_LEVEL)


KEEPS_MARK = (2, 6) <= tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 13)
"""True if `constant` may write the mark that versions of PyTorch within the tested bounds read."""
SYMBOLS["_dynamo.assume_constant_result: _dynamo_marked_constant"] = KEEPS_MARK


def constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function whose result PyTorch's compiler takes as a constant, without the import of the compiler.

    `torch.compiler.assume_constant_result` sets the same attribute, and imports `torch._dynamo`, which takes a
    second of the first eager call.
    """
    if not KEEPS_MARK:
        return cast("Callable[..., Any]", torch.compiler.assume_constant_result(function))
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def autograd_impl() -> tuple[Any, Any] | None:
    """The function with which `torch.library.register_autograd` builds gradients with; None in a version without it."""
    try:
        from torch._library.autograd import Info, make_autograd_impl
    except ImportError:
        return None
    return Info, make_autograd_impl


SYMBOLS["_library.autograd.make_autograd_impl"] = autograd_impl() is not None
