"""The parts of a grid, and the memory that its resident CTAs need."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from warploom.hardware.targets import Machine
from warploom.machine.core.group import WARP
from warploom.machine.core.schedule import Schedule
from warploom.machine.memory.byte_memory import FlatMemory, GlobalMemory
from warploom.machine.memory.exact_sums import ExactSums
from warploom.machine.observers.events import AnyObserver
from warploom.machine.translate.register_layout import FILES
from warploom.machine.translate.translator import Program

Triple = tuple[int, int, int]

MOST_RESIDENT_BYTES = 1 << 30
"""The most memory of all resident CTAs; where it would be more, fewer of them are resident at once."""
_BYTES_PER_NAME = 400
"""About the memory of a group for each register besides its values: the row, its views and their names."""

_TWO_VIEWS = 2 + 2 * np.dtype(np.int64).itemsize


@dataclass(frozen=True)
class Setup:
    """The parts of a grid: the program, its shape, its memories and its options."""

    program: Program
    machine: Machine
    shape: Triple
    block: Triple
    cluster: Triple
    memory: GlobalMemory
    params: FlatMemory
    symbols: dict[str, int]
    shared_symbols: dict[str, int]
    shared_bytes: int
    dynamic_bytes: int
    local_bytes: int
    sms: int
    schedule: Schedule
    limit: int | None
    observers: tuple[AnyObserver, ...]
    explicit_cluster: bool
    tensor_maps: dict[bytes, Any]
    on_progress: Callable[[int, int], None] | None = None
    timeout: float | None = None
    """Seconds after which the run is given up."""
    sums: ExactSums | None = None
    """The exact totals of sums by atomics, in a run whose results must not depend on their order."""
    at_end: Callable[[], None] = lambda: None
    """Called after a run that ended without an error."""
    at_length: Callable[[], None] = lambda: None
    """Called in a run that is long, each time that its executions are counted."""


class WarpState(NamedTuple):
    """One warp at the end of a run: its CTA, and the instructions that it executed."""

    cta: Triple
    warp: int
    instructions: int


def resident_bytes(program: Program, block: Triple, shared_bytes: int, local_bytes: int, *, two_views: bool) -> int:
    """About the memory of one resident CTA: registers, shared and local memory.

    Where shared memory has two views, each of its bytes has the numbers of a store and of a fence.
    """
    rows = program.layout.rows
    warps = -(-(block[0] * block[1] * block[2]) // WARP)
    registers = sum(rows[file] * np.dtype(dtype).itemsize for file, dtype in FILES.items())
    names = sum(rows.values()) * _BYTES_PER_NAME
    return warps * (WARP * (registers + local_bytes) + names) + shared_bytes * (_TWO_VIEWS if two_views else 1)


def resident_clusters(setup: Setup, bytes_per_cta: int) -> int:
    """The number of clusters that are resident at once."""
    machine, ctas, threads = setup.machine, math.prod(setup.cluster), math.prod(setup.block)
    per_sm = min(
        machine.blocks_per_sm,
        machine.threads_per_sm // max(threads, 1),
        machine.shared_per_sm // (setup.shared_bytes + machine.shared_reserved),
    )
    held = MOST_RESIDENT_BYTES // max(bytes_per_cta * ctas, 1)
    return max(1, min(setup.sms * max(per_sm, 1) // ctas, held))
