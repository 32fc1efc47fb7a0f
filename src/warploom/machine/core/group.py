"""A group: lanes that execute together.

A group is a convoy (the full warps of a warpgroup), one warp, or some lanes of a warp. It runs translated blocks until
it must wait, ends, or its lanes part ways. Warps that part become groups of their own; lanes that part become groups
that end at the branch's join, where the warp goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.hardware.threads import WARP_LANES, WARPGROUP_WARPS
from warploom.machine.engine.access_log import agent_number
from warploom.machine.engine.context import Context, table_of
from warploom.machine.memory.byte_memory import LocalMemory
from warploom.machine.tensor.register_rows import RowNames
from warploom.machine.translate.blocks import BLOCKED, ENDED, PARTED, SCATTERED
from warploom.machine.translate.register_layout import FILES

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.memory.polling import Word
    from warploom.machine.translate.translator import Flavour

Array = npt.NDArray[Any]

WARP, WARPGROUP = WARP_LANES, WARP_LANES * WARPGROUP_WARPS
READY, WAITING, JOINING, DONE = range(4)
EXPIRED = "expired"
LOADS = "tensor load"
_PATIENCE = 256
_MOST_RUNS = 8
_CHAIN_COST = 1 << 20
"""More instructions than a chain has, times the warps of a group."""
_DETOUR_BLOCKS = 64
"""Blocks that a warp may execute on a detour."""
_POLLING_BLOCKS = 64
"""Blocks without an effect after which a group is examined for polling; twice as many each time that it is not."""
POISON = {"p": False, "h": 0xFFFF, "a": 0xFFFFFFFF, "b": 0xFFFFFFFFFFFFFFFF, "q": complex(np.nan, np.nan)}


def unfold(counts: list[int], spans: dict[tuple[int, int], int]) -> None:
    """Count the blocks of each span, from a first up to an end, one by one."""
    for (first, end), count in spans.items():
        for block in range(first, end):
            counts[block] += count
    spans.clear()


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


class Storage:
    """Register files, one column per lane, and the block functions that are bound to their rows."""

    __slots__ = ("blocks", "contexts", "files")

    def __init__(self, rows: dict[str, int], lanes: int) -> None:
        self.files: dict[str, Array] = {file: np.empty((rows[file], lanes), dtype) for file, dtype in FILES.items()}
        self.blocks: dict[Hashable, tuple[tuple[Callable[..., int], ...], tuple[int, ...]]] = {}
        self.contexts: dict[tuple[int, int], Context] = {}
        """The contexts of native code, by first lane and lanes."""


class Warpgroup:
    """Four consecutive warps: their register files and their local memory."""

    def __init__(self, cta: Cta, index: int, lanes: int) -> None:
        self.cta, self.index, self.lanes = cta, index, lanes
        used = cta.grid.pool.get((index, cta.rank))
        self.storage = used.pop() if used else Storage(cta.program.layout.rows, lanes)
        self.files, self.blocks = self.storage.files, self.storage.blocks
        for file, array in self.files.items():
            array.fill(POISON[file])
        self.local = LocalMemory(lanes, cta.local_bytes) if cta.local_bytes else None
        for context in self.storage.contexts.values():
            self.bind(context)
        specials = cta.grid.lane_specials
        if index not in specials:
            specials[index] = lane_specials(index * WARPGROUP, lanes, cta.grid.block)
        self.specials: dict[str, Array] = specials[index]
        self.state: dict[Any, Any] = {}

    def bind(self, context: Context) -> None:
        """Let native code use the memories of the CTA, and report in its name."""
        reporter, first = self.cta.grid.reporter, self.index * WARPGROUP_WARPS + context.first // WARP
        log, cta = None if reporter is None else reporter.log, self.cta
        context.bind(cta.shared, self.local, agent_number(cta.number, first), log, cta.phases, cta.threads)

    def rows(self, names: RowNames) -> Array:
        """The registers of a brace list for all lanes of the warpgroup: a view where they are adjacent."""
        file, indices = self.files[names.file], names.indices
        if names.adjacent:
            return file[indices[0] : indices[-1] + 1]
        return file[list(indices)]


def lane_specials(first: int, lanes: int, block: tuple[int, int, int]) -> dict[str, Array]:
    """The special registers that tell the threads of a warpgroup apart, the same in every CTA."""
    thread = np.arange(first, first + lanes, dtype=np.uint32)
    x, y, _ = block
    lane = thread % WARP
    bit = np.uint32(1) << lane
    specials = {
        "%tid.x": thread % x,
        "%tid.y": thread // x % y,
        "%tid.z": thread // (x * y),
        "%laneid": lane,
        "%warpid": thread // WARP,
        "%lanemask_eq": bit,
        "%lanemask_lt": bit - np.uint32(1),
        "%lanemask_le": bit | (bit - np.uint32(1)),
        "%lanemask_gt": ~(bit | (bit - np.uint32(1))),
        "%lanemask_ge": ~(bit - np.uint32(1)),
    }
    for array in specials.values():
        array.setflags(write=False)
    return specials


class Group:
    """Some lanes of a warpgroup in lockstep: their next block and what they wait for."""

    def __init__(self, cta: Cta, warpgroup: Warpgroup, first_warp: int, warps: int) -> None:
        self.cta, self.grid, self.warpgroup = cta, cta.grid, warpgroup
        self.first_warp, self.warps = first_warp, warps
        self.number = cta.rank * len(cta.live) + first_warp
        self.first_lane = first_warp * WARP - warpgroup.index * WARPGROUP
        self.lanes = warps * WARP
        self.u: list[Any] = cta.program.layout.uniform.copy()
        self.mask: Array | None = None
        self.pc = 0
        self.state = READY
        self.waiting: Waitable | None = None
        self.token: Any = None
        self.join: int | None = None
        self.parent: Group | None = None
        self.children = 0
        self.joined: Array | None = None
        self.brood: list[Group] = []
        self.patience = 0
        self.idle, self.patient_for = 0, _POLLING_BLOCKS
        self.polled: tuple[Word, ...] = ()
        self._made: tuple[tuple[Callable[..., int], ...], tuple[int, ...]] | None = None
        self._made_for: tuple[bool, Flavour | None] = (False, None)
        self.last = 0
        """The last block of a chain that was executed."""
        self._counts: list[int] = [0] * len(cta.program.flow.blocks)
        self._spans: dict[tuple[int, int], int] = {}
        """The runs of chains, from a first block up to an end, that `counts` does not have yet."""
        self._debt = 0
        """Instructions of a warp that ran alone on a detour, which the limit does not count yet."""

    @property
    def counts(self) -> list[int]:
        """The number of times that each block was executed."""
        if self._spans:
            unfold(self._counts, self._spans)
        return self._counts

    def tally(self, blocks: list[int], spans: dict[tuple[int, int], int]) -> int:
        """Add the executions of blocks and chains, by warps, to sums; return the instructions of each warp."""
        counts, warps, own = self._counts, self.warps, 0
        costs, sums = self.cta.program.costs, self.cta.program.cost_sums
        for span, count in self._spans.items():
            spans[span] = spans.get(span, 0) + count * warps
            own += count * (sums[span[1]] - sums[span[0]])
        for index in compress(range(len(counts)), counts):
            blocks[index] += counts[index] * warps
            own += counts[index] * costs[index]
        return own

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

    def blocks(self, masked: bool) -> tuple[tuple[Callable[..., int], ...], tuple[int, ...]]:
        """The block functions over the registers of these warps, made when first needed, and the entries of chains.

        Lane groups share them. They outlive the CTA, and read what differs between CTAs (`CTA_SPECIALS`) through the
        group.
        """
        grid = self.grid
        if self._made is not None and self._made_for == (masked, grid.flavour):
            return self._made
        flavour = grid.flavour_of(self.lanes) if not masked else grid.flavour
        self._made, self._made_for = self._in_flavour(masked, flavour), (masked, grid.flavour)
        return self._made

    def _in_flavour(self, masked: bool, flavour: Flavour) -> tuple[tuple[Callable[..., int], ...], tuple[int, ...]]:
        key = (self.first_lane, self.lanes, masked, flavour)
        made = self.warpgroup.blocks.get(key)
        if made is None:
            factory, entries = self.grid.factory(masked, flavour)
            made = self.warpgroup.blocks[key] = (self._bound(factory), entries)
        return made

    def _bound(self, factory: Callable[..., tuple[Callable[..., int], ...]]) -> tuple[Callable[..., int], ...]:
        """Block functions over the registers of these warps."""
        lanes = slice(self.first_lane, self.first_lane + self.lanes)
        files = {file: array[:, lanes] for file, array in self.warpgroup.files.items()}
        return factory(
            *(files[f] for f in FILES),
            self.lanes,
            self.cta.specials,
            {name: array[lanes] for name, array in self.warpgroup.specials.items()},
            self.cta.symbols,
            1,
            b"\x01" * self.lanes,
            self._context(),
        )

    def _context(self) -> Context | None:
        """The context of native code; None without an engine."""
        regions, key, contexts = self.grid.regions, (self.first_lane, self.lanes), self.warpgroup.storage.contexts
        if regions is None:
            return None
        if key not in contexts:
            warpgroup = self.warpgroup
            tables = self.grid.special_tables
            if warpgroup.index not in tables:
                tables[warpgroup.index] = table_of(warpgroup.specials)
            contexts[key] = Context(warpgroup.files, tables[warpgroup.index], *key, regions)
            warpgroup.bind(contexts[key])
        return contexts[key]

    def resume(self, segment: int, record: int, u: list[Any], mask: Array | None = None) -> int:
        """Execute the rest of a block from an instruction on that native code does not: a fault, most often."""
        if self.grid.reporter is not None:
            record = self._again(segment, record)
        key = (self.first_lane, self.lanes, mask is not None, segment, record)
        made = self.warpgroup.blocks.get(key)
        if made is None:
            rest = self.grid.rest(segment, record, mask is not None)
            made = self.warpgroup.blocks[key] = (self._bound(rest), ())
        run = made[0][0]
        return run(self, u) if mask is None else run(self, u, mask)

    def interrupted(self, segment: int, record: int, u: list[Any]) -> int:
        """Native code has left a chain: the turn is over, or the reference must execute an instruction."""
        found = self.cta.program.segments[segment]
        if self.grid.reporter is not None:
            record = self._again(segment, record)
        begun = found.boundaries.get(record)
        if begun is not None:
            self.last = begun - 1
            return begun
        self.last = found.block if record == len(found.records) else found.records[record].block
        return self.resume(segment, record, u)

    def _again(self, segment: int, record: int) -> int:
        """Let native code go on after a full log was reported; the record that it returns at, or the number of all."""
        reporter, program = self.grid.reporter, self.cta.program
        log = None if reporter is None else reporter.log
        context, engine = self._context(), self.grid.flavour.engine
        records, boundaries = program.segments[segment].records, program.segments[segment].boundaries
        while log is not None and log.is_full and record < len(records) and record not in boundaries:
            assert reporter is not None
            assert context is not None
            assert engine is not None
            reporter.flush()
            start = program.functions[f"R{segment}"] + 8 * program.segments[segment].starts[record]
            record = engine.run(context.address, start) - 1
            record = len(records) if record < 0 else record
            self.grid.effects += context.effects[0]
            context.effects[0] = 0
        return record

    def run(self, steps: int) -> int:
        """Execute blocks until the group waits, ends, parts, or has had its turn; the number of those that it began."""
        turn = steps
        counts, spans, costs = self._counts, self._spans, self.cta.program.costs
        pc, mask, u = self.pc, self.mask, self.u
        chained = False
        sums = self.cta.program.cost_sums
        self.grid.current = self
        budget = self.grid.budget
        try:
            if mask is None:
                blocks, entries = self.blocks(masked=False)
                warps, waited = self.warps, None
                if self.token is not None and self.lanes == self.cta.threads:
                    # It has arrived at a barrier, as warps that have become one group since: that is not done again.
                    waited, _ = self._in_flavour(False, self.grid.flavour)
                while True:
                    if waited is None and entries and (at := entries[pc]) >= 0:
                        # Near the limit block after block, so that it is found where the reference finds it.
                        self.last, chained = pc, True
                        after = blocks[pc](self, u, at, steps if budget > _CHAIN_COST else 1)
                        chained, end = False, self.last + (after >= 0)
                        if end > pc:
                            spans[pc, end] = spans.get((pc, end), 0) + 1
                            budget -= (sums[end] - sums[pc]) * warps
                            steps -= end - pc
                            pc = end
                        if after < 0:
                            break
                        pc = after
                        if steps <= 0 or budget < 0:
                            break
                        continue
                    after = (blocks if waited is None else waited)[pc](self, u)
                    waited = None
                    if after < 0:
                        break
                    counts[pc] += 1
                    budget -= costs[pc] * warps
                    pc = after
                    steps -= 1
                    if steps <= 0 or budget < 0:
                        break
            else:
                blocks, _ = self.blocks(masked=True)
                while True:
                    if pc == self.join:
                        after = ENDED
                        break
                    if self.parent is not None and len(self.parent.brood) > 1:
                        if self._gives_way(pc):
                            after = pc
                            break
                        mask = self.mask
                    after = blocks[pc](self, u, mask)
                    if after < 0:
                        break
                    counts[pc] += 1
                    budget -= costs[pc]
                    pc = after
                    steps -= 1
                    if steps <= 0 or budget < 0:
                        break
        except Exception as error:
            self.pc = self.last if chained else pc
            located = self.grid.located(error, self)
            if located is error:
                raise
            raise located from None
        if after > PARTED:
            self.pc = pc
        self.grid.budget = budget - self._debt
        self._debt = 0
        if after >= 0:
            self.grid.preempted(self)
        elif after == BLOCKED:
            self.grid.budget -= 1
            self.grid.blocked(self)
        elif after == ENDED:
            if pc == self.join:
                self._reach_join()
            else:
                counts[pc] += 1
                self.end()
        elif after == PARTED:
            counts[pc] += 1
            self.grid.budget -= costs[pc] * self.warps
        return max(turn - steps + (after < 0), 1)

    def snapshot(self) -> tuple[int, list[Any], tuple[bytes, ...]]:
        """The next block and the contents of the registers; of the uniform ones, those that may still be read."""
        lanes, u = slice(self.first_lane, self.first_lane + self.lanes), self.u
        needed = [u[index] for index in self.cta.program.shared_needs(self.pc)]
        return self.pc, needed, tuple(array[:, lanes].tobytes() for array in self.warpgroup.files.values())

    def forget(self) -> None:
        """Drop the uniform registers; the counts stay."""
        self.u = []

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
            if self.warps > 1 and self.grid.detours and (number := _one_away(condition, taken, fall, join)) >= 0:
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

    def scatter(self, pc: int) -> int:
        """A convoy breaks up where its warps must wait apart; each executes the block itself."""
        self.state = DONE
        for number in range(self.warps):
            warp = self._detached(number)
            warp.pc, warp.state = pc, READY
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
        blocks, entries = warp.blocks(masked=False)
        counts, costs, u, after = warp.counts, program.costs, warp.u, pc
        warp.state, grid.current = READY, warp
        try:
            for _ in range(_DETOUR_BLOCKS):
                after = blocks[pc](warp, u, entries[pc], 1) if entries and entries[pc] >= 0 else blocks[pc](warp, u)
                if after < 0:
                    break
                counts[pc] += 1
                self._debt += costs[pc]
                pc = after
                if pc == join:
                    break
        except Exception as error:
            warp.pc = pc
            located = grid.located(error, warp)
            if located is error:
                raise
            raise located from None
        grid.current = self
        needed = program.shared_values(join)
        if after == join and needed(u) == needed(self.u):
            warp.state = DONE
            return join
        self.state = DONE
        for other in range(self.warps):
            if other != number:
                each = self._detached(other)
                each.pc, each.state = join, READY
                grid.woken(each)
        if after > PARTED:
            warp.pc = pc
        if after >= 0:
            grid.woken(warp)
        elif after == BLOCKED:
            self._debt += 1
            grid.blocked(warp)
        else:
            counts[pc] += 1
            if after == ENDED:
                warp.end()
            else:
                self._debt += costs[pc]
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
        ways = self._leave(_by_target(ways))
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
        if not self.joined.any():
            self._finish()
            return
        self.mask = None if self.joined.all() else self.joined
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


def _one_away(condition: Array, taken: int, fall: int, join: int) -> int:
    """The only warp that does not go to the join of a branch at once, as a whole; -1 if there is no such warp."""
    if join not in (taken, fall):
        return -1
    lanes, away = condition.tobytes(), int(fall == join)
    if lanes.count(away) != WARP:
        return -1
    first = lanes.index(away)
    return first // WARP if not first % WARP and lanes.count(away, first, first + WARP) == WARP else -1


def _by_target(ways: list[tuple[Array, int]]) -> list[tuple[Array, int]]:
    """Ways that lead to one place are one way."""
    found: dict[int, Array] = {}
    for lanes, target in ways:
        found[target] = found[target] | lanes if target in found else lanes
    return [(lanes, target) for target, lanes in found.items()]


def lane_bits(mask: Array) -> int:
    """Lanes as a bit mask: lane 0 is the lowest bit."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def lane_list(mask: Array) -> str:
    """Lanes as ranges: `0-7,12`."""
    lanes = np.flatnonzero(mask).tolist()
    parts: list[str] = []
    while lanes:
        first = last = lanes.pop(0)
        while lanes and lanes[0] == last + 1:
            last = lanes.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts) or "none"


def lanes_named(mask: Array) -> str:
    """Lanes in the words of a message: `lane 3`, `lanes 0-7,12`, or the first and the mask where they are scattered."""
    listed = lane_list(mask)
    if listed.count(",") >= _MOST_RUNS:
        listed = f"{','.join(listed.split(',')[:4])},… ({lane_bits(mask):#010x})"
    return f"lane {listed}" if listed.isdigit() else f"lanes {listed}"
