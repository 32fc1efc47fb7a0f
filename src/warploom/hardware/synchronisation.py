"""Sizes of synchronisation objects, and how long a wait may sleep."""

from __future__ import annotations

BARRIER_BYTES = 8
"""An mbarrier, size and alignment (PTX ISA 9.7.13.15.1)."""

WORK_RESPONSE_BYTES = 16
"""The reply of clusterlaunchcontrol.try_cancel, size and alignment (PTX ISA, clusterlaunchcontrol.try_cancel)."""

REGISTERS_PER_THREAD = 255
"""The most that a thread may have (CUDA C++ Programming Guide, technical specifications per compute capability)."""
