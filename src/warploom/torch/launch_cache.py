"""The launch cache: calls that were made before are found by a key and launched on the addresses of their tensors.

One table holds two kinds of keys for the same launchers. An eager call is found by its function, options and shapes,
and then compared with the tensors that were remembered, in one step; below PyTorch's dispatcher, or where tensors are
copied first, a launcher is found by the whole signature of the call. Only calls that no one else must see are launched
this way: no gradient, subclass, mode or transform.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from operator import or_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.ops.determinism import SETTINGS
from warploom.ops.planning.arrays import have_same_layout
from warploom.ops.planning.request import INPUTS
from warploom.ops.planning.user_functions import global_names
from warploom.runtime.gpu.prepared import Prepared
from warploom.runtime.gpu.tensor_signature import Likeness, likeness_of
from warploom.torch.internals import (
    AUTOGRAD_KEY,
    FORWARD_LEVEL,
    dispatch_modes,
    empty_on_gpu,
    has_autocast,
    is_key_excluded,
    tracing_state,
    transforms,
)

_MOST = 8192
_EAGER = frozenset((Tensor, torch.nn.Parameter))
_NEVER_CACHED = frozenset(("store", "outputs"))
"""Options with which a call is checked and planned each time; its launcher is still found by its signature."""
_PARTICULAR = frozenset(("epilogue", "operands", "config", "out"))
"""Options that are not simply a value of the key."""
_VALUES = frozenset((int, bool, str, bytes, type(None)))
_STABLE = frozenset(("warploom", "torch", "numpy", "math", "ml_dtypes", "builtins"))
"""Packages whose functions stay the same for a process."""
_DEEPEST = 4
is_graded, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


class Launcher(NamedTuple):
    """A prepared launch, its stream, and the tensors that it takes as copies: name, position, contiguous axis."""

    prepared: Prepared
    stream: Callable[[], int]
    copies: tuple[tuple[str, int, int], ...] = ()


class Quick(NamedTuple):
    """A remembered eager call: the test for tensors like its own, its launch, and what allocates its result.

    With `out` nothing is allocated: it must lie apart from what is read, `reads` says how.
    """

    is_like: Likeness
    launch: Callable[[tuple[int, ...], int], None]
    stream: Callable[[], int]
    make: Callable[[], Tensor] | None
    reads: tuple[tuple[int, bool], ...] = ()
    """With `out`: the bytes that each other tensor spans, and whether it may be the very memory of `out`."""
    span: int = 0
    out_at: int = -1
    """The position of `out` among the tensors."""


CACHE: dict[Any, Launcher | Quick] = {}


def clear() -> None:
    """Forget all launchers."""
    CACHE.clear()


def launcher_of(signature: Any) -> Any:
    """The launcher with a signature, if there is one."""
    return CACHE.get(signature)


def store(key: Any, value: Launcher | Quick) -> None:
    """Add to the cache; when it is full it starts anew."""
    if len(CACHE) >= _MOST:
        CACHE.clear()
    CACHE[key] = value


def is_below_autograd() -> bool:
    """Return whether autograd is done with the tensors: they differ from tensors above it."""
    return AUTOGRAD_KEY is not None and is_key_excluded(AUTOGRAD_KEY)


def is_observed() -> bool:
    """Return whether a dispatch mode, functorch transform, tracer or forward AD is active."""
    return dispatch_modes() > 0 or transforms() is not None or tracing_state() is not None or is_forward_ad()


def is_forward_ad() -> bool:
    """Return whether tensors may have forward-mode gradients."""
    level: int = getattr(forward_ad, FORWARD_LEVEL, 0)
    return level >= 0


def mark_written(tensor: Tensor) -> Tensor:
    """Bump the version of a caller's tensor that a launch wrote, so that autograd notices."""
    if not torch.compiler.is_compiling() and not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)
    return tensor


def state() -> tuple[bool, ...]:
    """The settings that a remembered call depends on; tensors differ with them too."""
    return SETTINGS.batch_invariant, _is_inference(), has_autocast()


def are_plain(tensors: Iterable[Any]) -> bool:
    """Return whether all are tensors of PyTorch's own classes."""
    return {*map(type, tensors)} <= _EAGER


def launched(
    function: str, operands: tuple[Tensor, ...], options: dict[str, Any], kept: tuple[Tensor, ...] = ()
) -> tuple[Tensor | None, Any]:
    """The result of a call that was remembered; else None, and the key to remember it by if that is possible.

    `kept` are auxiliary outputs with memory of their own.
    """
    if is_observed() or not _NEVER_CACHED.isdisjoint(options):
        return None, None
    tensors, out = operands, None
    try:
        key: Any = (function, *state(), is_graded(), len(kept), *[each.shape for each in operands])
        if options:
            tensors += tuple([each for name in INPUTS if isinstance(each := options.get(name), Tensor)])
            if _PARTICULAR.isdisjoint(options) and not callable(options.get("pair")):
                key += (*options, *[... if isinstance(each, Tensor) else each for each in options.values()])
            else:
                more, operand_tensors = _particular_key(options)
                if more is None:
                    return None, None
                key += more
                tensors += operand_tensors
                out = options.get("out")
                key += ([id(each) for each in tensors].index(id(out)),) if _is_among(out, tensors) else ()
        quick = CACHE.get(key)
    except (AttributeError, RuntimeError, TypeError):  # an argument of a wrong type: planning reports it
        return None, None
    given = (*tensors, *kept) if out is None else _with_out(tensors, out)
    made = _relaunched(quick, given)
    if made is not None:
        return made, key
    is_direct = are_plain(given) and not (is_graded() and any(each.requires_grad for each in given))
    return None, key if is_direct else None


def _with_out(tensors: tuple[Tensor, ...], out: Tensor) -> tuple[Tensor, ...]:
    """The tensors of a call that writes `out`, which may be one of them; each is compared once."""
    return tensors if _is_among(out, tensors) else (*tensors, out)


def _is_among(out: Tensor | None, tensors: tuple[Tensor, ...]) -> bool:
    """Return whether `out` is one of the tensors; they are compared by identity."""
    return id(out) in [id(each) for each in tensors]


def _particular_key(options: dict[str, Any]) -> tuple[tuple[Any, ...] | None, tuple[Tensor, ...]]:
    """The key of options with functions, operands, a configuration or `out`, and the operands' tensors.

    Configurations are known by identity, functions by code and captured values: both are read at every call.
    """
    parts: list[Any] = []
    tensors: tuple[Tensor, ...] = ()
    for name, value in options.items():
        if value is None:
            continue
        part: Any = ... if isinstance(value, Tensor) else value
        if name == "config":
            part = Identity(value)
        elif name == "operands":
            if not isinstance(value, Mapping):
                return None, ()
            tensors = tuple([each for each in value.values() if isinstance(each, Tensor)])
            part = tuple([(each, ... if isinstance(v, Tensor) else _number(v)) for each, v in value.items()])
        elif name == "epilogue" or callable(value):
            part = function_key(value)
            if part is None:
                return None, ()
        parts += (name, part)
    return tuple(parts), tensors


class Identity:
    """A value compared by identity, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value


def _number(value: Any) -> Any:
    """A number as part of a key: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return type(value), value, str(value) if not value else ""


def function_key(function: Any, depth: int = 0) -> Hashable | None:
    """A function by its code and the values that it captures, read now; None where they may change unnoticed.

    A lambda made anew for every call has the same key. Values are compared where they are immutable, helper functions
    by their own key; an object of another kind makes the function one that is planned at each call.
    """
    if type(function) is not FunctionType or depth > _DEEPEST or function.__dict__:
        return None
    cells = function.__closure__ or ()
    captured: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    try:
        captured += [each.cell_contents for each in cells]
    except ValueError:  # a name that its scope has not bound yet
        return None
    space = function.__globals__
    captured += [space[name] for name in _globals_of(function.__code__) if name in space]
    parts: list[Any] = [function.__code__]
    for value in captured:
        kind = type(value)
        if kind in _VALUES:
            part: Any = (kind, value)
        elif kind is float:
            part = _number(value)
        elif kind is ModuleType or kind is BuiltinFunctionType or kind is type:
            name = value.__name__ if kind is ModuleType else value.__module__ or ""
            part = value if name.partition(".")[0] in _STABLE else None
        elif kind is FunctionType:
            part = value if value.__module__.partition(".")[0] in _STABLE else function_key(value, depth + 1)
        else:
            part = None
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


@lru_cache(1024)
def _globals_of(code: CodeType) -> tuple[str, ...]:
    return tuple(dict.fromkeys(global_names(code)))


def launched_again(key: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    """The result of a remembered call, if it was made with tensors like these."""
    return _relaunched(CACHE.get(key), tensors)


def _relaunched(quick: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    if quick is None or not quick.is_like(*tensors):
        return None
    addresses = [each.data_ptr() for each in tensors]
    if reduce(or_, addresses) % ADDRESS_ALIGNMENT:
        return None
    if quick.make is None:
        out = tensors[quick.out_at]
        if len(addresses) == len(quick.reads):  # it is also read
            addresses.append(addresses[quick.out_at])
        if _meets(addresses, quick):
            return None
        quick.launch(tuple(addresses), quick.stream())
        return mark_written(out)
    out = quick.make()
    quick.launch((*addresses, out.data_ptr()), quick.stream())
    return out


def _meets(addresses: list[int], quick: Quick) -> bool:
    """Return whether `out`, the last, may share memory with what is read, unless it is read in place."""
    start = addresses[-1]
    end = start + quick.span
    for address, (span, may_be_one) in zip(addresses, quick.reads, strict=False):
        if address < end and start < address + span and not (may_be_one and address == start):
            return True
    return False


def remember(
    key: Any,
    launcher: Launcher | None,
    made: Tensor,
    own: Sequence[Tensor],
    given: Sequence[Tensor],
    *,
    starts_at_zero: bool = False,
    writes_out: bool = False,
    matrices: int = 0,
) -> None:
    """Remember a call whose launch takes the caller's own tensors and no copies: their addresses are all it needs.

    A result that starts at zero is one of which the launch does not write all. With `writes_out` the result is the
    caller's tensor; the first `matrices` tensors are read for many elements of it, and must lie apart from it.
    """
    if launcher is None or launcher.copies or len(own) != len(given) or launcher.prepared.count != len(own) + 1:
        return
    if any(one.data_ptr() != other.data_ptr() for one, other in zip(own, given, strict=True)):
        return
    tensors = _with_out(tuple(own), made) if writes_out else tuple(own)
    if reduce(or_, [each.data_ptr() for each in tensors]) % ADDRESS_ALIGNMENT:
        return
    launch, stream = launcher.prepared.launch_at, launcher.stream
    if writes_out:
        reads = [(_span(each), at >= matrices and have_same_layout(each, made)) for at, each in enumerate(own)]
        at = [id(each) for each in tensors].index(id(made))
        store(key, Quick(likeness_of(tensors), launch, stream, None, tuple(reads), _span(made), at))
        return
    make = _maker_of(made)
    store(key, Quick(likeness_of(own), launch, stream, partial(_zero, make) if starts_at_zero else make))


def _span(tensor: Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last; strides are never negative."""
    steps: int = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + steps) * int(tensor.element_size())


def _zero(make: Callable[[], Tensor]) -> Tensor:
    return make().zero_()


def _maker_of(made: Tensor) -> Callable[[], Tensor]:
    """Return a function that allocates a tensor like a result: as compiled code does, on the current GPU, where
    there is only one.
    """
    shape, strides = tuple(made.shape), made.stride()
    if empty_on_gpu is not None and torch.cuda.device_count() == 1:
        return partial(empty_on_gpu, shape, strides, made.dtype)
    return partial(torch.empty_strided, shape, strides, dtype=made.dtype, device=made.device)
