"""The instruction set, one table per family."""

from warploom.ptx.isa import (  # noqa: F401  (each fills the table)
    arithmetic,
    atomics,
    barriers,
    clc,
    cluster,
    control,
    copies,
    matrices,
    mbarrier,
    memory,
    misc,
    mma,
    tcgen05,
    tma,
    warp,
    wgmma,
    wmma,
)
from warploom.ptx.isa.table import (
    FORMS,
    Effect,
    Form,
    Op,
    Slot,
    decode,
    decode_kernel,
    form,
    match,
    nearest,
    unsupported,
)

__all__ = [
    "FORMS",
    "Effect",
    "Form",
    "Op",
    "Slot",
    "decode",
    "decode_kernel",
    "form",
    "match",
    "nearest",
    "unsupported",
]
