"""Whether a result may lie where an input does: the one answer, for arrays of every library and for prepared calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warploom.host.arrays import bounds_of, buffer_of, is_array, may_share, start_of

FOLDED = "its strides put several elements in one place"


def overlap(one: Any, other: Any) -> bool:
    """Whether two arrays may have memory in common; what is no array has none, nor has one that is only a shape."""
    if not is_array(one) or not is_array(other) or _is_nowhere(one) or _is_nowhere(other):
        return False
    return may_share(buffer_of(one), start_of(one), buffer_of(other), start_of(other))


def _is_nowhere(array: Any) -> bool:
    """Whether it is a tensor without memory: on PyTorch's device `meta`, or one of its compiler's."""
    return hasattr(array, "untyped_storage") and array.untyped_storage().device.type == "meta"


def is_folded(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Whether strides may put several elements of an array in one place: one steps no further than those below it."""
    steps = sorted((abs(step), extent) for step, extent in zip(strides, shape, strict=True) if extent > 1)
    span = 0
    for step, extent in steps:
        if step <= span:
            return True
        span += (extent - 1) * step
    return False


def clashes(out: Any, factors: Iterable[Any], addends: Iterable[Any], *, stores_anywhere: bool) -> bool:
    """Whether writing an array would change an input that is still to be read.

    A factor is read for many elements. An addend is read at the element that is then written, so that it may be the
    very array that is written; but not where the caller's function stores anywhere.
    """
    return any(clash(out, each, in_place=False) for each in factors) or any(
        clash(out, each, in_place=not stores_anywhere) for each in addends
    )


def clash(out: Any, read: Any, *, in_place: bool) -> bool:
    """Whether writing an array would change another; one that is read in place may be the very array."""
    return overlap(out, read) and not (in_place and _is_same(out, read))


def are_alike(one: Any, other: Any) -> bool:
    """Whether two arrays lie in memory in the same way."""
    mine, theirs = buffer_of(one), buffer_of(other)
    return (mine.shape, mine.strides, mine.dtype) == (theirs.shape, theirs.strides, theirs.dtype)


def _is_same(one: Any, other: Any) -> bool:
    return are_alike(one, other) and bounds_of(one) == bounds_of(other)
