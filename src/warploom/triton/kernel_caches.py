"""Compiled kernels of an emulated GPU, kept apart from those of a GPU and of other targets."""

from __future__ import annotations

from collections import defaultdict
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
    """Let Triton find compiled kernels of this target only."""
    from triton.runtime.jit import JITFunction

    patches.set(JITFunction, _ATTRIBUTE, _Caches(target))
