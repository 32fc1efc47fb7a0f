"""Whether a result may lie where an input does: the one answer, for arrays of every library and for prepared calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from warploom.ptx.arrays import bounds_of, buffer_of, is_array


def overlap(one: Any, other: Any) -> bool:
    """Whether two arrays may have memory in common; what is no array has none."""
    if not is_array(one) or not is_array(other):
        return False
    mine, theirs = bounds_of(one), bounds_of(other)
    return max(mine.start, theirs.start) < min(mine.stop, theirs.stop)


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
