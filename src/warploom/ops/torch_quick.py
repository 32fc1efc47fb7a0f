"""Eager calls that were made before: looked up by what they depend on, and launched on the addresses of their tensors.

Only calls that concern nobody but us are: without derivative, subclass, mode, transform or autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from warploom.facts.tensor_maps import ADDRESS_ALIGNMENT
from warploom.ops.determinism import CHOICE
from warploom.ops.torch_forms import ADDENDS
from warploom.ops.torch_library import Plan
from warploom.runtime.likeness import Likeness, likeness_of

_MOST_CALLS = 4096
_EAGER = (Tensor, torch.nn.Parameter)
_ALWAYS_PLANNED = frozenset(("epilogue", "store", "operands", "outputs", "out", "config", "target"))
"""Options with which a call is looked at each time."""
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack  # noqa: SLF001
_has_autocast, _is_graded = torch._C._is_any_autocast_enabled, torch.is_grad_enabled  # noqa: SLF001
_new_on_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)  # noqa: SLF001


class Quick(NamedTuple):
    """A call that was made before: of which tensors, how it is launched, and what makes its result."""

    is_like: Likeness
    launch: Callable[[tuple[int, ...], int], None]
    stream: Callable[[], int]
    make: Callable[[], Tensor]


CALLS: dict[Any, Quick] = {}


def launched(function: str, a: Tensor, b: Tensor, options: dict[str, Any]) -> tuple[Tensor | None, Any]:
    """The result of a product that is launched as it was before; else the key under which it may be remembered."""
    if _modes() or _transforms() is not None or _has_autocast() or not _ALWAYS_PLANNED.isdisjoint(options):
        return None, None
    tensors = (a, b)
    try:
        key: Any = (function, CHOICE.batch_invariant, _is_graded(), a.shape, b.shape)
        if options:
            tensors += tuple([each for name in ADDENDS if isinstance(each := options.get(name), Tensor)])
            key += (*options, *[... if isinstance(each, Tensor) else each for each in options.values()])
        quick = CALLS.get(key)
    except (AttributeError, TypeError):  # an argument that is nothing that it can be
        return None, None
    if quick is not None and quick.is_like(*tensors):
        addresses = [each.data_ptr() for each in tensors]
        if not reduce(or_, addresses) % ADDRESS_ALIGNMENT:
            out = quick.make()
            quick.launch((*addresses, out.data_ptr()), quick.stream())
            return out, key
    return None, key if all(map(_is_direct, tensors)) else None


def _is_direct(tensor: Tensor) -> bool:
    return type(tensor) in _EAGER and not (_is_graded() and tensor.requires_grad)


def remember(key: Any, plan: Plan | None, made: Tensor, own: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Keep a call whose launch takes the caller's own tensors and no copies: then their addresses are all it needs."""
    if plan is None or plan.copied or len(own) != len(given) or plan.prepared.count != len(own) + 1:
        return
    if any(one.data_ptr() != other.data_ptr() for one, other in zip(own, given, strict=True)):
        return
    if reduce(or_, [each.data_ptr() for each in own]) % ADDRESS_ALIGNMENT:
        return
    if len(CALLS) >= _MOST_CALLS:
        CALLS.clear()
    CALLS[key] = Quick(likeness_of(own), plan.prepared.launch_at, plan.stream, _maker_of(made))


def _maker_of(made: Tensor) -> Callable[[], Tensor]:
    """What makes a tensor like a result: as compiled code does, on the current GPU, where there is only one."""
    shape, strides = tuple(made.shape), made.stride()
    if _new_on_gpu is not None and torch.cuda.device_count() == 1:
        return partial(_new_on_gpu, shape, strides, made.dtype)
    return partial(torch.empty_strided, shape, strides, dtype=made.dtype, device=made.device)
