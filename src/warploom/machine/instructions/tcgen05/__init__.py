"""Semantics of the tcgen05 table: MMAs and copies, loads and stores, allocation."""

from __future__ import annotations

from warploom.machine.instructions.tcgen05 import load_store, mma
from warploom.machine.tensor import tmem

__all__ = ["load_store", "mma", "tmem"]
