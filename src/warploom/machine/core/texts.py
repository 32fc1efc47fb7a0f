"""The texts that a run executes: in which flavour groups execute them, and what is added for observers and memories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.machine.engine import selection
from warploom.machine.engine.access_log import AccessLog
from warploom.machine.memory.proxy_visibility import learning
from warploom.machine.memory.store_buffers import ordering
from warploom.machine.observers.observation import observed
from warploom.machine.semantics.vectors import EngineError
from warploom.machine.translate.memory_access import Memory
from warploom.machine.translate.records import Record, Table
from warploom.machine.translate.translator import REFERENCE, Flavour
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Functions


_COUNT_AFTER = 1 << 17
"""Instructions after which the engine learns what was executed, while a run goes on."""


class Texts:
    """The texts of a grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._program, self._threads = grid, grid.program, math.prod(grid.block)
        self.flavour = self.usual = self._flavour()
        """The flavour in which groups execute at present, and the usual one of the run."""
        self.with_calls = Flavour(self.flavour.engine)
        """The flavour in which every access to memory is the reference's."""
        self.of_whole_ctas = self._alone_flavour()
        """The flavour of a group that has all threads of its CTA; None where that makes no difference."""
        self._factories: dict[tuple[bool, Flavour], tuple[Callable[..., Functions], Table | None]] = {}
        self._instructions: dict[tuple[tuple[int, ...], bool], Callable[..., Functions]] = {}
        self._counted = np.zeros_like(grid.executed)
        """The executions of blocks that were counted."""
        self.count_at = grid.budget - _COUNT_AFTER
        """The budget of the grid below which they are counted again."""

    def of_group(self, wanted: Flavour, lanes: int) -> Flavour:
        """The flavour for whole warps of a group of so many lanes."""
        if lanes == self._threads and self.of_whole_ctas is not None and wanted is self.usual:
            return self.of_whole_ctas
        return wanted

    def factory(self, masked: bool, flavour: Flavour) -> tuple[Callable[..., Functions], Table | None]:
        """The factory of the functions of a text in a flavour, and its table for native code."""
        key = (masked, flavour)
        if key not in self._factories:
            try:
                text = self._program.text(flavour, masked=masked)
                if text.table is not None:
                    text.table.begin_run()
            except EngineError as error:
                self.do_without(error)
                text = self._program.text(masked=masked)
            self._factories[key] = self._program.make(text, self._wrap), text.table
        return self._factories[key]

    def alone(self, ops: Sequence[Op], masked: bool) -> Callable[..., Functions]:
        """The factory of the functions of single instructions of a block, by the reference."""
        key = tuple(map(id, ops)), masked
        if key not in self._instructions:
            self._instructions[key] = self._program.make(self._program.alone(ops, masked=masked), self._wrap)
        return self._instructions[key]

    def count_replaced(self, table: Table, record: Record) -> None:
        """Count an instruction that the reference has executed, because its kernel is not compiled."""
        try:
            table.engine.count_replaced(record.kernel, table.uncompiled)
        except EngineError as error:
            self.do_without(error)

    def count(self) -> None:
        """Count the blocks executed since the last time, so that kernels that are executed often are optimised."""
        self.count_at = self._grid.budget - _COUNT_AFTER
        if self.usual.engine is None:
            return
        executed = self._grid.executed.copy()
        for cta in self._grid.live_ctas():
            for group in cta.all_groups:
                group.tally(executed)
        tables = [table for _, table in self._factories.values() if table is not None]
        try:
            self._program.count(executed - self._counted, tables)
        except EngineError as error:
            self.do_without(error)
        self._counted = executed

    def do_without(self, error: EngineError) -> None:
        """Go on without native code."""
        selection.disable(error)
        self.flavour = self.usual = self.with_calls = REFERENCE
        self.of_whole_ctas = None
        for group in self._grid.ready:
            group.show()

    def _flavour(self) -> Flavour:
        """Native code where there is an engine; the accesses that store buffers must see are the reference's."""
        grid, engine = self._grid, selection.engine()
        if engine is None:
            return REFERENCE
        if grid.buffers is not None:
            return Flavour(engine)
        if grid.reporter is not None:
            grid.reporter.log = AccessLog()
        memory = Memory.ONE_VIEW if grid.two_views else Memory.LATE if grid.lockstep is not None else Memory.ALL
        return Flavour(engine, memory, logged=grid.reporter is not None, at_once=grid.immediate)

    def _alone_flavour(self) -> Flavour | None:
        usual = self.usual
        if usual.engine is None or usual.memory is Memory.NONE or not self._grid.passes_alone:
            return None
        return replace(usual, alone=True) if self._program.meets_alone else None

    @property
    def _wrap(self) -> Callable[[Op, Any], Any] | None:
        grid = self._grid
        return self._wrapped if grid.observers or grid.two_views or grid.buffers is not None else None

    def _wrapped(self, op: Op, run: Any) -> Any:
        """A meaning as this run needs it."""
        grid = self._grid
        if grid.two_views:
            run = learning(op, run)
        if grid.buffers is not None:
            run = ordering(op, run)
        return observed(op, run, grid) if grid.observers else run
