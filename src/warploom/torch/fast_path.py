"""Calls that were made before: looked up by what they depend on, and launched on the addresses of their tensors.

Of eager calls only those that concern nobody but us: without derivative, subclass, mode or transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.ops.determinism import CHOICE
from warploom.ops.planning.epilogue_inputs import ADDENDS
from warploom.runtime.gpu.tensor_signature import Likeness, likeness_of

if TYPE_CHECKING:
    from warploom.torch.op_library import Plan

_MOST_CALLS = 4096
_EAGER = frozenset((Tensor, torch.nn.Parameter))
ALWAYS_PLANNED = frozenset(("epilogue", "store", "operands", "outputs", "out", "config", "target"))
"""Options with which a call is looked at each time."""
_modes, _transforms = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack  # noqa: SLF001
_tracer = torch._C._get_tracing_state  # noqa: SLF001
_is_excluded, _AUTOGRAD = torch._C._dispatch_tls_is_dispatch_key_excluded, torch._C.DispatchKey.AutogradCUDA  # noqa: SLF001
has_autocast = torch._C._is_any_autocast_enabled  # noqa: SLF001
is_graded, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled
_new_on_gpu = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)  # noqa: SLF001


class Quick(NamedTuple):
    """A call that was made before: of which tensors, how it is launched, and what makes its result."""

    is_like: Likeness
    launch: Callable[[tuple[int, ...], int], None]
    stream: Callable[[], int]
    make: Callable[[], Tensor]


CALLS: dict[Any, Quick] = {}


def is_below_autograd() -> bool:
    """Whether derivatives have been seen to: tensors are not like those of which that is still to be asked."""
    is_below: bool = _is_excluded(_AUTOGRAD)
    return is_below


def is_heard() -> bool:
    """Whether somebody else is to hear of eager calls: a mode, a transform, a tracer, derivatives in forward mode."""
    return _modes() > 0 or _transforms() is not None or _tracer() is not None or is_forward()


def is_forward() -> bool:
    """Whether tensors may have derivatives in forward mode."""
    level: int = forward_ad._current_level  # noqa: SLF001
    return level >= 0


def changed(tensor: Tensor) -> Tensor:
    """A tensor of the caller's that was written without PyTorch's knowing: derivatives of what it was say so."""
    if not torch.compiler.is_compiling() and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
    return tensor


def state() -> tuple[bool, ...]:
    """What a remembered call depends on beside its arguments; tensors are not like those of another state."""
    return CHOICE.batch_invariant, _is_inference(), has_autocast()


def are_plain(tensors: Iterable[Any]) -> bool:
    """Whether all are tensors that nobody has made another class of."""
    return {*map(type, tensors)} <= _EAGER


def launched(
    function: str, factors: tuple[Tensor, ...], options: dict[str, Any], kept: tuple[Tensor, ...] = ()
) -> tuple[Tensor | None, Any]:
    """The result of a product that is launched as it was before; else the key under which it may be remembered.

    `kept` are further outputs, with memory of their own.
    """
    if is_heard() or not ALWAYS_PLANNED.isdisjoint(options) or callable(options.get("pair")):
        return None, None
    tensors = factors
    try:
        key: Any = (function, *state(), is_graded(), len(kept), *[each.shape for each in factors])
        if options:
            tensors += tuple([each for name in ADDENDS if isinstance(each := options.get(name), Tensor)])
            key += (*options, *[... if isinstance(each, Tensor) else each for each in options.values()])
        quick = CALLS.get(key)
    except (AttributeError, RuntimeError, TypeError):  # an argument that is nothing that it can be
        return None, None
    out = _relaunched(quick, (*tensors, *kept))
    if out is not None:
        return out, key
    is_direct = are_plain(tensors) and not (is_graded() and any(each.requires_grad for each in tensors))
    return None, key if is_direct else None


def launched_again(key: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    """The result of a call that was remembered, if it was made of tensors like these."""
    return _relaunched(CALLS.get(key), tensors)


def _relaunched(quick: Quick | None, tensors: Sequence[Tensor]) -> Tensor | None:
    if quick is None or not quick.is_like(*tensors):
        return None
    addresses = [each.data_ptr() for each in tensors]
    if reduce(or_, addresses) % ADDRESS_ALIGNMENT:
        return None
    out = quick.make()
    quick.launch((*addresses, out.data_ptr()), quick.stream())
    return out


def remember(
    key: Any,
    plan: Plan | None,
    made: Tensor,
    own: Sequence[Tensor],
    given: Sequence[Tensor],
    *,
    starts_at_zero: bool = False,
) -> None:
    """Keep a call whose launch takes the caller's own tensors and no copies: then their addresses are all it needs.

    A result that starts at zero is one of which the launch does not write all.
    """
    if plan is None or plan.copied or len(own) != len(given) or plan.prepared.count != len(own) + 1:
        return
    if any(one.data_ptr() != other.data_ptr() for one, other in zip(own, given, strict=True)):
        return
    if reduce(or_, [each.data_ptr() for each in own]) % ADDRESS_ALIGNMENT:
        return
    if len(CALLS) >= _MOST_CALLS:
        CALLS.clear()
    make = _maker_of(made)
    if starts_at_zero:
        make = partial(_zero, make)
    CALLS[key] = Quick(likeness_of(own), plan.prepared.launch_at, plan.stream, make)


def _zero(make: Callable[[], Tensor]) -> Tensor:
    return make().zero_()


def _maker_of(made: Tensor) -> Callable[[], Tensor]:
    """What makes a tensor like a result: as compiled code does, on the current GPU, where there is only one."""
    shape, strides = tuple(made.shape), made.stride()
    if _new_on_gpu is not None and torch.cuda.device_count() == 1:
        return partial(_new_on_gpu, shape, strides, made.dtype)
    return partial(torch.empty_strided, shape, strides, dtype=made.dtype, device=made.device)
