"""The options of a machine for CuTe DSL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from warploom.programs.options import ProgramOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProgramOptions):
    """The options of `warploom.cutedsl.machine`."""

    function: ClassVar[str] = "warploom.cutedsl.machine"
    ptx: str | Path | None = None

    def problems(self) -> Iterator[str]:
        yield from ProgramOptions.problems(self)
        if self.ptx is not None and not Path(self.ptx).is_dir():
            yield f"`ptx` is {str(self.ptx)!r}; it must be a folder that exists"
