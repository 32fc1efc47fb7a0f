"""The sizes that one launch has, as the caller sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """C (m × n) = A (m × k) times B (n × k), `batch` times.

    Strides count elements from one row (or column) of an operand to the next; None means that there is no gap.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_stride: int | None = None
    b_stride: int | None = None
    c_stride: int | None = None
