"""Split-K: several CTAs share the depth of one output tile, each with its own range of k-groups."""

from __future__ import annotations

from dataclasses import dataclass

from warploom.structured.config import MatmulConfig, Problem
from warploom.trace.language.views import Index


def split_range(total: Index, splits: int, split: Index) -> tuple[Index, Index]:
    """Where a split begins and how many k-groups it has: as even as can be, none empty while there is one for each.

    Python numbers and device values alike.
    """
    start = total * split // splits
    return start, total * (split + 1) // splits - start


@dataclass(frozen=True)
class SplitKWorkspace:
    """Partial sums in float32, and a lock (s32, zeroed before the launch) for each tile: at `Tile.number`."""

    tiles: int
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.tiles, self.rows, self.columns)


def split_k_workspace(config: MatmulConfig, problem: Problem) -> SplitKWorkspace:
    """What a launch needs: a tile for each CTA tile of the grid as it is launched, swapped where A and B are."""
    x, y, _ = config.grid(problem)
    return SplitKWorkspace(x * y * problem.batch, config.BM, config.MMA_N)
