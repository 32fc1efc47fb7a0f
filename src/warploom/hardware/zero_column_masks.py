"""Zero-column mask descriptors of tcgen05.mma.ws: the columns of B that are read as zero (PTX ISA Table 45).

The mask is a periodic pattern: runs of columns that are used and runs that are zeroed, in turn. Table 45 and the
examples below it disagree on which of the two fields is which; this module follows the examples.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from warploom.diagnostics import Diag
from warploom.hardware.bitfields import BitField, broken_constants, text, unpack

LAYOUT = (
    *(BitField(f"start_{i}", 8 * i, 8) for i in range(4)),
    *(BitField(f"first_{i}", 32 + i, 1) for i in range(4)),
    BitField("reserved", 36, 3, 0),
    BitField("non_zero", 39, 1),
    BitField("zero_span", 40, 8),
    BitField("use_span", 48, 8),
    BitField("shift", 56, 6),
    BitField("reserved", 62, 2, 0),
)
"""The fields from bit 0 up; spans hold one less than their length."""

SUBMASKS = {128: 1, 64: 2, 32: 4}
"""The number of equal parts of the mask for each M; each part has its own start and first span."""


@lru_cache(maxsize=256)
def decode_zero_columns(value: int, m: int, n: int) -> NDArray[np.bool_] | None:
    """A mask of the n columns that are zeroed; None if there are none."""
    got = unpack(LAYOUT, value)
    broken = broken_constants(LAYOUT, value)
    if broken:
        fields = text(LAYOUT, value)
        raise Diag.BAD_DESCRIPTOR.error(kind="zero-column mask", value=value, what="; ".join(broken), fields=fields)
    if got["shift"]:
        raise Diag.NOT_MODELLED.error(what=f"A zero-column mask with a column shift ({got['shift']})")
    if not got["non_zero"]:
        return None
    zero, use = got["zero_span"] + 1, got["use_span"] + 1
    parts = SUBMASKS[m]
    columns = np.arange(n // parts)
    masks = []
    for part in range(parts):
        phase = columns + got[f"start_{part}"] + (use if got[f"first_{part}"] else 0)
        masks.append(phase % (use + zero) >= use)
    return np.concatenate(masks)
