"""Rounds of a cluster whose warps poll with effects: they meet at barriers or store, and come back to where they were.

One warp that polls alone comes back to its instruction without an effect (`Grid._spins`). Warps that meet at a barrier
in their loop have effects on each other, so that the whole cluster is examined: its warps run by themselves, in turn,
until their states recur. Waits at mbarriers that nothing completes meanwhile may expire. A round counts if
- no warp has changed global memory or an mbarrier, issued an operation or ended; a store of what is there already is no
  change;
- the local memory of each thread is the same again;
- every register that decides about a branch, an address or a value in memory is the same again, so that a loop that
  counts its attempts goes on;
- each store to shared memory has left it as it was, or a barrier of all threads is between a change and the accesses
  of other warps. The order of the warps makes no difference then, and the next round is the same.

The cluster is suspended until a word of global memory that it has read or stored to changes, an operation of it
completes, or another warp of it can run. Under a schedule with store buffers, stores to global memory, and stores that
change shared memory, are not followed to the warps that see them: such a loop is not suspended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.machine.core.group import DONE, EXPIRED, JOINING, READY, WAITING, WARP, Group
from warploom.machine.memory.byte_memory import LocalMemory
from warploom.machine.memory.polling import MOST_WORDS, Word, polling
from warploom.machine.memory.shared_memory import SharedMemory
from warploom.machine.routines.turn_loop import RESUME
from warploom.machine.translate.expressions import CLOCKS
from warploom.ptx.analysis.control_flow import BRANCHES, LEAVES
from warploom.ptx.analysis.operand_registers import registers_of, written
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Special

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cluster, Cta
    from warploom.machine.core.grid import Grid
    from warploom.machine.translate.translator import Program

Array = npt.NDArray[Any]
Warp = tuple[int, int]
"""The rank of a CTA in its cluster, and the number of a warp in it."""
_TURNS, _TURNS_PER_WARP = 512, 96
"""Blocks that are executed in search of a round."""
_AFTER = 16_384
"""Instructions of each warp after which clusters are examined; four times as many after each that does not go round."""
_MOST_LOCAL_BYTES = 1 << 26
"""The local memory of a warpgroup, if threads store to it in a round that is examined."""
_RETRIES = 3
"""Expiries of waits, without an effect, after which the states of the warps are compared."""
_LONGEST_SKIP, _MOST_SKIPS = 40, 100
"""If clocks decide: the longest time by which they are advanced at once, as a power of two, and how often."""
_WORD = 4
_SEVERAL = -1
"""In place of a warp: several, or one that is not known."""
_OUTPUTS = ("out", "outs")
_PLAIN = ("ld", "st")
"""The families whose accesses to shared memory are seen one by one."""


@dataclass(slots=True, eq=False)
class PollingRound:
    """A suspended cluster: its warps that take part, what each of them polls, and the instructions that read it."""

    cluster: Cluster
    warps: frozenset[Warp]
    words: tuple[Word, ...]
    """The words of global memory that are read or stored to; none where any change may matter."""
    polled: dict[Warp, tuple[tuple[Word, ...], Op | None]]
    expired: frozenset[Warp]
    """The warps whose waits have expired in the round."""
    touched: bool = False
    """True if an operation of the cluster has completed since."""

    def is_over(self, parked: Iterable[Group]) -> bool:
        """True if the next round may be another one."""
        if self.touched or not self.words or any(word.changed for word in self.words):
            return True
        suspended = {id(group) for group in parked}
        groups = (group for cta in self.cluster.ctas for group in cta.all_groups)
        return any(group.state == READY and id(group) not in suspended for group in groups)

    def forget_words(self) -> None:
        """Let any effect end the round."""
        self.words = ()

    def has(self, group: Group) -> bool:
        """True if the warps of a group go round with the others."""
        return group.cta.cluster is self.cluster and (group.cta.rank, group.first_warp) in self.warps


def deciding(program: Program, blocks: Iterable[int]) -> set[str] | None:
    """The registers that decide about branches, addresses and effects of some blocks, if no others are executed; None
    if clocks do.
    """
    ops = [op for index in blocks for op in program.flow.blocks[index].ops]
    defines: dict[str, list[Op]] = {}
    for op in ops:
        for name in written(op):
            defines.setdefault(name, []).append(op)
    found = set[str]()
    work = [name for op in ops if op.form.effects or op.family in BRANCHES | LEAVES for name in _inputs(op)]
    while work:
        if (name := work.pop()) not in found:
            found.add(name)
            if any(_reads_clock(op) for op in defines.get(name, ())):
                return None
            work += [each for op in defines.get(name, ()) for each in _inputs(op)]
    return found


def _reads_clock(op: Op) -> bool:
    return any(isinstance(each, Special) and each.name in CLOCKS for each in op.operands.values())


def _inputs(op: Op) -> list[str]:
    found = [] if op.instruction.guard is None else [op.instruction.guard.register.name]
    return found + [
        name for slot in op.form.slots if slot.kind not in _OUTPUTS for name in registers_of(op.operands[slot.name])
    ]


@dataclass(slots=True)
class _Uses:
    """The accesses to one shared memory between two barriers of all threads: a change that another warp may or may not
    have seen is a conflict.
    """

    words: int
    epochs: Array = field(init=False)
    """Rows: when each word was last changed, by which warp, when it was last accessed, by which warp."""

    def __post_init__(self) -> None:
        self.epochs = np.full((4, self.words), _SEVERAL, np.int32)

    def note(self, places: Array, width: int, warp: int, epoch: int, *, changes: bool) -> bool:
        """Enter an access by a warp; False if it conflicts with one by another."""
        index = np.unique((places[:, None] + np.arange(0, max(width, 1), _WORD)).reshape(-1) // _WORD)
        changed, changer, accessed, accessor = (row[index] for row in self.epochs)
        foreign = (changed == epoch) & ((changer != warp) | (warp == _SEVERAL))
        if changes:
            foreign |= (accessed == epoch) & ((accessor != warp) | (warp == _SEVERAL))
            self.epochs[0, index], self.epochs[1, index] = epoch, warp
        self.epochs[3, index] = np.where((accessed == epoch) & (accessor != warp), _SEVERAL, warp)
        self.epochs[2, index] = epoch
        return not foreign.any()


class _Watch:
    """Collects what the warps of a cluster read and change."""

    def __init__(self, grid: Grid, cluster: Cluster) -> None:
        self._grid, self._cluster = grid, cluster
        self._uses: dict[int, _Uses] = {}
        self.begin()

    def begin(self) -> None:
        """Forget what was seen."""
        self.read: dict[tuple[int, int, int], tuple[Any, set[Warp], Op | None]] = {}
        self.stored: set[tuple[int, int]] = set()
        """The addresses and widths of stores that left global memory as it was."""
        self.expired: set[Warp] = set()
        self.conflicts = self.has_changes = self._stores = False
        self._local: dict[int, tuple[LocalMemory, Array]] = {}
        self._uses.clear()

    @property
    def _epoch(self) -> int:
        """The number of barriers of all threads of the cluster so far."""
        barrier = self._cluster.state.get("barrier")
        own = self._cluster.ctas[0].meetings if len(self._cluster.ctas) == 1 else 0
        return own + (0 if barrier is None else barrier.phase)

    def note(self, memory: Any, address: Any, width: int, mask: Any) -> None:
        """A warp reads."""
        if self._stores:
            return
        group, op = self._grid.current, self._instruction()
        assert group is not None
        for warp, places in _by_warp(group, address, _executing(group, op, mask)):
            if isinstance(memory, SharedMemory):
                self._use(memory, places, width, group.cta.rank * len(group.cta.live) + warp, changes=False)
            for place in np.unique(places).tolist():
                key = id(memory), place, width
                self.read.setdefault(key, (memory, set(), op))[1].add((group.cta.rank, warp))

    def write(self, memory: SharedMemory, write: Any, *arguments: Any) -> None:
        """A warp stores to shared memory."""
        address, _, width, mask, _, warp, *_ = arguments
        places = np.atleast_1d(np.asarray(address, np.int64))
        places = places if mask is None or len(places) != len(mask) else places[mask]
        offsets = np.unique(places) - memory.base + memory.reserved
        cells = memory.whole.reshape(-1, width)
        if offsets.size and (offsets[0] < 0 or offsets[-1] >= len(memory.whole)):
            self.conflicts = True
            write(*arguments)  # it is a fault, which this raises
            return
        before = cells[offsets // width]
        write(*arguments)
        changed = (cells[offsets // width] != before).any(1)
        group, number = self._grid.current, _SEVERAL
        if group is not None and group.number == warp:
            mine = list(_by_warp(group, address, _executing(group, self._instruction(), mask)))
            number = warp - group.first_warp + mine[0][0] if len(mine) == 1 else _SEVERAL
        for which, changes in ((changed, True), (~changed, False)):
            if which.any():
                self.has_changes |= changes
                self._use(memory, (places := np.unique(places))[which], width, number, changes=changes)

    def store(self, store: Any, *arguments: Any) -> None:
        """A warp stores to global memory: what is there already stays in the cluster."""
        address, _, width, mask, what = arguments
        memory, self._stores = self._grid.memory, True
        try:
            before = _content(memory.load(address, width, mask, what))
            store(*arguments)
            if _content(memory.load(address, width, mask, what)) == before:
                places = np.unique(address if mask is None or isinstance(address, int) else address[mask])
                self.stored |= {(place, width) for place in places.tolist()}
                self._grid.local_effects += 1
        finally:
            self._stores = False

    def keep(self, memory: LocalMemory, store: Any, *arguments: Any) -> None:
        """A warp stores to local memory."""
        if id(memory) not in self._local:
            self.conflicts |= memory.rows.nbytes > _MOST_LOCAL_BYTES
            self._local[id(memory)] = memory, memory.rows[:0] if self.conflicts else memory.rows.copy()
        store(*arguments)
        self._grid.local_effects += 1

    @property
    def local_recurs(self) -> bool:
        """True if the local memories are as they were."""
        return all(memory.rows.tobytes() == before.tobytes() for memory, before in self._local.values())

    def _use(self, memory: SharedMemory, places: Array, width: int, warp: int, *, changes: bool) -> None:
        uses = self._uses.get(memory.rank)
        if uses is None:
            uses = self._uses[memory.rank] = _Uses(-(-len(memory.whole) // _WORD) + _WORD)
        offsets = places.astype(np.int64) - memory.base + memory.reserved
        self.conflicts |= not uses.note(offsets, width, warp, self._epoch, changes=changes)

    def _instruction(self) -> Op | None:
        """The instruction that is executed."""
        frame: FrameType | None = _getframe(2)
        while frame is not None:
            op = self._grid.program.instruction_at(frame.f_code.co_filename, frame.f_lineno)
            if op is not None:
                return op
            frame = frame.f_back
        return None


def _content(value: Any) -> Any:
    """Loaded words, as a value that equals itself."""
    return value if isinstance(value, int) else value.tobytes()


def _executing(group: Group, op: Op | None, mask: Any) -> Array:
    """The lanes of a group that execute an instruction; an access to one address does not bring them."""
    found = group.active if mask is None else mask
    if mask is None and op is not None and (guard := op.instruction.guard) is not None:
        home = group.cta.program.layout.places[guard.register.name]
        if home.file == "p":
            lanes = slice(group.first_lane, group.first_lane + group.lanes)
            found = found & (group.warpgroup.files["p"][home.index, lanes] != guard.negated)
    return found


def _by_warp(group: Group, address: Any, live: Array) -> Iterator[tuple[int, Array]]:
    """The addresses of the lanes that execute, by warps; rows of matrices, which are not one for each lane, are every
    warp's.
    """
    places = np.asarray(address)
    if places.size not in (1, len(live)):
        yield from ((group.first_warp + number, places) for number in range(group.warps))
        return
    places = np.broadcast_to(places, len(live))
    for number in range(group.warps):
        lanes = slice(number * WARP, (number + 1) * WARP)
        if len(mine := places[lanes][live[lanes]]):
            yield group.first_warp + number, mine


@contextmanager
def _watching(grid: Grid, cluster: Cluster) -> Iterator[_Watch]:
    watch, memories = _Watch(grid, cluster), [cta.shared for cta in cluster.ctas]

    def noted(memory: SharedMemory) -> Any:
        write = memory.write
        return lambda *arguments: watch.write(memory, write, *arguments)

    def kept(memory: LocalMemory) -> Any:
        store = memory.store
        return lambda *arguments: watch.keep(memory, store, *arguments)

    stored, own = grid.memory.store, [each.local for cta in cluster.ctas for each in cta.warpgroups if each.local]
    with polling((grid.memory, *memories), watch):
        for memory in memories:
            memory.write = noted(memory)  # type: ignore[method-assign]
        for local in own:
            local.store = kept(local)  # type: ignore[method-assign]
        grid.memory.store = lambda *arguments: watch.store(stored, *arguments)  # type: ignore[method-assign]
        try:
            yield watch
        finally:
            for each, name in ((grid.memory, "store"), *((local, "store") for local in own)):
                vars(each).pop(name, None)
            for memory in memories:
                vars(memory).pop("write", None)


class State:
    """The state of a cluster between two turns: its groups, barriers and registers."""

    def __init__(self, grid: Grid, cluster: Cluster) -> None:
        self._grid, self._cluster = grid, cluster
        self.outline = outline(grid, cluster)
        self._counts = self._executed()
        self._registers = [
            {file: array.copy() for file, array in each.files.items()}
            for cta in cluster.ctas
            for each in cta.warpgroups
        ]
        self._uniforms = {key: _uniforms(group) for key, group in _groups(cluster)}

    def _executed(self) -> Array:
        groups = [group for cta in self._cluster.ctas for group in cta.all_groups]
        found: Array = np.array([np.asarray(group.counts) for group in groups]).sum(axis=0, dtype=np.int64)
        return found

    def executed(self) -> list[int]:
        """The blocks that have been executed since."""
        found: list[int] = np.flatnonzero(self._executed() != self._counts).tolist()
        return found

    def is_back(self) -> bool:
        """True if the cluster is in this state again."""
        return bool(outline(self._grid, self._cluster) == self.outline) and self.recurs(self.executed())

    def depends_on_clock(self) -> bool:
        """True if clocks decide about what has been executed since."""
        return deciding(self._grid.program, self.executed()) is None

    def recurs(self, blocks: list[int]) -> bool:
        """True if the registers that decide about some blocks are those of this state again."""
        program = self._grid.program
        names = deciding(program, blocks)
        if names is None:
            return False
        homes = [program.layout.places[name] for name in names]
        rows: dict[str, list[int]] = {}
        for home in homes:
            rows.setdefault(home.file, []).append(home.index)
        warpgroups = [each for cta in self._cluster.ctas for each in cta.warpgroups]
        for before, warpgroup in zip(self._registers, warpgroups, strict=True):
            for file, indices in rows.items():
                if file != "u" and before[file][indices].tobytes() != warpgroup.files[file][indices].tobytes():
                    return False
        wanted = set(rows.get("u", ()))
        for key, group in _groups(self._cluster):
            now, then = _uniforms(group), self._uniforms[key]
            if any(now[index] != then[index] for index in now if index in wanted):
                return False
        return True


def _uniforms(group: Group) -> dict[int, Any]:
    return {index: group.u[index] for index in group.cta.program.shared_needs(group.pc)}


def _groups(cluster: Cluster) -> Iterator[tuple[Any, Group]]:
    """The groups that have not ended, and where they are."""
    for cta in cluster.ctas:
        for group in cta.all_groups:
            if group.state != DONE:
                lanes = None if group.mask is None else group.mask.tobytes()
                yield (cta.rank, group.first_warp, group.warps, lanes, group.join, group.pc, group.state), group


def outline(grid: Grid, cluster: Cluster) -> Any:
    """The state of a cluster without its registers, as a value."""
    found = []
    for key, group in _groups(cluster):
        waits = None if group.waiting is None or group.state == READY else group.waiting.describe()
        joined = group.joined.tobytes() if group.state == JOINING and group.joined is not None else None
        found.append((*key, waits, joined, group.children, group.token is not None or bool(group.row[RESUME])))
    found.sort(key=repr)
    return found, [_barriers(cta) for cta in cluster.ctas], _cluster_barrier(cluster), _stores(grid, cluster)


def _barriers(cta: Cta) -> Any:
    named = [
        (index, (now := barrier.generation).arrived, now.needed, now.yes, now.voters)
        for index, barrier in sorted(cta.barriers.items())
        if barrier.generation.arrived
    ]
    meetings = [
        (repr(key), each.arrived, tuple(value.tobytes() for value in each.values))
        for key, each in cta.state.get("meetings", {}).items()
    ]
    mbarriers = [
        (offset, each.pending, each.expected, each.tx, each.phase) for offset, each in sorted(cta.mbarriers.items())
    ]
    return cta.live_threads, named, sorted(meetings), mbarriers


def _cluster_barrier(cluster: Cluster) -> Any:
    barrier = cluster.state.get("barrier")
    if barrier is None:
        return None
    return sorted(barrier.arrived.items()), sorted((key, bits) for key, bits in barrier.owing.items() if bits)


def _stores(grid: Grid, cluster: Cluster) -> Any:
    """The stores to shared memory that are still buffered."""
    if grid.buffers is None:
        return None
    return sorted((store.addresses.tobytes(), store.width) for store in grid.buffers.listed if store.home is cluster)


def examine(
    grid: Grid, cluster: Cluster, ready: list[Group], *, reverse: bool = False, expires: bool = False
) -> PollingRound | None:
    """Let the groups of a cluster that are ready run by themselves until they have gone round, if they only poll.

    Each executes a block, in the order of their warps or in the reverse order, and then the next one; then those that
    wait at mbarriers, if waits may expire. Groups that can run afterwards are in `ready`.
    """
    left = _TURNS + _TURNS_PER_WARP * sum(len(cta.live) for cta in cluster.ctas)
    power, passes = 1, 0
    with _watching(grid, cluster) as watch:
        state, resting = State(grid, cluster), set(map(id, ready))
        while True:
            ready.sort(key=_place, reverse=reverse)
            for group in tuple(ready):
                if group.state != READY:  # it has been put together with another
                    continue
                ready.remove(group)
                budget, effects, left = grid.budget, grid.effects - grid.local_effects, left - 1
                group.run(1)
                for queue in (grid.ready, grid.spent):
                    ready += queue
                    queue.clear()
                if grid.budget != budget or group.state == DONE:
                    resting.discard(id(group))
                if grid.effects - grid.local_effects != effects or watch.conflicts or grid.budget < 0:
                    return None
            ready[:] = [group for group in ready if group.state == READY]
            if expires:
                _expire(grid, cluster, watch, ready)
            if not ready or left < 0:
                return None
            passes += 1
            resting &= set(map(id, ready))
            if not resting and outline(grid, cluster) == state.outline:
                blocks = state.executed()
                is_seen = not (watch.has_changes and _reads_otherwise(grid.program, blocks))
                if is_seen and watch.local_recurs and state.recurs(blocks):
                    break
            if passes == power:  # the loop may not have begun with this state
                state, resting, power, passes = State(grid, cluster), set(map(id, ready)), 2 * power, 0
                watch.begin()
    return _round(grid, cluster, watch)


def _expire(grid: Grid, cluster: Cluster, watch: _Watch, ready: list[Group]) -> None:
    """End the waits of a cluster at mbarriers: they are ready then."""
    for group in [group for cta in cluster.ctas for group in cta.all_groups if is_expiring(group)]:
        watch.expired.add((group.cta.rank, group.first_warp))
        group.token = EXPIRED
        group.wake()
    ready += grid.ready
    grid.ready.clear()


def is_expiring(group: Group) -> bool:
    """True if a group waits for something with a time limit."""
    return group.state == WAITING and bool(getattr(group.waiting, "expires", False))


def _place(group: Group) -> tuple[int, int, bytes]:
    return group.cta.rank, group.first_warp, b"" if group.mask is None else group.mask.tobytes()


def _reads_otherwise(program: Program, blocks: list[int]) -> bool:
    """True if instructions other than loads and stores access shared memory, as far as they say."""
    for index in blocks:
        for op in program.flow.blocks[index].ops:
            if op.family not in _PLAIN and any(
                effect.verb in ("reads", "writes") and "global" not in op.instruction.opcode
                for effect in op.form.effects
            ):
                return True
    return False


def _round(grid: Grid, cluster: Cluster, watch: _Watch) -> PollingRound:
    found: dict[Warp, tuple[list[Word], Op | None]] = {}
    words: list[Word] = []
    outside = [entry for entry in watch.read.items() if entry[1][0] is grid.memory]
    stored = [Word(grid.memory, address, width, None) for address, width in watch.stored]
    for (_, address, width), (memory, warps, op) in outside or watch.read.items():
        now = Word(memory, address, width, None).now()
        word = Word(memory, address, width, now)
        words.append(word)
        for warp in warps:
            found.setdefault(warp, ([], op))[0].append(word)
    everyone = frozenset(
        (cta.rank, warp)
        for cta in cluster.ctas
        for group in cta.all_groups
        if group.state != DONE and group not in grid.parked
        for warp in range(group.first_warp, group.first_warp + group.warps)
    )
    polled = {warp: (tuple(mine), op) for warp, (mine, op) in found.items()}
    words += [Word(word.memory, word.address, word.width, word.now()) for word in stored]
    few = tuple(words) if len(words) <= MOST_WORDS else ()
    return PollingRound(cluster, everyone, few, polled, frozenset(watch.expired))


class Rounds:
    """The clusters of a grid that are suspended; their groups that could run are with the other suspended ones."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._found = grid, list[PollingRound]()
        self._after, self._next = _AFTER, 0

    def __iter__(self) -> Iterator[PollingRound]:
        return iter(self._found)

    def others(self, groups: list[Group]) -> list[Group]:
        """The groups that are in no round."""
        return [group for group in groups if not any(each.has(group) for each in self._found)]

    def has_expired(self, group: Group) -> bool:
        """True if a wait of the group has expired in its round, which changed nothing."""
        place = group.cta.rank, group.first_warp
        return any(each.cluster is group.cta.cluster and place in each.expired for each in self._found)

    def floor(self, warps: int) -> int:
        """The budget of the grid below which its clusters are examined, with so many warps."""
        return max(self._grid.budget - self._after * max(warps, 1), 0) if self._grid.program.polling_loops else 0

    def look(self) -> int:
        """Suspend the clusters that go round, up to the first that does not; the budget of the next look."""
        grid, suspended = self._grid, {id(group) for group in self._grid.parked}
        loops, count, expires = grid.program.polling_loops, len(grid.clusters), self._may_expire()
        for number in range(self._next, self._next + count):
            cluster = grid.clusters[number % count]
            groups = (group for cta in cluster.ctas for group in cta.all_groups)
            able = [group for group in groups if group.state == READY or (expires and is_expiring(group))]
            may_poll = any(group.pc in loops and id(group) not in suspended for group in able)
            if may_poll and not self._suspend(cluster):
                self._next, self._after = number % count + 1, 4 * self._after
                break
        return self.floor(sum(lanes > 0 for cta in grid.live_ctas() for lanes in cta.live))

    def recur(self) -> bool:
        """Let all go round again, with their warps in another order; False if one does not."""
        for each in list(self._found):
            self._end(each)
            if not self._suspend(each.cluster, reverse=True):
                return False
        return True

    def wake(self) -> None:
        """Let the clusters go on that may do something else now."""
        for each in [each for each in self._found if each.is_over(self._grid.parked)]:
            self._end(each)

    def _may_expire(self) -> bool:
        """True if waits for mbarriers may expire: a time limit is long, and what can move has moved before it ends."""
        grid, loops = self._grid, self._grid.program.polling_loops
        if grid.flight.count or grid.can_launch:
            return False
        return all(group.pc in loops for group in (*grid.ready, *grid.spent) if group.state == READY)

    def _end(self, found: PollingRound) -> None:
        grid = self._grid
        groups = [group for group in grid.parked if found.has(group)]
        self._found.remove(found)
        grid.parked = [group for group in grid.parked if not found.has(group)]
        grid.ready.extend(groups)

    def _suspend(self, cluster: Cluster, *, reverse: bool = False) -> bool:
        """Suspend a cluster if it goes round."""
        grid = self._grid
        queues = [(queue, list(queue)) for queue in (grid.ready, grid.spent)]
        mine = [group for _, kept in queues for group in kept if group.cta.cluster is cluster and group.state == READY]
        expires = self._may_expire()
        for queue, _ in queues:
            queue.clear()
        grid.texts.override = grid.texts.with_calls  # the accesses of native code are not seen
        try:
            found = examine(grid, cluster, mine, reverse=reverse, expires=expires)
        finally:
            grid.texts.override = None
        for queue, kept in queues:
            queue.clear()
            queue.extend([group for group in kept if group.cta.cluster is not cluster])
        if found is None:
            grid.ready.extend(mine)
            return False
        grid.parked += mine
        self._found.append(found)
        return True


class Expiries:
    """The times that waits with a time limit have ended because nothing else could move, since the last effect."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self.skipped = grid, 0
        """The time by which clocks were advanced."""
        self.begin()

    def begin(self) -> None:
        """Begin after an effect."""
        self._number, self._states = 0, list[State]()

    def recur(self) -> bool:
        """True if all warps are where they were at an earlier expiry, and so will do the same for ever.

        Warps that count their attempts go on. If clocks decide about their way, these advance by more and more.
        """
        self._number += 1
        later = self._number - _RETRIES
        if later <= 0:
            return False
        if self._states:
            if any(state.depends_on_clock() for state in self._states):
                self.skipped += 1 << min(later, _LONGEST_SKIP)
                return later > _MOST_SKIPS
            if all(state.is_back() for state in self._states):
                return True
        if later & (later - 1) == 0:  # a loop may be longer than one expiry
            self._states = [State(self._grid, cluster) for cluster in self._grid.clusters]
        return False
