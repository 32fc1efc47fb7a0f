"""`warploom demo`: a kernel of the library from a call to its numbers, then kernels of another compiler."""

from __future__ import annotations

from importlib import resources

from warploom.commands.console import output
from warploom.demo.foreign import show_foreign
from warploom.demo.fused import show_fused


def demo() -> bool:
    """Run everything; says whether the numbers were right."""
    console = output()
    fused = show_fused(console)
    with resources.as_file(resources.files("warploom") / "data") as folder:
        return show_foreign(console, folder) and fused
