"""Programmatic dependent launch: a grid may begin before the one it depends on has ended."""

from __future__ import annotations

from warploom.structured.config import HopperConfig
from warploom.trace.isa.emit import emit


def wait_for_dependencies() -> None:
    """Go on when all grids before this one have ended and what they wrote is visible; nothing if there are none."""
    emit("griddepcontrol.wait")


def launch_dependents() -> None:
    """Let the next grid begin, once every CTA of this one has said so or ended."""
    emit("griddepcontrol.launch_dependents")


def begin_role(config: HopperConfig) -> None:
    """Start a role of a kernel whose grids overlap: let the next grid start, then wait for the previous one.

    Does nothing where the configuration is not `dependent`.
    """
    if config.dependent:
        launch_dependents()
        wait_for_dependencies()
