"""Split-K in order: the partial accumulators of a tile are added one after another, under a lock that counts k-groups.

A split proceeds when the lock shows that all k-groups before its own are in the workspace. The first split stores, the
following ones add, and the final one adds in registers and writes C. It resets the lock to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from warploom.diagnostics import Diag
from warploom.structured.epilogue.staging import Values
from warploom.structured.epilogue.writer_protocols import GroupBarrier, WriterRole
from warploom.trace import isa
from warploom.trace.builder import here
from warploom.trace.language.control import While, when
from warploom.trace.language.values import Value, literal, select
from warploom.trace.language.variables import Variable
from warploom.trace.language.views import View

_VECTOR = 4
"""f32 values that a thread moves with one instruction."""


@dataclass(frozen=True)
class TileLock:
    """The lock of one tile, used by the threads of one role."""

    locks: View
    number: Value
    role: WriterRole
    barrier: GroupBarrier

    def wait(self, value: Value) -> None:
        """Wait, all threads together, until the lock has a value; writes before it was set are visible."""
        with when(self.role.first_thread):
            held = Variable("u32", self._load())
            for _ in While(lambda: held != value.to("u32")):
                held.set(self._load())
        self.barrier.sync()

    def _load(self) -> Value:
        value: Value = isa.ld(self.locks.at(self.number), order="acquire", scope="gpu", space="global", type="u32")
        return value

    def set(self, value: Value | int) -> None:
        """Set the lock after all threads have arrived, to admit the next split."""
        self.barrier.sync()
        with when(self.role.first_thread):
            isa.st(self.locks.at(self.number), value, order="release", scope="gpu", space="global", type="u32")


class SplitReduction:
    """The reduction of one tile's partial accumulators through the workspace."""

    def __init__(self, workspace: View, locks: View, work: Any, role: WriterRole, barrier: GroupBarrier) -> None:
        flat = len(workspace.shape) == 2
        problems = []
        if workspace.dtype != "f32" or locks.dtype not in ("u32", "s32"):
            problems.append(f"workspace .{workspace.dtype} and locks .{locks.dtype} must be .f32 and .s32")
        if not flat and any(isinstance(stride, Value) for stride in workspace.strides):
            problems.append("a workspace with strides from the launch must have two axes, tiles and elements")
        if problems:
            raise Diag.BAD_WRITER.error(here(), count=len(problems), what="; ".join(problems))
        self._workspace = workspace if flat else workspace.reshape(workspace.shape[0], prod(workspace.shape[1:]))
        self._work, self._role = work, role
        self._lock = TileLock(locks, work.number, role, barrier)

    @property
    def is_final(self) -> Value:
        final: Value = self._work.is_final
        return final

    def begin(self) -> None:
        """Wait for the previous splits, if there are any."""
        with when(~self._work.is_first):
            self._lock.wait(self._work.k_start)

    def end(self) -> None:
        """Admit the next split; the final one resets the lock."""
        done = (self._work.k_start + self._work.k_tiles).to("u32")
        self._lock.set(select(self.is_final, literal(0, "u32"), done))

    def add(self, number: int, values: Values) -> dict[tuple[int, int], Value]:
        """Return the values of a subtile plus what the workspace holds; the first split returns the values."""
        totals = {where: Variable("f32", value) for where, value in values.items()}
        with when(~self._work.is_first):
            for group, at in self._groups(number, list(values)):
                before = self._workspace.load(self._work.number, at, count=_VECTOR)
                for where, held in zip(group, before, strict=True):
                    totals[where].set(held + values[where])
        return {where: held.get() for where, held in totals.items()}

    def store(self, number: int, values: Values) -> None:
        """Store the values of a subtile for the next split."""
        for group, at in self._groups(number, list(values)):
            self._workspace.store([values[where] for where in group], self._work.number, at)

    def _groups(self, number: int, places: list[tuple[int, int]]) -> list[tuple[list[tuple[int, int]], Value]]:
        """Return groups of values and their offsets, so that consecutive threads access consecutive bytes."""
        first = number * len(places)
        return [
            (
                places[at : at + _VECTOR],
                (self._role.thread * _VECTOR).to("s32") + (first + at) * self._role.threads,
            )
            for at in range(0, len(places), _VECTOR)
        ]
