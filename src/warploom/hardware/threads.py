"""How threads are grouped."""

WARP_LANES = 32
"""Threads of a warp (PTX ISA, WARP_SZ: the same on every target so far)."""

WARPGROUP_WARPS = 4
"""Warps in a row, the first of them a multiple of four, that a wgmma needs (PTX ISA, asynchronous warpgroup level)."""
