"""Programmatic dependent launch: a grid may start before the grid that it depends on has completed."""

from __future__ import annotations

from warploom.structured.config import HopperConfig
from warploom.trace import isa


def wait_for_dependencies() -> None:
    """Wait until the previous grids have completed and their writes are visible; without them, return at once."""
    isa.griddepcontrol.wait()


def launch_dependents() -> None:
    """Allow the next grid to start, once every CTA of this one has called this or exited."""
    isa.griddepcontrol.launch_dependents()


def begin_role(config: HopperConfig) -> None:
    """Start a role of a Hopper kernel: wait for the previous grid, if the configuration is `dependent`."""
    if config.dependent:
        wait_for_dependencies()


def end_loads(config: HopperConfig) -> None:
    """End the loads of a Hopper kernel: let the next grid start, if the configuration is `dependent`.

    The next grid then sets up its barriers during the last MMAs and the epilogue. If it started with this one, its CTAs
    would first go to SMs that this grid leaves idle, next to busy ones: bandwidth-bound kernels were 25 % slower.
    """
    if config.dependent:
        launch_dependents()
