"""Arrivals at a barrier that a schedule keeps back (`starve:barrier NAME`): operations that complete late."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from warploom.machine.core.async_operations import Operation
from warploom.machine.core.schedule import ARRIVAL

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid


def is_late(grid: Grid, barrier: str) -> bool:
    """True if the schedule keeps the arrivals at a barrier back."""
    late = grid.late_barrier
    return bool(late) and (barrier in (late, f"barrier {late}") or barrier.startswith(f"{late}["))


def arrive_later(grid: Grid, barrier: str, arrive: Callable[[], None]) -> None:
    """Make an arrival of the current group an operation, which the schedule completes."""
    group, reporter = grid.current, grid.reporter
    assert group is not None
    issued: dict[int, int] = group.cta.state.setdefault("arrivals issued", {})
    number = issued[group.first_warp] = issued.get(group.first_warp, -1) + 1
    actor, lanes = (None, 0) if reporter is None else (reporter.actor, reporter.lanes)

    def run() -> None:
        if reporter is not None and actor is not None:
            reporter.acts(actor)
            reporter.narrow(lanes)
        arrive()

    operation = Operation(f"{group.cta.name} warp {group.first_warp}: {ARRIVAL} {number} at {barrier}", run)
    operation.issuer = group
    grid.effects += 1
    grid.flight.add(operation)
    operation.cluster.in_flight += 1
