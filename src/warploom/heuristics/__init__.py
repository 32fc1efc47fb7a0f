"""The choice of a configuration for a problem on a device: measured tables, decision trees, cost model, waves rule."""

from warploom.heuristics.device import EMULATED, Device
from warploom.heuristics.problem_key import ProblemKey, key_of
from warploom.heuristics.ranking import choose, rank, rounded_rows, rows_in_table, shared, source_of

__all__ = [
    "EMULATED",
    "Device",
    "ProblemKey",
    "choose",
    "key_of",
    "rank",
    "rounded_rows",
    "rows_in_table",
    "shared",
    "source_of",
]
