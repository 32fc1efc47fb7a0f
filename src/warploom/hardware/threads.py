"""Sizes of groups of threads."""

WARP_LANES = 32
"""Threads of a warp (PTX ISA, WARP_SZ: the same on every target so far)."""

WARPGROUP_WARPS = 4
"""Consecutive warps, from a multiple of four on, that a wgmma needs (PTX ISA, asynchronous warpgroup level)."""

WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_LANES
"""Threads of a warpgroup."""
