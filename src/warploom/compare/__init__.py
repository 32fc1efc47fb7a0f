"""Comparisons of buffers: a small grammar, its functions and their evaluation, without executing any Python."""

from warploom.compare.comparison import Comparison, Mismatch, type_of
from warploom.compare.table import FUNCTIONS, Type

__all__ = ["FUNCTIONS", "Comparison", "Mismatch", "Type", "type_of"]
