"""Semantics of the tcgen05 table: MMAs and copies, loads and stores, allocation."""

from __future__ import annotations

from warploom.machine.instructions.tcgen05 import allocation, load_store, mma

__all__ = ["allocation", "load_store", "mma"]
