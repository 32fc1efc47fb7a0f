"""Tuning: candidates are measured on the GPU, winners stored, and the heuristics fitted."""

from warploom.tuning.report import Report, Row
from warploom.tuning.tuner import tune

__all__ = ["Report", "Row", "tune"]
