"""Programmatic dependent launch: a grid may begin before the one it depends on has ended."""

from __future__ import annotations

from warploom.trace.isa.emit import emit


def wait_for_dependencies() -> None:
    """Go on when all grids before this one have ended and what they wrote is visible; nothing if there are none."""
    emit("griddepcontrol.wait")


def launch_dependents() -> None:
    """Let the next grid begin, once every CTA of this one has said so or ended."""
    emit("griddepcontrol.launch_dependents")
