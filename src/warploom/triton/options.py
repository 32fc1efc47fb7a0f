"""The options of a machine, checked together, and the packages that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

from warploom.diagnostics import Diag
from warploom.hardware.targets import MACHINES, Machine
from warploom.programs.options import ProgramOptions

AUTOTUNE = ("first", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(ProgramOptions):
    """The options of `warploom.triton.machine`."""

    function: ClassVar[str] = "warploom.triton.machine"
    target: str = "sm_90"
    autotune: str = "first"
    bench: bool = False

    def problems(self) -> Iterator[str]:
        yield from ProgramOptions.problems(self)
        if self.autotune not in AUTOTUNE:
            yield f"`autotune` is {self.autotune!r}; it must be one of {', '.join(AUTOTUNE)}"

    @property
    def arch(self) -> int:
        """The compute capability as Triton writes it: 90 for 9.0."""
        major, minor = self.capability
        return 10 * major + minor

    @property
    def hardware(self) -> Machine:
        """The row of the target that Triton compiles for, which has the architecture-specific instructions."""
        return MACHINES.get(f"sm_{self.arch}a") or MACHINES[f"sm_{self.arch}"]


def check_installed() -> None:
    """Report which of Triton and PyTorch is missing."""
    missing = []
    for name in ("triton", "torch"):
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            missing.append(name)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        package, what = " and ".join(missing), "`warploom.triton`"
        raise Diag.MISSING_PACKAGE.error(package=package, is_=verb, what=what, extra="triton")
