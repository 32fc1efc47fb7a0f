"""`Problem`: the sizes of one GEMM as the caller sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """C (m × n) = A (m × k) · Bᵀ (n × k), `batch` times.

    Strides count elements from one row (or column) of an operand to the next; None means contiguous.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    a_stride: int | None = None
    b_stride: int | None = None
    c_stride: int | None = None
