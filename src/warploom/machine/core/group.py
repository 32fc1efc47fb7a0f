"""A group: lanes that execute together.

A group is a convoy (the full warps of a warpgroup), one warp, or some lanes of a warp. It runs translated blocks until
it must wait, ends, or its lanes part ways. Warps that part become groups of their own; lanes that part become groups
that end at the branch's join, where the warp goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.threads import WARP_LANES, WARPGROUP_WARPS
from warploom.machine.core.lane_masks import by_target, lane_list, one_away
from warploom.machine.core.special_registers import LaneSpecials, lane_specials
from warploom.machine.engine.access_log import agent_number
from warploom.machine.engine.addresses import address_of
from warploom.machine.engine.context import AGENT, BUDGET, COUNTS, EFFECTS, LEFT, STOP, UNIFORMS, Context, table_of
from warploom.machine.memory import guard_pages
from warploom.machine.memory.byte_memory import LocalMemory
from warploom.machine.routines import turn_loop
from warploom.machine.routines.late_copies import NO_RING
from warploom.machine.routines.turn_loop import BLOCKS, CONTEXT, GROUP_WORDS, IDLE, PATIENCE, PC, RESUME
from warploom.machine.routines.turn_loop import COUNTS as COUNT_ROWS
from warploom.machine.routines.turn_loop import UNIFORMS as UNIFORM_ROWS
from warploom.machine.tensor.register_rows import RowNames
from warploom.machine.translate.blocks import BLOCKED, ENDED, PARTED, SCATTERED
from warploom.machine.translate.register_layout import FILES

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.memory.polling import Word
    from warploom.machine.translate.records import Record, Table
    from warploom.machine.translate.translator import Flavour
    from warploom.ptx.isa.table import Op

Array = npt.NDArray[Any]

WARP, WARPGROUP = WARP_LANES, WARP_LANES * WARPGROUP_WARPS
READY, WAITING, JOINING, DONE = range(4)
EXPIRED = "expired"
LOADS = "tensor load"
_PATIENCE = 256
_UNLIMITED = 1 << 62
_DETOUR_BLOCKS = 64
"""Blocks that a warp may execute on a detour."""
_POLLING_BLOCKS = 64
"""Blocks without an effect after which a group is examined for polling; twice as many each time that it is not."""
POISON = {"p": False, "h": 0xFFFF, "a": 0xFFFFFFFF, "b": 0xFFFFFFFFFFFFFFFF, "q": complex(np.nan, np.nan)}


class Waitable:
    """Something that groups wait for; code that changes it calls `notify`."""

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[Group] = []

    def notify(self) -> None:
        """Let every waiting group look again."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for group in waiters:
                group.wake()

    def describe(self) -> str:
        """A description of the wait, for the deadlock report."""
        return "something"

    def fault(self) -> WarploomError | None:
        """The error if no waiting group can ever proceed, where it is more specific than a deadlock."""
        return None


class Loads(Waitable):
    """The loads of TMEM of one warp; a CTA's state has them under (`LOADS`, warp)."""

    __slots__ = ()

    @property
    def complete(self) -> bool:
        """True if none of them is under way."""
        return True

    def report_used(self, group: Group) -> None:
        """Tell observers if, with a group's next instruction, a register of every load of its warps has been read."""


Functions = tuple[Callable[..., Any], ...]
"""The functions of a text: one for each block, or for each run of instructions that native code does not execute."""


class Storage:
    """Register files, one column per lane, and the block functions that are bound to their rows."""

    __slots__ = ("blocks", "contexts", "files", "registers", "replaced")

    def __init__(self, rows: dict[str, int], lanes: int) -> None:
        self.files: dict[str, Array] = {}
        for file, dtype in FILES.items():
            self.files[file] = guard_pages.empty((rows[file], lanes), dtype)
            self.files[file].fill(POISON[file])
        self.blocks: dict[Hashable, tuple[Functions, Table | None]] = {}
        self.replaced: dict[Hashable, dict[int, Callable[..., Any]]] = {}
        """Functions of single instructions, by the identity of their `Op`, for the blocks of tables."""
        self.registers = address_of(self.files["a"]), self.files["a"].nbytes
        """The host address of the 32-bit registers, and their bytes."""
        self.contexts: dict[tuple[int, int], Context] = {}
        """The contexts of native code, by first lane and lanes."""


class Warpgroup:
    """Four consecutive warps: their register files and their local memory."""

    def __init__(self, cta: Cta, index: int, lanes: int) -> None:
        self.cta, self.index, self.lanes = cta, index, lanes
        self.storage = Storage(cta.program.layout.rows, lanes)
        self.files, self.blocks, self.registers = self.storage.files, self.storage.blocks, self.storage.registers
        self.replaced = self.storage.replaced
        self.flags = np.zeros(2, np.int64)
        """Words that native code reads: 1 if groups of wgmmas may be incomplete, and how often each warp has committed
        one, -1 where they differ; the latter in runs with observers."""
        self.local = LocalMemory(lanes, cta.local_bytes) if cta.local_bytes else None
        specials = cta.grid.lane_specials
        if index not in specials:
            specials[index] = lane_specials(index * WARPGROUP, lanes, cta.grid.block)
        self.specials: dict[str, Array] = specials[index]
        self.state: dict[Any, Any] = {}
        self._is_new = True

    def begin(self) -> None:
        """Begin as the warpgroup of a CTA: nothing may be read from a register before it is written."""
        if not self._is_new:  # registers are filled when they are made
            for file, first, end in self.cta.program.unwritten:
                self.files[file][first:end] = POISON[file]
        self._is_new = False
        self.flags[:] = 0
        self.state.clear()
        if self.local is not None:
            self.local.begin()
        if self.cta.grid.reporter is not None:
            for context in self.storage.contexts.values():
                context.words[AGENT] = self._agent(context)

    def bind(self, context: Context) -> None:
        """Let native code use the memories of the CTA, and report in its name."""
        reporter, cta = self.cta.grid.reporter, self.cta
        log, agent, peers = None if reporter is None else reporter.log, self._agent(context), cta.cluster.peers
        copies = NO_RING if cta.ring is None else cta.ring.address
        context.bind(cta.shared, self.local, agent, log, cta.phases, cta.threads, peers, self.flags, copies)

    def _agent(self, context: Context) -> int:
        """The lanes of a context, in the entries of a log."""
        return agent_number(self.cta.number, self.index * WARPGROUP_WARPS + context.first // WARP)

    def rows(self, names: RowNames) -> Array:
        """The registers of a brace list for all lanes of the warpgroup: a view where they are adjacent."""
        file, indices = self.files[names.file], names.indices
        if names.adjacent:
            return file[indices[0] : indices[-1] + 1]
        return file[list(indices)]


class Group:
    """Some lanes of a warpgroup in lockstep: their next block and what they wait for."""

    def __init__(self, cta: Cta, warpgroup: Warpgroup, first_warp: int, warps: int) -> None:
        self.cta, self.grid, self.warpgroup = cta, cta.grid, warpgroup
        self.first_warp, self.warps = first_warp, warps
        self.number = cta.rank * len(cta.live) + first_warp
        self.first_lane = first_warp * WARP - warpgroup.index * WARPGROUP
        self.lanes = warps * WARP
        self.u: Any
        """The uniform registers: a list, or the memory in which native code has them."""
        self.counts: Any
        """The number of times that each block was executed."""
        blocks = len(cta.program.flow.blocks)
        if cta.uniforms is None:
            self.u, self.counts = cta.program.layout.uniform.copy(), [0] * blocks
        else:
            self._uniforms, self._counts = np.empty_like(cta.uniforms), np.zeros(blocks, np.int64)
            self.u, self.counts = self._uniforms.data, self._counts.data
            self._addresses = address_of(self._uniforms), address_of(self._counts)
        self.row: Any = [0] * GROUP_WORDS
        """The words that native code knows of it (`routines/turn_loop.py`)."""
        self.row_address = 0
        if cta.uniforms is not None:
            row = np.zeros(GROUP_WORDS, np.int64)
            self.row, self.row_address = row.data, address_of(row)
            self.row[UNIFORM_ROWS], self.row[COUNT_ROWS] = self._addresses
            self.row[turn_loop.ARRIVALS] = address_of(cta.arrivals)
        self._made: tuple[Functions, Table | None] | None = None
        self._made_for: tuple[bool, Flavour | None] = (False, None)
        self._shown: Table | None = None
        """The table of `show`, and its flavour."""
        self._shown_for: Flavour | None = None
        self._native: Context | None = None
        self._resumed: tuple[Table, Any] | None = None
        """The table of the record with which it goes on inside of a block, and the token of the barrier before it."""

    def begin(self) -> None:
        """Begin with the first instruction."""
        cta = self.cta
        if cta.uniforms is None:
            self.u[:] = cta.program.layout.uniform
            self.counts = [0] * len(self.counts)
        else:
            np.copyto(self._uniforms, cta.uniforms)
            self._counts.fill(0)
        self.mask: Array | None = None
        self.pc = self.row[RESUME] = 0
        self.state = READY
        self.waiting: Waitable | None = None
        self.token: Any = None
        self.join: int | None = None
        self.parent: Group | None = None
        self.children = self.patience = 0
        self.joined: Array | None = None
        self.brood: list[Group] = []
        self.row[IDLE], self.row[PATIENCE] = 0, _POLLING_BLOCKS
        self.polled: tuple[Word, ...] = ()
        self.agent: Any = None
        """Its first warp in events, once it is in one."""
        self.at = 0
        """The block in which the latest execution ended."""
        self._debt = 0
        """Instructions of a warp that ran alone on a detour, which the limit does not count yet."""

    @property
    def pc(self) -> int:
        """The next block."""
        found: int = self.row[PC]
        return found

    @pc.setter
    def pc(self, block: int) -> None:
        self.row[PC] = block

    def show(self) -> None:
        """Let native code execute the group's turns, where Python need not begin them."""
        row, table = self.row, self._shown
        if self.mask is not None:
            row[BLOCKS] = 0
            return
        if self._shown_for is not self.cta.mode.flavour:
            table = self._show_table()
        if table is None:
            return
        if self.token is not None:
            # A barrier that it has waited for: where nothing notes that it passes, it goes on after it.
            waiting = table.waiting[row[PC]]
            if waiting < 0 or not getattr(self.token, "passes", False):
                row[BLOCKS] = 0
                return
            self._resumed = table, self.token
            self.token, row[RESUME] = None, table.after[waiting]
        row[BLOCKS] = table.blocks_at

    def _show_table(self) -> Table | None:
        """Let native code know the table of the usual flavour, and what it needs to execute it."""
        row, grid = self.row, self.grid
        self._shown_for, row[BLOCKS] = self.cta.mode.flavour, 0
        table = self._shown = self.code(masked=False, usual=True)[1]
        if table is not None:
            row[CONTEXT] = self._context().address
            may_wait = self.warps == 1 and grid.reporter is None and not grid.late_barrier
            row[turn_loop.BARRIERS] = table.barriers_at if may_wait else 0
        return table

    def wait_at(self, number: int) -> None:
        """Wait at the barrier of a record, at which native code has let the warp arrive."""
        table = self._shown
        assert table is not None
        self.row[PC] = self.at = table.records[number - 1].block
        index, needed = table.barrier(number)
        if not self.cta.barriers[index].awaits_others(self, needed):
            raise AssertionError("native code let a warp wait at a barrier that it completes")
        self.grid.local_effects += 1  # native code has counted the effect

    @property
    def sees_change(self) -> bool:
        """True if a word that the group polls has changed, or if it is not known what it polls."""
        return not self.polled or any(word.changed for word in self.polled)

    def forget_words(self) -> None:
        """Let any effect end the polling of the group."""
        self.polled = ()

    def tally(self, blocks: Array) -> int:
        """Add the executions of blocks, by warps, to sums; return the instructions of each warp."""
        counts = np.asarray(self.counts)
        blocks += counts * self.warps
        return int((counts * self.cta.program.cost_array).sum(dtype=np.int64))

    @property
    def last_warp(self) -> int:
        return self.first_warp + self.warps - 1

    @property
    def name(self) -> str:
        """The name of the group in messages."""
        text = f"warp {self.first_warp}" if self.warps == 1 else f"warps {self.first_warp}-{self.last_warp}"
        return text if self.mask is None else f"{text} lanes {lane_list(self.mask)}"

    @property
    def active(self) -> Array:
        """The lanes that take part, always as an array."""
        return np.ones(self.lanes, np.bool_) if self.mask is None else self.mask

    def code(self, masked: bool, *, usual: bool = False) -> tuple[Functions, Table | None]:
        """The functions of a text over the registers of these warps, made when first needed, and its table for native
        code: in the present flavour, or in the `usual` one of its cluster.

        Lane groups share them. They outlive the CTA, and read what differs between CTAs (`CTA_SPECIALS`) through the
        group.
        """
        texts, mode = self.grid.texts, self.cta.mode
        wanted = mode.flavour if usual or texts.override is None else texts.override
        if self._made is not None and self._made_for == (masked, wanted):
            return self._made
        flavour = wanted if masked else texts.of_group(mode, wanted, self.lanes)
        key = (self.first_lane, self.lanes, masked, flavour)
        made = self.warpgroup.blocks.get(key)
        if made is None:
            factory, table = texts.factory(masked, flavour)
            made = self.warpgroup.blocks[key] = (self._bound(factory), table)
        self._made, self._made_for = made, (masked, wanted)
        return made

    def _bound(self, factory: Callable[..., Functions]) -> Functions:
        """Functions over the registers of these warps."""
        lanes = slice(self.first_lane, self.first_lane + self.lanes)
        files = {file: array[:, lanes] for file, array in self.warpgroup.files.items()}
        return factory(
            *(files[f] for f in FILES),
            self.lanes,
            self.cta.specials,
            LaneSpecials(self.warpgroup.specials, lanes),
            self.cta.symbols,
            1,
            b"\x01" * self.lanes,
        )

    def _context(self) -> Context:
        """The context of native code."""
        if self._native is None:
            key, contexts = (self.first_lane, self.lanes), self.warpgroup.storage.contexts
            if key not in contexts:
                warpgroup, regions = self.warpgroup, self.grid.regions
                assert regions is not None
                tables = self.grid.special_tables
                if warpgroup.index not in tables:
                    tables[warpgroup.index] = table_of(warpgroup.specials)
                contexts[key] = Context(warpgroup.files, tables[warpgroup.index], *key, regions)
                warpgroup.bind(contexts[key])
            self._native = contexts[key]
        return self._native

    def _alone(self, op: Op, mask: Array | None) -> Any:
        """Execute one instruction that native code has left to the reference."""
        key = (self.first_lane, self.lanes, mask is not None, id(op))
        made = self.warpgroup.blocks.get(key)
        if made is None:
            factory = self.grid.texts.alone([op], mask is not None)
            made = self.warpgroup.blocks[key] = (self._bound(factory), None)
        run = made[0][0]
        return run(self, self.u) if mask is None else run(self, self.u, mask)

    def _replaced(self, table: Table, record: Record, mask: Array | None) -> Any:
        """Execute one instruction whose kernel is not compiled, by the reference."""
        key = (self.first_lane, self.lanes, mask is not None, id(table), record.block)
        made = self.warpgroup.replaced.get(key)
        if made is None:
            # Those of the whole block are written together: a text for each would take longer.
            ops = table.replaced(record.block)
            functions = self._bound(self.grid.texts.alone(ops, mask is not None))
            made = self.warpgroup.replaced[key] = dict(zip(map(id, ops), functions, strict=True))
        run = made[id(record.op)]
        after = run(self, self.u) if mask is None else run(self, self.u, mask)
        self.grid.texts.count_replaced(table, record)
        return after

    def run(self, steps: int, number: int = 0) -> int:
        """Execute blocks until the group waits, ends, parts, or has had its turn; the number of those that it began.

        With the `number` of a record, native code has begun the turn and left an instruction to Python.
        """
        grid = self.grid
        grid.current = self
        if number:
            functions, table = self.code(masked=False)
            assert table is not None
            after, left, budget = self._go_on(functions, table, number, -1)
        else:
            after, left, budget = self._turn(steps, grid.budget)
        pc = self.at
        if after > PARTED:
            self.row[PC] = pc
        grid.budget = budget - self._debt
        self._debt = 0
        if after >= 0:
            grid.preempted(self)
        elif after == BLOCKED:
            grid.budget -= 1
            grid.blocked(self)
        elif after == ENDED:
            if pc == self.join:
                self._reach_join()
            else:
                self.counts[pc] += 1
                self.end()
        elif after == PARTED:
            self.counts[pc] += 1
            grid.budget -= self.cta.program.costs[pc] * self.warps
        return max(steps - left + (after < 0), 1)

    def _turn(self, left: int, budget: int) -> tuple[int, int, int]:
        """Execute so many blocks, within a budget: the next block or a code, and what is left of both."""
        if self.mask is None:
            return self.walk(self.pc, left, budget, -1)
        pc = self.pc
        while True:
            if pc == self.join:
                self.at = pc
                return ENDED, left, budget
            alone = self.parent is None or len(self.parent.brood) <= 1
            if not alone and self._gives_way(pc):
                self.at = pc
                return pc, left, budget
            blocks = left if alone else 1
            after, unused, budget = self.walk(pc, blocks, budget, -1 if self.join is None else self.join)
            left -= blocks - unused
            if after < 0 or left <= 0 or budget < 0:
                return after, left, budget
            pc = after

    def walk(self, pc: int, left: int, budget: int, stop: int) -> tuple[int, int, int]:
        """Execute up to so many blocks, within a budget, up to a block: the next block or a code, and what is left of
        both. `at` is the next block, or the one in which the code was found.
        """
        functions, table = self.code(masked=self.mask is not None)
        start, self.row[RESUME] = self.row[RESUME], 0
        if start and self._resumed is not None and self._resumed[0] is not table:
            self.token, start = self._resumed[1], 0  # the record is another table's: it passes the barrier here
        if table is not None:
            return self._walk_native(functions, table, start or table.addresses[pc], pc, left, budget, stop)
        mask, u, counts, costs, warps = self.mask, self.u, self.counts, self.cta.program.costs, self.warps
        try:
            while True:
                after: int = functions[pc](self, u) if mask is None else functions[pc](self, u, mask)
                if after < 0:
                    break
                counts[pc] += 1
                budget -= costs[pc] * warps
                pc = after
                left -= 1
                if left <= 0 or budget < 0 or pc == stop:
                    break
        except Exception as error:  # noqa: BLE001  (it is raised again, with its place)
            self._fail(error, pc)
        self.at = pc
        return after, left, budget

    def _walk_native(
        self, functions: Functions, table: Table, start: int, pc: int, left: int, budget: int, stop: int
    ) -> tuple[int, int, int]:
        context = self._context()
        words = context.words
        words[UNIFORMS], words[COUNTS] = self._addresses
        words[LEFT], words[BUDGET], words[STOP] = left, budget, stop
        if self.mask is not None:
            np.copyto(context.mask, self.mask)
        if self.token is None:
            number = table.engine.run(context.address, start)
        else:  # it has waited for the first instruction, which is Python's then
            number = (table.waiting[pc] if table.waiting[pc] >= 0 else table.entries[pc]) + 1
        return self._go_on(functions, table, number, stop)

    def _go_on(self, functions: Functions, table: Table, number: int, stop: int) -> tuple[int, int, int]:
        """Execute the instruction of a record, and native code after it, as in `walk`; or end, without a record."""
        mask, u, grid, records = self.mask, self.u, self.grid, table.records
        context, run, at = self._native or self._context(), table.engine.run, 0
        words, address = context.words, context.address
        try:
            while number > 0:
                if words[EFFECTS]:
                    grid.effects += words[EFFECTS]
                    words[EFFECTS] = 0
                record = records[number - 1]
                at = record.block
                if record.function >= 0:
                    function = functions[record.function]
                    after = function(self, u) if mask is None else function(self, u, mask)
                elif grid.reporter is not None and grid.reporter.has_full_log:
                    grid.reporter.flush()
                    number = run(address, table.starts[number - 1])
                    continue
                elif not record.kernel.address:
                    if grid.texts.reaches(table, record):
                        number = run(address, table.starts[number - 1])
                        continue
                    after = self._replaced(table, record, mask)
                elif table.is_stale(number - 1):
                    table.enter_addresses()
                    number = run(address, table.starts[number - 1])
                    continue
                else:
                    assert record.op is not None
                    after = self._alone(record.op, mask)
                if after is None:
                    number = run(address, table.after[number - 1])
                    continue
                if after < 0:
                    self.at = at
                    return after, words[LEFT], words[BUDGET]
                self.counts[at] += 1
                words[BUDGET] -= self.cta.program.costs[at] * self.warps
                words[LEFT] -= 1
                if words[LEFT] <= 0 or words[BUDGET] < 0 or after == stop:
                    self.at = after
                    return after, words[LEFT], words[BUDGET]
                number = run(address, table.addresses[after])
        except Exception as error:  # noqa: BLE001  (as above)
            self._fail(error, at)
        if words[EFFECTS]:
            grid.effects += words[EFFECTS]
            words[EFFECTS] = 0
        self.at = ~number
        return ~number, words[LEFT], words[BUDGET]

    def _fail(self, error: Exception, pc: int) -> NoReturn:
        """Raise an error of a block with its place."""
        self.pc = pc
        located = self.grid.located(error, self)
        if located is error:
            raise error
        raise located from None

    def snapshot(self) -> tuple[int, list[Any], tuple[bytes, ...]]:
        """The next block and the contents of the registers; of the uniform ones, those that may still be read."""
        lanes, u = slice(self.first_lane, self.first_lane + self.lanes), self.u
        needed = [u[index] for index in self.cta.program.shared_needs(self.pc)]
        return self.pc, needed, tuple(array[:, lanes].tobytes() for array in self.warpgroup.files.values())

    def wait(self, on: Waitable) -> None:
        """Let the group wait; the caller then returns None or False."""
        self.waiting = on
        self.state = WAITING
        on.waiters.append(self)

    def awaits_loads(self, reads: bool) -> bool:
        """Wait for the loads of TMEM whose registers the next instruction uses; False if none is under way.

        Observers get to know when an instruction `reads` a register of the last of them.
        """
        loads: Loads | None = self.cta.state.get((LOADS, self.first_warp))
        if loads is None or loads.complete:
            if loads is not None and reads and self.grid.reporter is not None:
                loads.report_used(self)
            return False
        self.wait(loads)
        return True

    def wake(self) -> None:
        if self.state == WAITING:
            self.state = READY
            self.grid.woken(self)

    def clock(self) -> int:
        return self.grid.time() & 0xFFFFFFFF

    def clock_high(self) -> int:
        return self.grid.time() >> 32

    def clock64(self) -> int:
        return self.grid.time()

    def part(self, condition: Array, mask: Array | None, taken: int, fall: int, join: int) -> int:
        """Lanes disagree at a branch: go on together if the live ones agree, else split."""
        if taken == fall:
            return taken
        if mask is not None:
            yes, no = condition & mask, mask & ~condition
            if 1 not in no.tobytes():
                return taken
            if 1 not in yes.tobytes():
                return fall
        else:
            if self.warps > 1 and self.cta.mode.detours and (number := one_away(condition, taken, fall, join)) >= 0:
                return self._detour(number, fall if taken == join else taken, join)
            yes, no = condition.copy(), ~condition
        return self._split([(yes, taken), (no, fall)], join)

    def jump(self, index: int | Array, mask: Array | None, targets: tuple[int, ...], join: int) -> int:
        """`brx.idx`: each lane branches to the target of its index."""
        if isinstance(index, int):
            if index >= len(targets):
                raise Diag.BAD_BRANCH.error(index=index, count=len(targets))
            return targets[index]
        live = self.active if mask is None else mask
        chosen = np.unique(index[live])
        if len(chosen) and int(chosen[-1]) >= len(targets):
            raise Diag.BAD_BRANCH.error(index=int(chosen[-1]), count=len(targets))
        if len(chosen) == 1:
            return targets[int(chosen[0])]
        return self._split([(live & (index == each), targets[int(each)]) for each in chosen], join)

    def scatter(self, pc: int, token: Any = None) -> int:
        """A convoy breaks up where its warps must wait apart; each executes the block itself, which begins with a
        barrier that they have passed if there is a token of it.
        """
        self.state = DONE
        for number in range(self.warps):
            warp = self._detached(number)
            warp.pc, warp.state, warp.token = pc, READY, token
            self.grid.woken(warp)
        return SCATTERED

    def _detached(self, number: int) -> Group:
        warp = self.cta.warp_group(self.first_warp + number)
        warp.u[:] = self.u
        warp.mask, warp.join, warp.parent, warp.token, warp.waiting = None, None, None, None, None
        return warp

    def _split(self, ways: list[tuple[Array, int]], join: int) -> int:
        if self.warps > 1:
            self._split_warps(ways, join)
        else:
            self.split_lanes(ways, join)
        return PARTED

    def _detour(self, number: int, pc: int, join: int) -> int:
        """Let one warp execute the blocks up to a join, where the others wait for it; then the convoy goes on.

        It breaks up if the warp waits, parts, takes long, or comes with other uniform registers.
        """
        warp, program, grid = self._detached(number), self.cta.program, self.grid
        warp.state, grid.current = READY, warp
        after, _, budget = warp.walk(pc, _DETOUR_BLOCKS, _UNLIMITED, join)
        self._debt += _UNLIMITED - budget
        grid.current = self
        needed = program.shared_values(join)
        if after == join and needed(warp.u) == needed(self.u):
            warp.state = DONE
            return join
        self.state = DONE
        for other in range(self.warps):
            if other != number:
                each = self._detached(other)
                each.pc, each.state = join, READY
                grid.woken(each)
        at = warp.at
        if after > PARTED:
            warp.pc = at
        if after >= 0:
            grid.woken(warp)
        elif after == BLOCKED:
            self._debt += 1
            grid.blocked(warp)
        else:
            warp.counts[at] += 1
            if after == ENDED:
                warp.end()
            else:
                self._debt += program.costs[at]
        return PARTED

    def _leave(self, ways: list[tuple[Array, int]]) -> list[tuple[Array, int]]:
        """Lanes whose way only leads out of the kernel leave at once; the ways of those that stay."""
        staying = []
        for lanes, target in ways:
            if target not in self.cta.program.flow.exit_blocks:
                staying.append((lanes, target))
                continue
            self.counts[target] += 1
            self.cta.lanes_ended(self, lanes)
        return staying

    def _split_warps(self, ways: list[tuple[Array, int]], join: int) -> None:
        """A convoy breaks up into its warps, each with its own copy of the uniform registers."""
        self.state = DONE
        chosen = [way.tobytes() for way, _ in ways]
        for number in range(self.warps):
            warp = self._detached(number)
            first, end = number * WARP, (number + 1) * WARP
            mine = [way for way, lanes in zip(ways, chosen, strict=True) if 1 in lanes[first:end]]
            if len(mine) == 1:
                warp.pc = mine[0][1]
                warp.state = READY
                self.grid.woken(warp)
            else:
                warp.split_lanes([(way[first:end].copy(), target) for way, target in mine], join)

    def split_lanes(self, ways: list[tuple[Array, int]], join: int) -> None:
        """Split lanes of one warp until they reconverge; where some only exit, the others stay together."""
        ways = self._leave(by_target(ways))
        if not ways:
            self._finish()
            return
        if len(ways) == 1:
            self.mask, self.pc = ways[0]
            self.state = READY
            self.grid.woken(self)
            return
        self.state, self.pc = JOINING, join
        self.joined = np.zeros(self.lanes, np.bool_)
        self.children, self.brood = 0, []
        meets = None if join == self.cta.program.flow.exit else join
        for lanes, target in ways:
            if target == join:
                self.joined |= lanes
                continue
            child = self.cta.lane_group(self.first_warp)
            child.u[:] = self.u
            child.mask, child.pc, child.join, child.parent = lanes, target, meets, self
            child.token, child.waiting, child.state = None, None, READY
            child.patience = _PATIENCE
            self.children += 1
            self.brood.append(child)
            self.grid.woken(child)

    def _gives_way(self, pc: int) -> bool:
        """Merge lanes of the same warp that are at this block; let those at an earlier one run first.

        Compilers thread jumps, so that lanes can meet before the join that the flow promises. Patience is bounded: the
        earlier lanes may be spinning on what these do next.
        """
        assert self.parent is not None
        behind = False
        for other in list(self.parent.brood):
            if other is self or other.state != READY or other.mask is None or self.mask is None:
                continue
            if other.pc == pc and other.token is None:
                self.mask = self.mask | other.mask
                other.state = DONE
                self.grid.has_stale = True
                self.parent.brood.remove(other)
                self.parent.children -= 1
            elif other.pc < pc:
                behind = True
        if behind and self.patience > 0:
            self.patience -= 1
            return True
        return False

    def _reach_join(self) -> None:
        """The lanes have reached the reconvergence point: the parent proceeds when all have."""
        parent = self.parent
        assert parent is not None
        assert parent.joined is not None
        assert self.mask is not None
        parent.joined |= self.mask
        self._finish()

    def end(self) -> None:
        """The lanes of this group have left the kernel."""
        self.cta.lanes_ended(self, self.mask)
        self._finish()

    def _finish(self) -> None:
        """Nothing is left for this group to do; its parent may be waiting for that."""
        self.state = DONE
        if self.parent is not None:
            if self in self.parent.brood:
                self.parent.brood.remove(self)
            self.cta.recycle(self)
            self.parent.child_done()

    def child_done(self) -> None:
        self.children -= 1
        if self.children or self.state != JOINING:
            return
        assert self.joined is not None
        joined = self.joined.tobytes()
        if 1 not in joined:
            self._finish()
            return
        self.mask = None if 0 not in joined else self.joined
        self.state = READY
        self.grid.woken(self)

    def break_join(self) -> bool:
        """Let lanes at the reconvergence point proceed alone: the last resort before a deadlock is reported."""
        if self.state != JOINING or self.joined is None or not self.joined.any() or not self.children:
            return False
        free = self.cta.lane_group(self.first_warp)
        free.u[:] = self.u
        free.mask, free.pc, free.join, free.parent = self.joined, self.pc, self.join, self.parent
        free.token, free.waiting, free.state = None, None, READY
        self.cta.broken.add(self.first_warp)
        if self.parent is not None:
            self.parent.children += 1
        self.joined = np.zeros(self.lanes, np.bool_)
        self.grid.woken(free)
        return True
