"""The PTX language: `parse` reads a module, `print_module` writes it."""

from __future__ import annotations

from warploom.ptx.syntax.parser import parse
from warploom.ptx.syntax.printer import print_module

__all__ = ["parse", "print_module"]
