"""Tuning: candidates measured on the GPU at hand, winners remembered, the model of the choice fitted."""

from warploom.tuning.report import Report, Row
from warploom.tuning.tuner import tune

__all__ = ["Report", "Row", "tune"]
