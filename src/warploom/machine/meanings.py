"""Every module that gives instructions their meaning, imported for that effect."""

from __future__ import annotations

from warploom.machine import access, barriers, clc, copies, matrices, mbarrier, mbarrier_wait, mma, tcgen05, tensor_memory, tensor_moves, tma, warp, wgmma

__all__ = ["access", "barriers", "clc", "copies", "matrices", "mbarrier", "mbarrier_wait", "mma", "tcgen05", "tensor_memory", "tensor_moves", "tma", "warp", "wgmma"]
