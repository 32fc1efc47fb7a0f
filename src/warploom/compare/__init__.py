"""Comparisons over buffers: a small grammar, its functions, and their evaluation, without any Python being run."""

from warploom.compare.comparison import Comparison, Mismatch, type_of
from warploom.compare.table import FUNCTIONS, Type

__all__ = ["FUNCTIONS", "Comparison", "Mismatch", "Type", "type_of"]
