"""Every module that gives instructions their meaning, imported for that effect."""

from __future__ import annotations

from warploom.machine import access, barriers

__all__ = ["access", "barriers"]
