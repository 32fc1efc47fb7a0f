"""Compiled kernels of an emulated GPU, kept apart from those of a GPU and of other targets."""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from warploom.triton.patches import Patches

_ATTRIBUTE = "device_caches"
"""Of a `JITFunction`: what it compiled, by the number of the device."""


class _Caches:
    """The attribute while a machine is active: one dictionary for each target, kept for a later block."""

    def __init__(self, target: str) -> None:
        self._own = f"{_ATTRIBUTE} of warploom {target}"

    def __get__(self, function: Any, owner: Any) -> Any:
        if function is None:
            return self
        held = vars(function)
        if self._own not in held:
            held[self._own] = defaultdict(held[_ATTRIBUTE].default_factory)
        return held[self._own]

    def __set__(self, function: Any, value: Any) -> None:
        """Set the attribute itself, when a function is made inside the block: it may be called after it as well."""
        vars(function)[_ATTRIBUTE] = value


def keep_apart(patches: Patches, target: str) -> None:
    """Let Triton find compiled kernels of this target, and of files of the same name, only."""
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    patches.set(JITFunction, _ATTRIBUTE, _Caches(target))
    hash_of = ASTSource.hash

    def with_file(source: Any) -> str:
        """The key on disk, with the name of the function's file: a kernel's PTX names its lines by it."""
        code = getattr(getattr(source.fn, "fn", None), "__code__", None)
        file = Path(code.co_filename).name if code is not None else ""
        return sha256(f"{hash_of(source)} {file}".encode()).hexdigest()

    patches.set(ASTSource, "hash", with_file)
