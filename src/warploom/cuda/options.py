"""The options of `warploom cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from warploom.programs.options import ProgramOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProgramOptions):
    """The options of a run of a CUDA C++ program."""

    function: ClassVar[str] = "warploom cuda"
    repeats: int | None = None
    """Launches in a row of one kernel with the same arguments; those beyond are skipped."""

    def problems(self) -> Iterator[str]:
        yield from ProgramOptions.problems(self)
        if self.repeats is not None and (type(self.repeats) is not int or self.repeats < 1):
            yield f"`repeats` is {self.repeats!r}; it must be a positive integer, or None for all"
