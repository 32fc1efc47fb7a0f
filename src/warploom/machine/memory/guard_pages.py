"""Memories that end at a page without access, on request: native code that reads or writes past one ends the process.

Native code examines every address and register row before it uses them. A mistake there would change other memory of
the process without a sign. With `WARPLOOM_GUARD_PAGES=1` the shared, local and tensor memories and the register files
of CTAs end where a guard page begins, and another one is before them. It is for the fuzzer and for files that are not
trusted: each memory takes three mappings of the operating system, of which a process may have some 65,000.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

SWITCH = "WARPLOOM_GUARD_PAGES"
_NO_ACCESS = 0
"""PROT_NONE."""
_ALIGNMENT = 64


def are_wanted() -> bool:
    """Return whether memories get guard pages: where the switch is on, and the system has `mprotect`."""
    return os.environ.get(SWITCH) == "1" and os.name == "posix"


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array like that of `np.empty`, between guard pages if they are wanted.

    Its end is at the guard page, but for what aligns its beginning to 64 bytes.
    """
    if not are_wanted():
        return np.empty(shape, dtype)
    kind = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * kind.itemsize
    page = mmap.PAGESIZE
    room = -(-max(size, 1) // page) * page
    block = np.frombuffer(mmap.mmap(-1, room + 2 * page), np.uint8)  # it keeps the mapping
    for guard in (0, page + room):
        _forbid(block.ctypes.data + guard, page)
    start = page + (room - size) // _ALIGNMENT * _ALIGNMENT
    found: npt.NDArray[Any] = block[start : start + size].view(kind).reshape(shape)
    return found


def _forbid(address: int, size: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _NO_ACCESS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
