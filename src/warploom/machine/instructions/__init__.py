"""Instruction semantics, one module (or package) per ISA table: importing this package fills the registry."""

from __future__ import annotations

from warploom.machine.instructions import (
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

__all__ = [
    "arithmetic",
    "atomics",
    "barriers",
    "clc",
    "cluster",
    "control",
    "copies",
    "matrices",
    "mbarrier",
    "memory",
    "misc",
    "mma",
    "tcgen05",
    "tma",
    "warp",
    "wgmma",
    "wmma",
]
