"""The texts that a run executes: in which flavour groups execute them, and what is added for observers and memories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from warploom.machine.engine import selection
from warploom.machine.engine.access_log import AccessLog
from warploom.machine.memory.proxy_visibility import learning, synchronises
from warploom.machine.memory.store_buffers import ordering
from warploom.machine.observers.observation import observed
from warploom.machine.semantics.vectors import EngineError
from warploom.machine.translate.memory_access import Memory
from warploom.machine.translate.records import Record, Table
from warploom.machine.translate.translator import REFERENCE, Flavour
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.cluster_modes import ClusterMode
    from warploom.machine.core.grid import Grid
    from warploom.machine.core.group import Functions


_COUNT_AFTER = 1 << 17
"""Instructions after which the engine learns what was executed, while a run goes on."""


class Texts:
    """The texts of a grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._program, self._threads = grid, grid.program, math.prod(grid.block)
        alone = selection.instructions_before_loading() if grid.eager and not grid.observers else 0
        self.may_load = grid.program.longest < alone
        """True if NumPy executes everything, until the run is so long that it pays to load llvmlite."""
        self._engine = None if self.may_load else selection.engine()
        if self._engine is not None and grid.buffers is None and grid.reporter is not None:
            grid.reporter.log = AccessLog()
        for mode in grid.modes:
            mode.flavour = self._flavour(mode)
            mode.of_whole_ctas = self._alone_flavour(mode)
        self.override: Flavour | None = None
        """The flavour in which groups execute at present, if that is not the one of their cluster's mode."""
        self.with_calls = Flavour(grid.usual.flavour.engine)
        """The flavour in which every access to memory is the reference's."""
        self._factories: dict[tuple[bool, Flavour], tuple[Callable[..., Functions], Table | None]] = {}
        self._instructions: dict[tuple[tuple[int, ...], bool], Callable[..., Functions]] = {}
        self._wraps: dict[int, tuple[Any, Any]] = {}
        """The meanings of instructions as they are, and as this run needs them, by the identity of their `Op`."""
        self._counted = np.zeros_like(grid.executed)
        """The executions of blocks that were counted."""
        self.look_at = grid.budget - (alone if self.may_load else _COUNT_AFTER)
        """The budget of the grid below which `look` is called."""

    def of_group(self, mode: ClusterMode, wanted: Flavour, lanes: int) -> Flavour:
        """The flavour for whole warps of a group of so many lanes."""
        if lanes == self._threads and mode.of_whole_ctas is not None and wanted is mode.flavour:
            return mode.of_whole_ctas
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

    def reaches(self, table: Table, record: Record) -> bool:
        """Compile the form of a record that a group has come to, if that pays at once; True if it is compiled."""
        try:
            return table.reaches(record)
        except EngineError as error:
            self.do_without(error)
            return False

    def count_replaced(self, table: Table, record: Record) -> None:
        """Count an instruction that the reference has executed, because its kernel is not compiled."""
        try:
            table.engine.count_replaced(record.kernel, table.uncompiled)
        except EngineError as error:
            self.do_without(error)

    def look(self) -> None:
        """See what was executed since the last time: load llvmlite, or let it optimise what is executed often."""
        if self.may_load:
            self._load()
        else:
            self._grid.setup.at_length()
            self._count()
        self.look_at = self._grid.budget - _COUNT_AFTER

    def end(self) -> None:
        """Count what was executed."""
        self._program.longest = max(self._program.longest, self._grid.used)
        if self.may_load:
            selection.count(self._grid.used)
        else:
            self._count()

    def _load(self) -> None:
        """Go on with native code, from the next turn of each group."""
        selection.count(self._grid.used)
        self.may_load, self._engine = False, selection.engine()
        self.with_calls = Flavour(self._engine)
        for mode in self._grid.modes:
            mode.flavour = self._flavour(mode)
            mode.of_whole_ctas = self._alone_flavour(mode)
        self._grid.__dict__.pop("routines", None)  # it was None

    def _count(self) -> None:
        """Count the blocks executed since the last time, so that kernels that are executed often are optimised."""
        if self._grid.usual.flavour.engine is None:
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
        self.with_calls = REFERENCE
        for mode in self._grid.modes:
            mode.flavour, mode.of_whole_ctas = REFERENCE, None
        for group in self._grid.ready:
            group.show()

    def _flavour(self, mode: ClusterMode) -> Flavour:
        """Native code where there is an engine; the accesses that store buffers must see are the reference's."""
        grid, engine = self._grid, self._engine
        if engine is None:
            return REFERENCE
        if grid.buffers is not None:
            return Flavour(engine)
        memory = Memory.ONE_VIEW if mode.two_views else Memory.LATE if mode.lockstep is not None else Memory.ALL
        at_once = mode.at_once or (mode.immediate and grid.eager)  # native code reports what it does
        return Flavour(engine, memory, logged=grid.reporter is not None, at_once=at_once)

    def _alone_flavour(self, mode: ClusterMode) -> Flavour | None:
        usual = mode.flavour
        if usual.engine is None or usual.memory is Memory.NONE or not mode.passes_alone:
            return None
        return replace(usual, alone=True) if self._program.meets_alone else None

    @property
    def _wrap(self) -> Callable[[Op, Any], Any] | None:
        grid = self._grid
        if grid.observers or grid.buffers is not None:
            return self._wrapped
        return self._wrapped if grid.usual.two_views and self._synchronising else None

    def _wrapped(self, op: Op, run: Any) -> Any:
        """A meaning as this run needs it."""
        known = self._wraps.get(id(op))
        if known is None or known[0] is not run:
            known = self._wraps[id(op)] = run, self._made(op, run)
        return known[1]

    def _made(self, op: Op, run: Any) -> Any:
        grid = self._grid
        if grid.usual.two_views and id(op) in self._synchronising:
            run = learning(run)
        if grid.buffers is not None:
            run = ordering(op, run)
        return observed(op, run, grid) if grid.observers else run

    @property
    def _synchronising(self) -> frozenset[int]:
        """The instructions that may synchronise by memory alone, by the identity of their `Op`."""
        program = self._program
        if program.synchronising is None:
            program.synchronising = frozenset(id(op) for op in program.ops if synchronises(op))
        return program.synchronising
