"""The result of tuning: a row for each candidate, the fastest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from warploom.heuristics.problem_key import ProblemKey


@dataclass(frozen=True)
class Row:
    """One candidate: its time, or the reason why it has none."""

    config: Any
    label: str
    us: float | None = None
    tflops: float | None = None
    ratio: float | None = None
    """The default's time divided by its own, in the same run."""
    failure: str = ""

    def __str__(self) -> str:
        if self.us is None:
            return f"{self.label}: {self.failure}"
        speed = "" if self.tflops is None else f"  {self.tflops:6.1f} TFLOP/s"
        return f"{self.us:10.2f} µs{speed}  {self.ratio:6.3f}  {self.label}"


@dataclass(frozen=True)
class Report:
    """All candidates of a problem on a GPU."""

    problem: str
    gpu: str
    rows: tuple[Row, ...]
    """Candidates with a time, the fastest first; then those without."""
    default: Any
    """The configuration that would be used without tuning."""
    best: Any
    """The winner; the default if nothing is faster by more than the noise of measurements."""
    is_remembered: bool = False
    key: ProblemKey | None = None
    """The problem whose configuration was tuned; None for your own kernel."""

    @property
    def sought(self) -> ProblemKey | None:
        """The former name of `key`."""
        return self.key

    @property
    def gain(self) -> float:
        """The default's time divided by the winner's."""
        return next((row.ratio for row in self.rows if row.config == self.best and row.ratio is not None), 1.0)

    def __str__(self) -> str:
        return "\n".join((f"{self.problem} on {self.gpu}", *map(str, self.rows)))
