"""Instruction semantics, one module (or package) per ISA table: importing this package fills the registry."""

from __future__ import annotations

from warploom.machine.instructions import (
    atomics,
    barriers,
    clc,
    cluster,
    control,
    copies,
    matrices,
    mbarrier,
    mbarrier_wait,
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
    "atomics",
    "barriers",
    "clc",
    "cluster",
    "control",
    "copies",
    "matrices",
    "mbarrier",
    "mbarrier_wait",
    "memory",
    "misc",
    "mma",
    "tcgen05",
    "tma",
    "warp",
    "wgmma",
    "wmma",
]
