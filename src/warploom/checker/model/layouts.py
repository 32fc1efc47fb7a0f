"""Layouts: tiles that a tensor copy wrote, and that a matrix descriptor or a tensor store reads in another layout.

Only what is certain is a finding. A swizzle exchanges bytes by their addresses, so that two are compared on the bytes
that are read. Integers in a tensor map are containers of anything, and data may be stored in global memory as shared
memory is to hold them; where a kernel may mean what it does there is a lint.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from warploom.checker.codes import CODES
from warploom.checker.collecting import Findings
from warploom.checker.model.shadow import Access, Shadow, span_of
from warploom.checker.report import Finding
from warploom.hardware.swizzles import GRANULE, NONE, SWIZZLES
from warploom.machine.observers.events import Touch
from warploom.machine.observers.layouts import Layout

_ROUNDED = frozenset({"tf32", "tf32_ftz"})
"""Types of tensor maps whose elements a copy rounds."""
_MEANT = {
    "f16": ("f16",), "bf16": ("bf16",), "f32": ("tf32",), "f32_ftz": ("tf32",), "tf32": ("tf32",),
    "tf32_ftz": ("tf32",), "f64": (),
}  # fmt: skip
"""The operands of MMAs that the floating-point types of tensor maps are for."""
_MOST_TOUCHES = 1 << 10


class _Doubt(NamedTuple):
    """A difference between two layouts: in words, and true if the numbers are certainly wrong."""

    text: str
    missing: str
    is_certain: bool


class Layouts:
    """Compares each tile that is read with the layout in which it was written."""

    def __init__(self, findings: Findings, lints: dict[tuple[str, object], Finding]) -> None:
        self._findings, self._lints = findings, lints
        self._fitting: set[tuple[Layout, Layout]] = set()
        """Pairs of layouts that agree wherever a tile is."""
        self._overlapping: dict[int, tuple[Touch, bool]] = {}

    def compare(self, touch: Touch, access: Access, shadow: Shadow, region: list[int]) -> None:
        """A matrix or a box is read: judge the layouts of the tiles that it is in."""
        read = touch.layout
        assert read is not None
        for write in shadow.writers(region):
            written = write.layout
            if written is None or (written, read) in self._fitting:
                continue
            for doubt in (_of_swizzles(touch, write, written, read, shadow), *_of_types(written, read)):
                if doubt is not None:
                    self._report(doubt, access, write, touch)
            if written.swizzle == read.swizzle and not read.base_offset and not any(_of_types(written, read)):
                self._fitting.add((written, read))
        if not read.contiguous and self._overlaps(touch) and any(each.layout for each in shadow.writers(region)):
            text = "Rows of the matrix share bytes: the strides of the descriptor are less than its rows take."
            self._report(_Doubt(text, "", is_certain=False), access, None, touch)

    def _overlaps(self, touch: Touch) -> bool:
        """True if a descriptor names some bytes twice."""
        known = self._overlapping.get(id(touch))
        if known is None or known[0] is not touch:
            if len(self._overlapping) >= _MOST_TOUCHES:
                self._overlapping.clear()
            twice = bool((np.diff(np.sort(touch.addresses)) < touch.width).any())
            known = self._overlapping[id(touch)] = touch, twice
        return known[1]

    def _report(self, doubt: _Doubt, access: Access, write: Access | None, touch: Touch) -> None:
        span = span_of(touch)
        parties = tuple(self._findings.access(each, span) for each in (access, write) if each is not None)
        if doubt.is_certain:
            self._findings.add("LAYOUT_MISMATCH", doubt.text, parties, missing=doubt.missing)
            return
        code, number = "LAYOUT_REINTERPRETED", -1 if write is None else write.source.number
        self._lints.setdefault(
            (code, (access.source.number, number, doubt.text)),
            Finding(code, doubt.text, parties, advice=CODES[code].advice),
        )


def _of_swizzles(touch: Touch, write: Access, written: Layout, read: Layout, shadow: Shadow) -> _Doubt | None:
    """The doubt about the places of bytes, if some that are read are elsewhere."""
    if written.swizzle == read.swizzle and not read.base_offset:
        return None
    addresses = _granules(touch)
    own = addresses[[shadow.last_write(address) is write for address in addresses.tolist()]]
    here, there = SWIZZLES[written.swizzle], SWIZZLES[read.swizzle]
    moved = int((here.apply(own) != there.apply(own, read.base_offset)).sum())
    # Patterns of rows of other lengths may exchange the same bytes of a few lines; the rows are others still.
    rows = here.span != there.span and here is not NONE and (there is not NONE or not read.contiguous)
    if not moved and (not rows or int(own.max() - own.min()) < max(there.span, GRANULE)):
        return None
    reader = "tensor map of this store" if read.contiguous else "matrix descriptor"
    base = f" and base offset {read.base_offset}" if read.base_offset else ""
    text = (
        f"The tile was copied with swizzle {written.swizzle}, and the {reader} has swizzle {read.swizzle}{base}: "
        f"{f'{moved} of {len(own)} granules of 16 bytes are elsewhere' if moved else 'its rows are elsewhere'}."
    )
    return _Doubt(text, "one layout for the tensor map and its reader", _is_certain(written, read))


def _is_certain(written: Layout, read: Layout) -> bool:
    """True if no arrangement of the data in global memory makes a swizzle and another one right.

    A store may undo a swizzle, or make one. A matrix may be in global memory as it is to be in shared memory: a box
    that is not swizzled then has whole patterns of its reader.
    """
    if read.contiguous:
        return NONE.name not in (written.swizzle, read.swizzle)
    return written.swizzle != NONE.name or written.contiguous < SWIZZLES[read.swizzle].period


def _granules(touch: Touch) -> npt.NDArray[np.int64]:
    """The offsets in shared memory of the granules that are touched."""
    starts = (touch.addresses & 0xFFFFFF).astype(np.int64) // GRANULE * GRANULE
    steps = np.arange(0, touch.width, GRANULE)
    return np.unique(starts[:, None] + steps)


def _of_types(written: Layout, read: Layout) -> tuple[_Doubt, ...]:
    """The doubts about the meaning of bytes, where a matrix is read."""
    if read.contiguous or not read.element or not written.element:
        return ()
    missing = "one element type for the tensor map and the matrix"
    if read.used > written.used:
        text = (
            f"The tensor map's type {written.element} leaves {GRANULE - written.used} of 16 bytes undefined, and the "
            f"matrix is read as {read.element}, which takes {read.used} of them."
        )
        return (_Doubt(text, missing, is_certain=True),)
    if written.element in _ROUNDED and read.element != "tf32":
        text = f"The tensor map rounds its elements to tf32, and the matrix is read as {read.element}."
        return (_Doubt(text, missing, is_certain=True),)
    if read.element not in _MEANT.get(written.element, (read.element,)):
        text = f"The tensor map has elements of type {written.element}, and the matrix is read as {read.element}."
        return (_Doubt(text, missing, is_certain=False),)
    return ()
