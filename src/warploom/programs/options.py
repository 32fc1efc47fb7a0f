"""The options of a machine for programs of another compiler, checked together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from warploom.checker.rules import PROFILES
from warploom.diagnostics import Diag
from warploom.hardware.targets import MACHINES, Machine
from warploom.machine.core.schedule import by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """The options that all of them have."""

    function: ClassVar[str]
    """The function that takes the options, for messages."""
    target: str = "sm_90a"
    schedule: Any = "eager"
    sms: int | None = None
    check: bool | str = False
    seed: int = 0
    limit: int | None = None
    budget: int = 16
    record: str | Path | None = None

    @classmethod
    def checked(cls, **given: Any) -> Self:
        """The options, or one error that names everything that is wrong with them."""
        options = cls(**given)
        problems = list(options.problems())
        if problems:
            raise Diag.BAD_ARGUMENTS.error(function=cls.function, what="; ".join(problems))
        if options.schedule != "explore":
            by_name(options.schedule, options.seed)  # an unknown name is an error before the program starts
        return options

    def problems(self) -> Iterator[str]:
        """Everything that is wrong, each in a sentence."""
        if not isinstance(self.target, str) or self.target not in MACHINES:
            yield f"`target` is {self.target!r}; it must be one of {', '.join(MACHINES)}"
        if self.check not in (False, True, *PROFILES):
            yield f"`check` is {self.check!r:.40}; it must be True, False, or one of {', '.join(map(repr, PROFILES))}"
        if self.sms is not None and (type(self.sms) is not int or self.sms < 1):
            yield f"`sms` is {self.sms!r}; it must be a positive integer, or None for the number of the hardware"
        if type(self.budget) is not int or self.budget < 1:
            yield f"`budget` is {self.budget!r}; it must be a positive integer"
        if self.record is not None and Path(self.record).is_file():
            yield f"`record` is {str(self.record)!r}, a file; it must be a directory, or a new one"

    @property
    def profile(self) -> str | None:
        """The profile of the checks, or None if launches are only run."""
        return "strict" if self.check is True else self.check or None

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability: major and minor."""
        major, minor = divmod(int(self.target.removeprefix("sm_").rstrip("af")), 10)
        return major, minor

    @property
    def hardware(self) -> Machine:
        return MACHINES[self.target]

    @property
    def sm_count(self) -> int:
        return self.sms or self.hardware.sms
