"""The launch cache: calls that were made before are found by a key and launched on the addresses of their tensors.

One table holds two kinds of keys for the same launchers. An eager call is found by its function, options and shapes,
and then compared with the tensors that were remembered, in one step; below PyTorch's dispatcher, or where tensors are
copied first, a launcher is found by the whole signature of the call. Only calls that no one else must see are launched
this way: no gradient, subclass, mode or transform.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial, reduce
from operator import attrgetter, or_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from warploom.hardware.tensor_maps import ADDRESS_ALIGNMENT
from warploom.ops.determinism import SETTINGS
from warploom.ops.planning.arrays import have_same_layout
from warploom.ops.planning.keywords import INPUTS
from warploom.ops.planning.row_family import RowFamily
from warploom.ops.planning.user_functions import global_names
from warploom.runtime.gpu.prepared import Prepared
from warploom.runtime.gpu.tensor_signature import Likeness, likeness_of
from warploom.runtime.gpu.workspace import is_captured_by_torch
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
_VALUES = frozenset((int, bool, str, bytes, type(None), float))
_FUNCTIONS = frozenset(("epilogue", "pair"))
"""Options that may be a function of the caller. With a `store`, a call is planned each time."""
_KEYED = frozenset((*_VALUES, torch.dtype))
_SETTINGS = frozenset(("stride", "padding", "dilation"))
"""Options that may be tuples of numbers."""
"""The types of options that are a part of the key as they are."""
_STABLE = frozenset(("warploom", "torch", "numpy", "math", "ml_dtypes", "builtins"))
"""Packages whose functions stay the same for a process."""
_DEEPEST, _MOST_CODES = 4, 1024
is_graded, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


class Launcher(NamedTuple):
    """A prepared launch, its stream, and the tensors that it takes as copies: name, position, contiguous axis."""

    prepared: Prepared
    stream: Callable[[], int]
    copies: tuple[tuple[str, int, int], ...] = ()
    family: RowFamily | None = None
    """The launches of the same call with other numbers of rows."""
    is_final: bool = True
    """False while a better kernel is built: such a launch is not remembered."""


class Identity:
    """A value compared by identity in a key, which keeps it alive so that no other value gets its `id`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value
        if len(_IDENTITIES) >= _MOST:
            _IDENTITIES.clear()
        _IDENTITIES[id(value)] = self


class Quick(NamedTuple):
    """A remembered eager call: the test for tensors like its own, its launch, and what allocates its result.

    With `out` nothing is allocated: it must lie apart from what is read, `reads` says how.
    """

    is_like: Likeness
    launch: Callable[[tuple[int, ...], int], None]
    stream: Callable[[], int]
    make: Callable[[], Tensor] | None
    admitted: set[tuple[int, ...]]
    """The addresses that were checked."""
    reads: tuple[tuple[int, bool], ...] = ()
    """With `out`: the bytes that each other tensor spans, and whether it may be the very memory of `out`."""
    span: int = 0
    out_at: int = -1
    """The position of `out` among the tensors."""


class QuickRows(NamedTuple):
    """Remembered eager calls that differ in their number of rows: one that was not seen is resized from another."""

    family: RowFamily
    is_like: Likeness
    """Takes any number of rows."""
    stream: Callable[[], int]
    make: Callable[[int], Tensor]
    of_rows: tuple[int, ...]
    """The tensors whose first axis has the rows."""


CACHE: dict[Any, Launcher | Quick | QuickRows] = {}
_IDENTITIES: dict[int, Identity] = {}
"""By `id`, the identities of configurations."""
_GLOBALS: dict[CodeType, tuple[str, ...]] = {}
_shape_of, _contents_of = attrgetter("shape"), attrgetter("cell_contents")
_data_ptr = Tensor.data_ptr


def clear() -> None:
    """Forget all launchers."""
    CACHE.clear()


def launcher_of(signature: Any) -> Any:
    """The launcher with a signature, if there is one."""
    return CACHE.get(signature)


def store(key: Any, value: Launcher | Quick | QuickRows) -> None:
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

    `kept` are auxiliary outputs with memory of their own. Every eager call comes here: what a hit needs is written out,
    without functions of Python for its parts.
    """
    if dispatch_modes() or transforms() is not None or tracing_state() is not None or is_forward_ad():
        return None, None
    tensors = operands
    try:
        key: Any = (
            function,
            SETTINGS.batch_invariant,
            _is_inference(),
            has_autocast(),
            is_graded(),
            len(kept),
            *map(_shape_of, operands),
        )
        if options:
            parts: list[Any] = [*options]
            inputs: dict[str, Tensor] = {}
            named: list[Tensor] = []
            for name, value in options.items():
                kind = type(value)
                if kind in _EAGER:
                    inputs[name] = value
                    part: Any = ...
                elif kind in _KEYED:
                    part = value
                elif name in _FUNCTIONS:
                    part = function_key(value)
                elif kind is tuple and name in _SETTINGS:
                    part = value
                elif kind is dict and name == "operands":
                    part = _operands_key(value, named)
                else:
                    part = _identity(value) if name == "config" else value if name == "out_dtype" else None
                if part is None and value is not None:
                    return None, None
                parts.append(part)
            if inputs:
                tensors += tuple([inputs[name] for name in INPUTS if name in inputs])
            if named:
                tensors += tuple(named)
            out = inputs.get("out")
            if out is not None:
                at = _position(out, tensors)
                parts.append(at)
                if at < 0:
                    tensors += (out,)
            key += tuple(parts)
        quick = CACHE.get(key)
    except (AttributeError, RuntimeError, TypeError):  # an argument of a wrong type: planning reports it
        return None, None
    if kept:
        tensors += kept
    made = _relaunched(quick, tensors)
    if made is None and quick is None and not kept:
        made = _resized(key, tensors)
    if made is not None:
        return made, key
    is_direct = are_plain(tensors) and not (is_graded() and any(each.requires_grad for each in tensors))
    return None, key if is_direct else None


def _position(out: Tensor, tensors: Sequence[Tensor]) -> int:
    """The position of `out` among the tensors, by identity; -1 if it is none of them."""
    for at, each in enumerate(tensors):
        if each is out:
            return at
    return -1


def _operands_key(operands: dict[str, Any], tensors: list[Tensor]) -> Hashable | None:
    """The part of a key for operands: names, numbers, and which are tensors, to which they are added."""
    parts: list[Any] = []
    for name, value in operands.items():
        kind = type(value)
        if kind in _EAGER:
            tensors.append(value)
            parts += (name, ...)
        elif kind in _VALUES:
            parts += (name, _number(value))
        else:
            return None
    return tuple(parts)


def _identity(value: object) -> Identity:
    return _IDENTITIES.get(id(value)) or Identity(value)


def _number(value: Any) -> Hashable:
    """A number as part of a key: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return type(value), value, str(value) if not value else ""


def function_key(function: Any, depth: int = 0) -> Hashable | None:
    """A function by its code and the values that it captures, read now; None where they may change unnoticed.

    A lambda made anew for every call has the same key. Values are compared where they are immutable, helper functions
    by their own key; an object of another kind makes the function one that is planned at each call.
    """
    if type(function) is not FunctionType or depth > _DEEPEST or function.__dict__:
        return None
    code = function.__code__
    captured: list[Any] = []
    if function.__closure__ is not None:
        try:
            captured += map(_contents_of, function.__closure__)
        except ValueError:  # a name that its scope has not bound yet
            return None
    if function.__defaults__ is not None:
        captured += function.__defaults__
    if function.__kwdefaults__ is not None:
        captured += function.__kwdefaults__.values()
    names = _GLOBALS.get(code)
    if names is None:
        names = _globals_of(code)
    if names:
        space = function.__globals__
        captured += [space[name] for name in names if name in space]
    if not captured:
        return code
    kinds = tuple(map(type, captured))
    if not _VALUES.issuperset(kinds):
        captured = [_captured_key(each, depth) for each in captured]
        if None in captured:
            return None
    elif float in kinds and 0.0 in captured:  # zeros of both signs are equal
        captured = list(map(repr, captured))
    return (code, kinds, *captured)


def _captured_key(value: Any, depth: int) -> Hashable | None:
    """The part of a key for a value that a function captures; None where it may change unnoticed."""
    kind = type(value)
    if kind in _VALUES:
        return _number(value)
    if kind is ModuleType or kind is BuiltinFunctionType or kind is type:
        name = value.__name__ if kind is ModuleType else value.__module__ or ""
        return cast("Hashable", value) if name.partition(".")[0] in _STABLE else None
    if kind is FunctionType:
        return value if value.__module__.partition(".")[0] in _STABLE else function_key(value, depth + 1)
    return None


def _globals_of(code: CodeType) -> tuple[str, ...]:
    """The global names that code reads, which are kept with it."""
    if len(_GLOBALS) >= _MOST_CODES:
        _GLOBALS.clear()
    names = _GLOBALS[code] = tuple(dict.fromkeys(global_names(code)))
    return names


def launched_again(key: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    """The result of a remembered call, if it was made with tensors like these."""
    return _relaunched(CACHE.get(key), tensors)


def _relaunched(quick: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    if quick is None or not quick.is_like(*tensors):
        return None
    addresses = tuple(map(_data_ptr, tensors))
    if addresses not in quick.admitted and not _is_admitted(quick, addresses):
        return None
    if quick.make is None:
        out = tensors[quick.out_at]
        if len(addresses) == len(quick.reads):  # it is also read
            addresses += (addresses[quick.out_at],)
        quick.launch(addresses, quick.stream())
        return mark_written(out)
    out = quick.make()
    quick.launch((*addresses, out.data_ptr()), quick.stream())
    return out


_ROWS_AT = 6
"""The position of the first operand's shape in the key of an eager call."""


def _rows_key(key: Any) -> Any:
    """The key of an eager call without its number of rows; None for other keys."""
    if len(key) <= _ROWS_AT or type(key[_ROWS_AT - 1]) is not int or type(key[_ROWS_AT]) is not torch.Size:
        return None
    size = key[_ROWS_AT]
    return (*key[:_ROWS_AT], "rows", size[1], *key[_ROWS_AT + 1 :]) if len(size) == 2 else None


def _resized(key: Any, tensors: Sequence[Tensor]) -> Tensor | None:
    """The result of a call with a new number of rows, if a loaded kernel serves it."""
    quick: Any = CACHE.get(_rows_key(key))
    if quick is None or not quick.is_like(*tensors):
        return None
    rows = tensors[0].shape[0]
    addresses = tuple(map(_data_ptr, tensors))
    if any(tensors[at].shape[0] != rows for at in quick.of_rows) or reduce(or_, addresses) % ADDRESS_ALIGNMENT:
        return None
    found = quick.family.find(rows, may_substitute=may_substitute())
    if found is None:
        return None
    if found.is_final:
        like = quick.is_like if quick.of_rows == (0,) else likeness_of(tensors)  # the key has the first one's rows
        store(key, Quick(like, found.prepared.launch_at, quick.stream, partial(quick.make, rows), set()))
    out = quick.make(rows)
    found.prepared.launch_at((*addresses, out.data_ptr()), quick.stream())
    return out


def may_substitute() -> bool:
    """Return whether a call may run with another kernel than its best one, until that is built.

    A graph would keep the kernel, and where PyTorch's algorithms must be deterministic, results must not change.
    """
    return not torch.are_deterministic_algorithms_enabled() and not is_captured_by_torch()


def _is_admitted(quick: Quick, addresses: tuple[int, ...]) -> bool:
    """Return whether a launch can take these addresses: they are aligned, and `out` is apart from what is read."""
    if reduce(or_, addresses) % ADDRESS_ALIGNMENT or (quick.make is None and _meets(addresses, quick)):
        return False
    if len(quick.admitted) >= _MOST:
        quick.admitted.clear()
    quick.admitted.add(addresses)
    return True


def _meets(addresses: tuple[int, ...], quick: Quick) -> bool:
    """Return whether `out` may share memory with what is read, unless it is read in place."""
    start = addresses[quick.out_at]
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
    if (
        launcher is None
        or not launcher.is_final
        or launcher.copies
        or len(own) != len(given)
        or launcher.prepared.count != len(own) + 1
    ):
        return
    if any(one.data_ptr() != other.data_ptr() for one, other in zip(own, given, strict=True)):
        return
    is_apart = writes_out and _position(made, own) < 0
    tensors = (*own, made) if is_apart else tuple(own)
    if reduce(or_, [each.data_ptr() for each in tensors]) % ADDRESS_ALIGNMENT:
        return
    launch, stream = launcher.prepared.launch_at, launcher.stream
    if writes_out:
        reads = [(_span(each), at >= matrices and have_same_layout(each, made)) for at, each in enumerate(own)]
        at = _position(made, tensors)
        store(key, Quick(likeness_of(tensors), launch, stream, None, set(), tuple(reads), _span(made), at))
        return
    make = _maker_of(made)
    store(key, Quick(likeness_of(own), launch, stream, partial(_zero, make) if starts_at_zero else make, set()))
    if launcher.family is not None and not starts_at_zero:
        _remember_rows(key, launcher, made, own)


def _remember_rows(key: Any, launcher: Launcher, made: Tensor, own: Sequence[Tensor]) -> None:
    """Remember a call for other numbers of rows, if it is one on matrices."""
    rows, rows_key = made.shape[0], _rows_key(key)
    if rows_key is None or rows_key in CACHE or made.dim() != 2 or not made.is_contiguous():
        return
    of_rows = tuple(at for at, each in enumerate(own) if each.dim() > 0 and each.shape[0] == rows)
    if of_rows[:1] != (0,) or rows in (made.shape[1], own[0].shape[1]) or rows == 1:
        return
    assert launcher.family is not None
    make = _row_maker_of(made)
    store(rows_key, QuickRows(launcher.family, likeness_of(own, of_rows), launcher.stream, make, of_rows))


def _row_maker_of(made: Tensor) -> Callable[[int], Tensor]:
    """Return a function that allocates a matrix like a result, with a number of rows."""
    columns, dtype, device = made.shape[1], made.dtype, made.device
    if empty_on_gpu is not None and torch.cuda.device_count() == 1:
        allocate = empty_on_gpu
        return lambda rows: allocate((rows, columns), (columns, 1), dtype)
    return lambda rows: torch.empty((rows, columns), dtype=dtype, device=device)


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
