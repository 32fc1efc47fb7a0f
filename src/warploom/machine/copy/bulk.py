"""Shared parts of asynchronous copies: issuing lanes, permitted destinations, and groups that threads wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.machine.core.async_operations import Operation
from warploom.machine.core.group import WARP, Waitable
from warploom.machine.instructions.mbarrier import peer_at
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.events import WORD, CommitGroup, Touch, Touches, lanes_as_bits
from warploom.machine.observers.reporting import Reporter
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group
    from warploom.machine.memory.byte_memory import Region

Array = npt.NDArray[Any]

READS, WRITES, SMALL = "bulk groups (sources)", "bulk groups", "cp.async groups"
"""The kinds of groups that threads wait for: a bulk group in two halves (what `wait_group.read` asks for, and the
whole), and cp.async."""
READERS = "late readers"
"""The place, in a CTA's state, of those that do not see copies which were under way when they began to read."""
Landing = tuple[int, int, int]
"""A copy that completes: its number, the address of its first byte in shared memory, and the end of its last."""
_KINDS = {READS: "bulk", WRITES: "bulk", SMALL: "cp.async"}


def issuers(g: Group, mask: Array | None) -> Iterable[int]:
    """The lanes that execute an instruction, one after the other; each issues its own copy."""
    lanes = range(g.lanes) if mask is None else mask.nonzero()[0].tolist()
    return lanes if g.grid.reporter is None else _narrowed(g.grid.reporter, lanes)


def _narrowed(reporter: Reporter, lanes: Iterable[int]) -> Iterator[int]:
    """Lanes one after the other, of which events are reported meanwhile."""
    for lane in lanes:
        reporter.narrow(1 << lane)
        yield lane


def warps_of(g: Group, mask: Array | None) -> Iterator[Any]:
    """The executing threads of each warp of a group; events reported meanwhile concern that warp alone."""
    if g.warps == 1:
        yield threads_of(g, mask)
        return
    reporter, live = g.grid.reporter, lanes_as_bits(mask, g.lanes)
    before = reporter.lanes if reporter is not None else 0
    for number in range(g.warps):
        lanes = live & WORD << WARP * number
        if lanes:
            if reporter is not None:
                reporter.narrow(lanes)
            yield _threads_in(lanes, g.first_warp * WARP)
    if reporter is not None:
        reporter.narrow(before)


@lru_cache(maxsize=1 << 10)
def _threads_in(lanes: int, first: int) -> Array:
    """The threads of lanes, which are given as bits."""
    return np.array([first + lane for lane in range(lanes.bit_length()) if lanes >> lane & 1], np.intp)


def each_warp(g: Group, threads: Array, touches: Callable[[Array], Sequence[Touch]]) -> list[Touches]:
    """The touches of each warp of a group, from a function of some of the threads; empty in a run without observers."""
    if g.grid.reporter is None:
        return []
    warps = threads // WARP
    return [partial(touches, warps == warp) for warp in np.unique(warps)]


def of_lane(value: Any, lane: int) -> int:
    """An operand's value in one lane."""
    return value if isinstance(value, int) else int(value[lane])


def submit(
    g: Group,
    op: Op,
    run: Callable[[], None],
    *,
    touches: Touches | Sequence[Touches] | None = None,
    group: CommitGroup | None = None,
    after: Iterable[Operation] = (),
) -> Operation:
    """Issue an operation; a fault at its completion names the instruction that issued it."""
    grid, mode, placed = g.grid, g.cta.mode, placing(g, op, run)
    if mode.immediate and not mode.flight.count:
        grid.effects += 2
        if grid.reporter is None:
            placed()
        else:
            grid.reporter.at_once(touches, group, placed)
        return _FINISHED
    name = f"{g.cta.name} warp {g.first_warp}: {op.family} {next_number(g, op)}"
    operation = Operation(name, placed, after, touches, group)
    grid.submit(operation)
    return operation


def placing(g: Group, op: Op, run: Callable[[], None]) -> Callable[[], None]:
    """A function whose faults name the instruction that it completes."""
    cta, warp = g.cta, g.first_warp

    def placed() -> None:
        try:
            run()
        except WarploomError as error:
            if error.loc is not None:
                raise
            raise located(error, cta, warp, op) from None

    return placed


def located(error: WarploomError, cta: Cta, warp: int, op: Op) -> WarploomError:
    """A fault of an operation that completes, with the instruction that issued it."""
    notes = (op.instruction.text[:160], f"issued by {cta.name}, warp {warp}", *error.notes)
    return type(error)(error.diag, cta.grid.loc_of(op), notes, error.fields)


def next_number(g: Group, op: Op) -> int:
    """Number an operation by agent and family, in program order: the same under every schedule."""
    issued: dict[tuple[int, str], int] = g.cta.state.setdefault("operations issued", {})
    number = issued[g.first_warp, op.family] = issued.get((g.first_warp, op.family), -1) + 1
    return number


_FINISHED = Operation("", lambda: None)
_FINISHED.done = True


@dataclass(frozen=True, slots=True, eq=False)
class _Issued:
    """An operation that is not done: the threads that issued it, and how often each had committed."""

    operation: Operation
    threads: Array
    commits: Array
    fewest: int


class _Drain(Waitable):
    """A group of lanes waits for some operations of its threads; it looks again when the last of them is done."""

    __slots__ = ("_left", "_of")

    def __init__(self, of: ThreadGroups, operations: Sequence[Operation]) -> None:
        super().__init__()
        self._of, self._left = of, len(operations)
        for operation in operations:
            operation.then.append(self)

    def notify(self) -> None:
        self._left -= 1
        if not self._left:
            super().notify()

    def describe(self) -> str:
        return self._of.describe()


class ThreadGroups:
    """The operations of each thread of a CTA, by how often the thread had committed when it issued them."""

    __slots__ = ("_by_warp", "_most", "commits", "kind", "name")

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.kind = name, _KINDS[name]
        self.commits = np.zeros(threads, np.int64)
        self._most = 0
        """The most commits of a thread."""
        self._by_warp: dict[int, deque[_Issued]] = {}

    @property
    def under_way(self) -> bool:
        """True if operations may be incomplete."""
        return bool(self._by_warp)

    def add(self, operation: Operation, threads: Any) -> None:
        """An operation of some threads (an index, or an array of them); one that is done already needs no place."""
        if not operation.done:
            threads = np.atleast_1d(threads)
            commits = self.commits[threads]
            issued = _Issued(operation, threads, commits, int(commits.min()))
            for warp in range(int(threads[0]) // WARP, int(threads[-1]) // WARP + 1):
                if warp not in self._by_warp:
                    self._by_warp[warp] = deque()
                self._by_warp[warp].append(issued)

    def commit(self, threads: Any) -> None:
        """Close the open group of some threads, an empty one too."""
        self.commits[threads] += 1
        self._most = max(self._most, int(self.commits[threads].max()))

    def set_commits(self, count: int) -> None:
        """Let all threads have committed so often."""
        self.commits[:] = self._most = count

    def open_group(self, g: Group, threads: Any) -> CommitGroup | None:
        """The group that these threads have open, the latest of them where they differ; None without observers."""
        if g.grid.reporter is None:
            return None
        return CommitGroup(self.kind, int(self.commits[threads].max()))

    def alike(self, g: Group, mask: Array | None) -> Iterable[Any]:
        """The executing threads of each warp of a group, or all together if they have committed equally often."""
        if mask is None and g.warps > 1:
            commits = self.commits[threads_of(g, None)]
            if 1 not in (commits != commits[0]).tobytes():
                return (threads_of(g, None),)
        return warps_of(g, mask)

    def complete_below(self, threads: Any, leave: int) -> CommitGroup:
        """The number below which all groups are complete after a wait that leaves so many groups."""
        return CommitGroup(self.kind, max(int(self.commits[threads].min()) - leave, 0))

    def _open(self, warp: int) -> Iterable[_Issued]:
        """The operations of a warp's threads that are not done, in the order of issue."""
        issued = self._by_warp.get(warp)
        if issued is None:
            return ()
        while issued and issued[0].operation.done:
            issued.popleft()
        if not issued:
            del self._by_warp[warp]
        return issued

    def drains(self, g: Group, threads: Any, leave: int) -> bool:
        """Return whether at most the `leave` most recent groups of each of these threads are incomplete; else wait."""
        operations = self._incomplete(threads, leave)
        if not operations or g.grid.late.complete_for(g, lambda: all(operation.done for operation in operations)):
            return True
        g.wait(_Drain(self, [operation for operation in operations if not operation.done]))
        return False

    def _incomplete(self, threads: Any, leave: int) -> list[Operation]:
        """The operations under way of all but the `leave` most recent groups of these threads."""
        asked: Array | None = None
        found: dict[Operation, None] = {}
        for warp in self._warps(threads):
            for issued in self._open(warp):
                if issued.operation.done or issued.fewest >= self._most - leave:
                    continue
                if asked is None:
                    asked = np.zeros(len(self.commits), np.bool_)
                    asked[threads] = True
                who = issued.threads
                if issued.operation in found:
                    continue
                if 1 in (asked[who] & (issued.commits < self.commits[who] - leave)).tobytes():
                    found[issued.operation] = None
        return list(found)

    def _warps(self, threads: Any) -> Iterable[int]:
        """The warps of some threads (a slice, an index or an array of them)."""
        if isinstance(threads, slice):
            return range(threads.start // WARP, -(-threads.stop // WARP))
        found: list[int] = np.unique(np.atleast_1d(threads) // WARP).tolist()
        return found

    def of(self, threads: Any) -> tuple[Operation, ...]:
        """The operations in flight of these threads, committed or not."""
        asked = np.zeros(len(self.commits), np.bool_)
        asked[threads] = True
        open_ = [issued for warp in self._warps(threads) for issued in self._open(warp) if not issued.operation.done]
        return tuple(dict.fromkeys(issued.operation for issued in open_ if asked[issued.threads].any()))

    def describe(self) -> str:
        operations = {issued.operation for each in self._by_warp.values() for issued in each}
        return f"{self.name}: {sum(not operation.done for operation in operations)} operations incomplete"


def groups_of(cta: Cta, name: str) -> ThreadGroups:
    """The groups of a kind that the threads of a CTA keep."""
    groups: ThreadGroups | None = cta.state.get(name)
    if groups is None:
        groups = cta.state[name] = ThreadGroups(name, len(cta.live) * WARP)
    return groups


def threads_of(g: Group, mask: Array | None) -> Any:
    """The threads of the CTA that execute an instruction, as something that indexes an array of them."""
    first = g.first_warp * WARP
    return slice(first, first + g.lanes) if mask is None else first + mask.nonzero()[0]


def shared_span(cta: Cta, address: int, size: int, align: int, what: str, *, own: bool = False) -> tuple[Cta, int]:
    """The CTA that a range of shared memory lies in, and its offset there; `own` allows no other CTA's."""
    owner = cta if address >> RANK_SHIFT == cta.rank else peer_at(cta, address)
    offset, shared = address & OFFSET_MASK, owner.shared
    if own and owner is not cta:
        note = f"address {address:#x} lies in the CTA of rank {owner.rank}; {cta.name} has rank {cta.rank}"
        raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=what, space="the CTA's own shared")
    if offset % align:
        raise Diag.MISALIGNED.error(what=f"{what} at shared address {address:#x}", align=align)
    start = offset - shared.reserved
    if start < 0 or start + size > shared.size:
        note = f"bytes {start} to {start + size} of {shared.size} bytes of shared memory of {owner.name}"
        raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what=f"{what} at {address:#x}", space="shared")
    return owner, offset


def global_span(
    g: Group, address: int, size: int, align: int, what: str, *, writes: bool = False
) -> tuple[Region, int]:
    """The buffer that a range of global memory lies in, and its offset there."""
    memory = g.grid.memory
    if address % align:
        raise Diag.MISALIGNED.error(notes=(memory.describe(address),), what=f"{what} at {address:#x}", align=align)
    region = memory.find(address, size)
    if region is None:
        raise Diag.OUT_OF_BOUNDS.error(
            notes=(memory.describe(address),), what=f"{what} of {size} bytes", space="global"
        )
    if writes:
        require_writeable(region, what)
    return region, address - region.base


def multicast_targets(cta: Cta, mask: int) -> list[Cta]:
    """The CTAs of the cluster that a multicast mask names."""
    found = cta.cluster.ctas
    if mask >> len(found):
        what = f"The multicast mask {mask:#06x} names CTAs that a cluster of {len(found)} does not have."
        raise Diag.ASYNC_MISUSE.error(what=what)
    return [target for target in found if mask >> target.rank & 1]


def require_writeable(region: Region, what: str) -> None:
    """Refuse to write a read-only buffer."""
    if not region.writeable:
        raise Diag.READ_ONLY.error(notes=(f"the buffer is `{region.name}`",), what=what)


def require_live(cta: Cta, what: str) -> None:
    """Shared memory ends with its CTA: an operation that completes later has nothing to work on."""
    if not cta.live_threads:
        raise Diag.CTA_EXITED.error(what=f"{what} shared memory of {cta.name} after that CTA has exited.")


def require_cluster(g: Group, op: Op) -> None:
    """Asynchronous writes to shared memory of the cluster need a launch with clusters, if only of one CTA.

    Without one, an H200 ends the kernel with `illegal instruction`, whichever CTA the address names.
    """
    if not g.grid.explicit_cluster:
        what = f"`{op.instruction.opcode}` needs a launch with a cluster size, and this launch has none."
        raise Diag.ASYNC_MISUSE.error(what=what)


def count_bytes(g: Group, way: str, size: int) -> None:
    """Add to the bytes moved."""
    moved = g.grid.moved
    moved[way] = moved.get(way, 0) + size
