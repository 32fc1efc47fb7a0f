"""Operators that a program registers: host tensors find those for CUDA, and `device="cuda"` is the host in them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.library import Library

from warploom.triton.host_tensors import HostTensors, all_on_host
from warploom.triton.patches import Patches

_FROM, _TO = "CUDA", "CPU"
_ANY_DEVICE = "CompositeExplicitAutograd"
_WITHOUT_MEMORY = ("Meta", "Autocast")
"""Dispatch keys of functions that compute no results, or only call the operator again."""
_PYTORCH = frozenset({"_inductor_test", "_native", "aten", "fsdp", "prims", "symm_mem"})
"""Namespaces of PyTorch itself, whose operators have kernels for the host."""
_WIDEST = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Types of numbers as tensors, which take part in a result's type like the numbers: by their kind only."""


class _Redirected:
    """CPU kernels that call an operator's kernel for CUDA; they are unregistered at the end."""

    def __init__(self, mode: HostTensors) -> None:
        self._mode = mode
        self._libraries: dict[str, Library] = {}
        self._names: set[str] = set()
        self._impl = Library.impl  # before it is replaced

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, namespace: str, name: str) -> None:
        """Redirect an operator, `name` with its overload after a dot."""
        qualified = f"{namespace}::{name}"
        if qualified in self._names:
            return
        self._names.add(qualified)
        if namespace not in self._libraries:
            self._libraries[namespace] = Library(namespace, "FRAGMENT")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a kernel for the CPU is overridden, until the end
            self._impl(self._libraries[namespace], name, self._mode.inside(_redispatched(qualified)), _TO)

    def clear(self) -> None:
        for each in self._libraries.values():
            each._destroy()


def _redispatched(qualified: str) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _FROM))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        operator = _operator(qualified)
        return operator.redispatch(keys, *_as_tensors(operator, args), **kwargs)

    return kernel


def _operator(qualified: str) -> Any:
    namespace, _, name = qualified.partition("::")
    packet, _, overload = name.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _as_tensors(operator: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with numbers as tensors where an operator takes tensors: PyTorch gives Python `x, 3` for `x * 3`."""
    kinds = [str(each.type) for each in operator._schema.arguments[: len(values)]]
    return tuple(
        torch.tensor(value, dtype=_WIDEST[type(value)]) if kind == "Tensor" and type(value) in _WIDEST else value
        for kind, value in zip(kinds, values, strict=True)
    )


class _Replaced:
    """PyTorch's own operators that a program replaces for CUDA: host tensors of the emulated GPU find its functions.

    Those that the program has put on the CPU find PyTorch's, and all do when the program's library is gone.
    """

    def __init__(self, mode: HostTensors) -> None:
        self._mode = mode
        self._twins: WeakKeyDictionary[Library, Library] = WeakKeyDictionary()
        """By the program's library, the one whose kernels for the CPU call those of the program."""
        self._impl, self._destroy = Library.impl, Library._destroy  # before they are replaced

    def add(self, library: Library, name: str, function: Callable[..., Any]) -> None:
        if library not in self._twins:
            self._twins[library] = Library(library.ns, "IMPL")
        kernel = self._mode.inside(_chosen(f"{library.ns}::{name}", function))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the kernel for the CPU is overridden
            self._impl(self._twins[library], name, kernel, _TO, with_keyset=True)

    def destroy(self, library: Library) -> None:
        twin = self._twins.pop(library, None)
        if twin is not None:
            self._destroy(twin)
        self._destroy(library)

    def clear(self) -> None:
        for each in self._twins.values():
            self._destroy(each)
        self._twins.clear()


def _chosen(qualified: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel for the CPU that calls the program's for CUDA, or PyTorch's for tensors on the host."""
    before = None
    with suppress(AttributeError, RuntimeError):  # before PyTorch 2.10; an operator that the CPU does not have
        before = torch.library.get_kernel(qualified, _TO)

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if before is not None and all_on_host((*args, *kwargs.values())):
            return before.call_boxed(keys, *_as_tensors(_operator(qualified), args), **kwargs)
        return function(*args, **kwargs)

    return kernel


def redirect_operators(patches: Patches, mode: HostTensors) -> None:
    """Redirect operators that have a kernel for CUDA, and those that get one while the block lasts.

    The mode, which PyTorch switches off before it calls an operator, is active in the functions of the program.
    """
    redirected, replaced, impl = _Redirected(mode), _Replaced(mode), Library.impl
    patches.later(redirected.clear)
    patches.later(replaced.clear)

    def with_host(library: Any, operator: Any, function: Any, dispatch_key: str = "", **kwargs: Any) -> None:
        key = dispatch_key or library.dispatch_key
        name = (operator if isinstance(operator, str) else operator._schema.name).rpartition("::")[2]
        if not isinstance(operator, str) and operator._schema.overload_name:
            name = f"{name}.{operator._schema.overload_name}"
        if key == _TO and f"{library.ns}::{name}" in redirected:
            patches.later(lambda: impl(library, operator, function, dispatch_key, **kwargs) if library.m else None)
            return
        own = library.ns not in _PYTORCH or key == _FROM
        own = own and callable(function) and not key.startswith(_WITHOUT_MEMORY)
        if own and function is not torch.library.fallthrough_kernel:
            function = mode.inside(function)
        impl(library, operator, function, dispatch_key, **kwargs)
        if key == _FROM and library.ns not in _PYTORCH:
            redirected.add(library.ns, name)
        elif key == _FROM and own:
            with_keys = functools.partial(function, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _FROM)))
            replaced.add(library, name, with_keys if kwargs.get("with_keyset") else function)

    for held in sorted(torch.library._impls):
        namespace, name, key = held.split("/")
        if key in (_FROM, _ANY_DEVICE) and namespace not in _PYTORCH:
            redirected.add(namespace, name)
    patches.set(Library, "impl", with_host)

    def destroy_with_host(library: Any) -> None:
        replaced.destroy(library)

    patches.set(Library, "_destroy", destroy_with_host)
