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
    """Start a role of a kernel whose grids overlap: let the next grid start, then wait for the previous one.

    Does nothing where the configuration is not `dependent`.
    """
    if config.dependent:
        launch_dependents()
        wait_for_dependencies()
