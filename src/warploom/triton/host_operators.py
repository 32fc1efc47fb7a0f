"""Operators that a program registers: host tensors find those for CUDA, and `device="cuda"` is the host in them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from warploom.triton.host_tensors import HostTensors
from warploom.triton.patches import Patches

_FROM, _TO = "CUDA", "CPU"
_ANY_DEVICE = "CompositeExplicitAutograd"
_WITHOUT_MEMORY = ("Meta", "Autocast")
"""Dispatch keys of functions that compute no results, or only call the operator again."""
_PYTORCH = frozenset({"_inductor_test", "_native", "aten", "fsdp", "prims", "symm_mem"})
"""Namespaces of PyTorch itself, whose operators have kernels for the host."""


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
    namespace, _, name = qualified.partition("::")
    packet, _, overload = name.partition(".")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        operator = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
        return operator.redispatch(keys, *args, **kwargs)

    return kernel


def redirect_operators(patches: Patches, mode: HostTensors) -> None:
    """Redirect operators that have a kernel for CUDA, and those that get one while the block lasts.

    The mode, which PyTorch switches off before it calls an operator, is active in the functions of the program.
    """
    redirected, impl = _Redirected(mode), Library.impl
    patches.later(redirected.clear)

    def with_host(library: Any, operator: Any, function: Any, dispatch_key: str = "", **kwargs: Any) -> None:
        key = dispatch_key or library.dispatch_key
        name = (operator if isinstance(operator, str) else operator._schema.name).rpartition("::")[2]
        if not isinstance(operator, str) and operator._schema.overload_name:
            name = f"{name}.{operator._schema.overload_name}"
        if key == _TO and f"{library.ns}::{name}" in redirected:
            patches.later(lambda: impl(library, operator, function, dispatch_key, **kwargs) if library.m else None)
            return
        own = library.ns not in _PYTORCH and callable(function) and not key.startswith(_WITHOUT_MEMORY)
        if own and function is not torch.library.fallthrough_kernel:
            function = mode.inside(function)
        impl(library, operator, function, dispatch_key, **kwargs)
        if key == _FROM and library.ns not in _PYTORCH:
            redirected.add(library.ns, name)

    for held in sorted(torch.library._impls):
        namespace, name, key = held.split("/")
        if key in (_FROM, _ANY_DEVICE) and namespace not in _PYTORCH:
            redirected.add(namespace, name)
    patches.set(Library, "impl", with_host)
