"""Every module that gives instructions their meaning, imported for that effect."""

from __future__ import annotations

from warploom.machine import (
    access,
    atomics,
    barriers,
    clc,
    cluster,
    copies,
    matrices,
    mbarrier,
    mbarrier_wait,
    misc,
    mma,
    system,
    tcgen05,
    tensor_memory,
    tensor_moves,
    tma,
    warp,
    wgmma,
    wmma,
)

__all__ = [
    "access",
    "atomics",
    "barriers",
    "clc",
    "cluster",
    "copies",
    "matrices",
    "mbarrier",
    "mbarrier_wait",
    "misc",
    "mma",
    "system",
    "tcgen05",
    "tensor_memory",
    "tensor_moves",
    "tma",
    "warp",
    "wgmma",
    "wmma",
]
