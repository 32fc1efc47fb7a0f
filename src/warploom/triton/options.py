"""The options of a machine, checked together, and the packages that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from warploom.checker.rules import PROFILES
from warploom.diagnostics import Diag
from warploom.hardware.targets import MACHINES, Machine

AUTOTUNE = ("first", "all")
_TARGET = re.compile(r"sm_(\d+)[af]?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of `warploom.triton.machine`."""

    target: str = "sm_90"
    schedule: Any = "eager"
    sms: int | None = None
    check: bool | str = False
    seed: int = 0
    autotune: str = "first"
    bench: bool = False
    limit: int | None = None
    record: str | Path | None = None
    budget: int = 16

    @staticmethod
    def checked(**given: Any) -> Options:
        """The options, or one error that names everything that is wrong with them."""
        options = Options(**given)
        problems = list(options._problems())
        if problems:
            what = "; ".join(problems)
            raise Diag.BAD_ARGUMENTS.error(function="warploom.triton.machine", what=what)
        return options

    def _problems(self) -> Iterator[str]:
        if not isinstance(self.target, str) or not _TARGET.fullmatch(self.target) or self.target not in MACHINES:
            yield f"`target` is {self.target!r}; it must be one of {', '.join(MACHINES)}"
        if self.check not in (False, True, *PROFILES):
            yield f"`check` is {self.check!r:.40}; it must be True, False, or one of {', '.join(map(repr, PROFILES))}"
        if self.sms is not None and (type(self.sms) is not int or self.sms < 1):
            yield f"`sms` is {self.sms!r}; it must be a positive integer, or None for the number of the hardware"
        if type(self.budget) is not int or self.budget < 1:
            yield f"`budget` is {self.budget!r}; it must be a positive integer"
        if self.autotune not in AUTOTUNE:
            yield f"`autotune` is {self.autotune!r}; it must be one of {', '.join(AUTOTUNE)}"

    @property
    def profile(self) -> str | None:
        """The profile of the checks, or None if launches are only run."""
        return "strict" if self.check is True else self.check or None

    @property
    def arch(self) -> int:
        """The compute capability as Triton writes it: 90 for 9.0."""
        found = _TARGET.fullmatch(self.target)
        assert found
        return int(found[1])

    @property
    def hardware(self) -> Machine:
        """The row of the target that Triton compiles for, which has the architecture-specific instructions."""
        return MACHINES.get(f"sm_{self.arch}a") or MACHINES[f"sm_{self.arch}"]

    @property
    def sm_count(self) -> int:
        return self.sms or self.hardware.sms


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
        raise Diag.MISSING_PACKAGE.error(package=" and ".join(missing), what="`warploom.triton`", extra="triton")
