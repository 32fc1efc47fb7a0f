"""`warploom demo`: a library call from trace to result, then kernels of another compiler, right and broken."""

from __future__ import annotations

from importlib import resources

from warploom.commands.console import output
from warploom.demo.foreign import show_foreign
from warploom.demo.fused import show_fused


def demo() -> bool:
    """Run everything; return True if all results are right."""
    console = output()
    fused = show_fused(console)
    with resources.as_file(resources.files("warploom") / "data") as folder:
        return show_foreign(console, folder) and fused
