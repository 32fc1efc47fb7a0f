"""The kernels that are mutated, each with its launch, its arrays and the lines that a run executes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.mutations import Mutant, Source

from warploom import launcher
from warploom.host.launch import Launch
from warploom.launch_file import LaunchFile, load
from warploom.machine.core.grid import Grid
from warploom.machine.core.schedule import by_name

Arrays = dict[str, Any]
TESTS = Path(__file__).parents[1]
SCHEDULES = ("eager", "eager", "eager", "lazy", "reverse", "random")
_SLACK = 30_000


@dataclass(frozen=True)
class Base:
    """A valid kernel: `bind` makes the launch of any text over these arrays."""

    name: str
    text: str
    arrays: Arrays
    bind: Callable[[str, Arrays], Launch]
    weight: int

    def launch(self, text: str | None = None) -> Launch:
        """Bind a text to fresh copies of the arrays."""
        return self.bind(
            self.text if text is None else text, {name: array.copy() for name, array in self.arrays.items()}
        )

    def run(self, schedule: str = "eager") -> Grid:
        """Run the valid kernel to its end."""
        grid = Grid(launcher.prepare(self.launch(), by_name(schedule, 0), None, 10_000_000, (), None))
        with np.errstate(all="ignore"):
            grid.run()
        return grid

    @cached_property
    def _executed(self) -> tuple[Source, int]:
        grid = self.run()
        blocks = zip(grid.program.flow.blocks, grid.executed.tolist(), strict=True)
        lines = sorted({op.instruction.line for block, count in blocks if count for op in block.ops})
        return Source(self.text, tuple(lines)), 10_000_000 - grid.budget

    @property
    def source(self) -> Source:
        return self._executed[0]

    @property
    def limit(self) -> int:
        """The instruction limit of a mutant: more than the valid kernel needs."""
        return 2 * self._executed[1] + _SLACK

    @property
    def families(self) -> set[str]:
        """The instruction families that the kernel executes."""
        grid = self.run()
        blocks = zip(grid.program.flow.blocks, grid.executed.tolist(), strict=True)
        return {op.family for block, count in blocks if count for op in block.ops}


def _from_file(path: Path, weight: int) -> Base:
    file = load(path)

    def bind(text: str, arrays: Arrays) -> Launch:
        changed: LaunchFile = replace(file, ptx=text)
        return changed.launch(arrays)

    return Base(path.name.removesuffix(".launch.json"), file.ptx, file.allocate(), bind, weight)


def written() -> Iterator[Base]:
    """Small kernels written for this test, which together execute every instruction family."""
    for path in sorted((TESTS / "fuzz" / "kernels").glob("*.launch.json")):
        yield _from_file(path, 12)


def foreign() -> Iterator[Base]:
    """Other compilers' kernels."""
    for path in sorted((TESTS / "foreign").glob("*.launch.json")):
        yield _from_file(path, 5)


def corpus() -> Iterator[Base]:
    """The kernels of the corpus whose compilers are installed."""
    from tests.corpus.cases import CASES
    from tests.corpus.compile import CompilerMissing
    from tests.corpus.run import bound

    for case in CASES:
        try:
            prepared = case.prepare(seed=0)
        except CompilerMissing:
            continue
        compiled = prepared.compiled

        def bind(text: str, arrays: Arrays, prepared: Any = prepared, compiled: Any = compiled) -> Launch:
            args = tuple(bound(argument, arrays) for argument in prepared.args)
            return Launch(
                text, prepared.grid, compiled.block, args, compiled.entry, compiled.cluster, compiled.shared_bytes
            )

        yield Base(f"corpus {case.name}", compiled.ptx, prepared.arrays, bind, 1)


_KINDS = {"written": written, "foreign": foreign, "corpus": corpus}
KINDS = tuple(_KINDS)


@dataclass(frozen=True)
class Plan:
    """A selection of kernels to mutate, and the number of changes per mutant."""

    kinds: tuple[str, ...] = ("written", "foreign")
    depth: int = 1

    def bases(self) -> tuple[Base, ...]:
        return tuple(base for kind in self.kinds for base in _KINDS[kind]())


@dataclass(frozen=True)
class Trial:
    """One mutant and how it is run."""

    number: int
    base: Base
    mutant: Mutant
    schedule: str
    seed: int

    def __str__(self) -> str:
        return f"{self.number} ({self.base.name}, {self.schedule} {self.seed}) {self.mutant.what}"


def trial(bases: tuple[Base, ...], number: int, depth: int = 1) -> Trial:
    """The mutant of a number: an executed line for 0 and above, a declaration below 0."""
    draw = random.Random(f"trial {number}")
    base = draw.choices(bases, [each.weight for each in bases])[0]
    mutant = base.source.mutant(number) if number >= 0 else base.source.declaration(number)
    for more in range(1, depth):
        changed = Source(mutant.text, base.source.lines).mutant(more << 32 | abs(number))
        mutant = Mutant(changed.text, f"{mutant.what}; {changed.what}")
    return Trial(number, base, mutant, draw.choice(SCHEDULES), draw.randrange(1000))
