"""Sizes on the command line: MxNxK and BxMxNxK."""

from __future__ import annotations

import re

_SIZES = re.compile(r"[0-9]{1,10}(x[0-9]{1,10}){2,3}")
_LARGEST = (1 << 31) - 1


def sizes_of(text: str) -> tuple[int, ...]:
    """The numbers of MxNxK or BxMxNxK; empty if the text is neither."""
    if not _SIZES.fullmatch(text.lower()):
        return ()
    sizes = tuple(map(int, text.lower().split("x")))
    return sizes if all(0 < size <= _LARGEST for size in sizes) else ()
