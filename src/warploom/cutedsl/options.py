"""The options of a machine for CuTe DSL, checked together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warploom.diagnostics import Diag
from warploom.hardware.targets import MACHINES, Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `warploom.cutedsl.machine`."""

    target: str
    schedule: Any
    sms: int | None
    seed: int
    limit: int | None
    ptx: str | Path | None

    @staticmethod
    def checked(**given: Any) -> Options:
        """The options, or one error that names everything that is wrong with them."""
        options = Options(**given)
        problems = list(options._problems())
        if problems:
            raise Diag.BAD_ARGUMENTS.error(function="warploom.cutedsl.machine", what="; ".join(problems))
        return options

    def _problems(self) -> Iterator[str]:
        if self.target not in MACHINES:
            yield f"`target` is {self.target!r}; it must be one of {', '.join(MACHINES)}"
        if self.sms is not None and (type(self.sms) is not int or self.sms < 1):
            yield f"`sms` is {self.sms!r}; it must be a positive integer, or None for the number of the hardware"
        if self.ptx is not None and not Path(self.ptx).is_dir():
            yield f"`ptx` is {str(self.ptx)!r}; it must be a folder that exists"

    @property
    def hardware(self) -> Machine:
        return MACHINES[self.target]

    @property
    def sm_count(self) -> int:
        return self.sms or self.hardware.sms
