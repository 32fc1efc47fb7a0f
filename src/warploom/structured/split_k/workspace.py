"""Split-K: several CTAs compute one output tile, each over its own range of k-groups."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.structured.config import MatmulConfig, Problem
from warploom.trace.language.views import Index


def split_range(total: Index, splits: int, split: Index) -> tuple[Index, Index]:
    """Return the first k-group of a split and their number: as even as possible, and none empty if `total >= splits`.

    Works on Python numbers and on device values.
    """
    start = total * split // splits
    return start, total * (split + 1) // splits - start


@dataclass(frozen=True)
class SplitKWorkspace:
    """Partial accumulators in float32 and a lock (s32, zero before the launch) per tile, at index `Tile.number`."""

    tiles: int
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.tiles, self.rows, self.columns)


def split_k_workspace(config: MatmulConfig, problem: Problem) -> SplitKWorkspace:
    """Return the workspace of a launch: an entry per CTA tile of the grid, in the kernel's orientation of A and B."""
    x, y, _ = config.grid(problem)
    return SplitKWorkspace(x * y * problem.batch, config.BM, config.accumulated_columns)
