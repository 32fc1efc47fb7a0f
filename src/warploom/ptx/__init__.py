"""PTX: the language. `parse` reads it, `print_module` writes it."""

from __future__ import annotations

from warploom.ptx.parse import parse
from warploom.ptx.printer import print_module

__all__ = ["parse", "print_module"]
