"""Asynchronous copies of bytes: `cp.async` and `cp.async.bulk`, and the groups that threads wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag, WarploomError
from warploom.machine.copy.bulk import (
    READERS,
    READS,
    SMALL,
    WRITES,
    ThreadGroups,
    count_bytes,
    each_warp,
    global_span,
    groups_of,
    issuers,
    multicast_targets,
    next_number,
    of_lane,
    placing,
    require_cluster,
    require_live,
    shared_span,
    submit,
    threads_of,
    warps_of,
)
from warploom.machine.copy.reductions import DTYPES, reduce_values
from warploom.machine.core.group import WARP
from warploom.machine.core.registry import Run, executes
from warploom.machine.engine.addresses import address_of
from warploom.machine.instructions.mbarrier import barrier_at, barrier_touch, by_address, shared_address
from warploom.machine.memory.byte_memory import WIDTHS
from warploom.machine.memory.exact_sums import is_exact_sum
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.events import CommitGroup, Touch, Touches, run_of_bytes
from warploom.ptx.isa.table import Op

if TYPE_CHECKING:
    from warploom.machine.core.async_operations import Operation
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
_UNIT, _WORD = 16, 8
_MOST_TOGETHER = 16
"""Copies of a warp that complete together."""
_ELEMENT = {"s32": "i32", "s64": "i64", "b32": "u32", "b64": "u64"}
"""PTX types by their tensor-map names. PTX ISA 9.7.9.25.4.2 says that add.f32 flushes subnormal numbers; an H200 does
not.
"""


def _spread(value: Any, g: Group, mask: Array | None, dtype: Any) -> Array:
    """An operand as an array of the lanes that take part, copied."""
    if isinstance(value, int):
        return np.full(g.lanes if mask is None else np.count_nonzero(mask), value, dtype)
    out: Array = value.astype(dtype) if mask is None else value[mask].astype(dtype)
    return out


@lru_cache(maxsize=32)
def _full(lanes: int, size: int) -> bytes:
    """The source sizes of lanes that read everything."""
    return np.full(lanes, size, np.uint32).tobytes()


def _is_whole(source: Any, size: int) -> bool:
    """True if all lanes read everything."""
    return source is None or source.tobytes() == _full(len(source), size)


@executes("cp.async", "cp.async.ignore")
def copy(op: Op) -> Run:
    """4, 8 or 16 bytes per lane from global to shared memory; bytes past the source size become zero."""
    what, ignores = f"`{op.instruction.opcode}`", op.family == "cp.async.ignore"
    legal = (16,) if op["cache"] == "cg" else (4, 8, 16)

    def run(g: Group, mask: Array | None, dst: Any, src: Any, size: int, source: Any, policy: Any = None) -> None:
        if size not in legal:
            raise Diag.BAD_SHAPE.error(text=op.instruction.opcode, what=f"{size} bytes; it copies {legal}")
        if not ignores and _copied(g, mask, dst, src, size, source):
            return
        if g.cta.copies is not None:
            _take_over(g)
        mode = g.cta.mode
        whole_warp = mask is None is g.mask and not mode.immediate and (g.warps == 1 or mode.lockstep is not None)
        if not ignores and (source == size if isinstance(source, int) else _is_whole(source, size)):
            source = None
        if whole_warp and g.grid.reporter is None and source is None:
            last: _Copies | None = g.cta.state.get((SMALL, g.first_warp))
            if last is not None and last.takes(g, size):
                next_number(g, op)
                last.add(_Copy(g, op, size, _spread(dst, g, None, np.uint64), _spread(src, g, None, np.uint64), None))
                return
        places, origins = _spread(dst, g, mask, np.uint64), _spread(src, g, mask, np.uint64)
        if ignores:
            source = (0 if source else size) if isinstance(source, int) else np.where(source, 0, size)
        whole = source is None or (isinstance(source, int) and source == size)
        sizes = None if whole else _spread(source, g, mask, np.uint32)
        if sizes is not None and int(sizes.max()) > size:
            note = f"a source of {int(sizes.max())} bytes for a copy of {size}"
            raise Diag.BAD_SHAPE.error(text=op.instruction.opcode, what=note)
        made = _Copy(g, op, size, places, origins, sizes)

        def touches(some: Array) -> tuple[Touch, ...]:
            return (
                *_sources(origins[some], None if sizes is None else sizes[some], size),
                Touch("writes", "shared", g.cta.index, "generic", places[some].astype(np.int64), size),
            )

        groups, threads = groups_of(g.cta, SMALL), _threads(g, mask)
        each, group = [], None
        if g.grid.reporter is not None:
            each, group = each_warp(g, threads, touches), groups.open_group(g, threads)
        last = g.cta.state.get((SMALL, g.first_warp)) if whole_warp else None
        if last is not None and last.takes(g, size):
            next_number(g, op)
            last.add(made, each, group)
            return
        last = _Copies(g, size, what, made)
        if whole_warp:
            g.cta.state[SMALL, g.first_warp] = last
        last.operation = submit(g, op, last.complete, touches=each, group=group)
        groups.add(last.operation, threads)

    return run


def perform_copies(g: Group, end: int) -> None:
    """Perform the copies of a CTA that native code has noted, in order, up to a number."""
    ring = g.cta.copies
    if ring is None or ring.is_done(end):
        return
    for reader in g.cta.state.get(READERS, ()):
        reader.hide(ring.bounds(end), noted=True)
    while not ring.is_done(end):
        moved, left = ring.perform(end)
        g.grid.effects += 1
        if moved:
            count_bytes(g, "global->shared", moved)
        if left is not None:
            op = g.cta.program.ops[left.site]
            placing(g, op, _Copy(g, op, left.size, left.targets, left.sources, left.counts).complete)()


def _take_over(g: Group) -> None:
    """Let copies that native code has noted be operations: other instructions than the usual ones follow."""
    ring, groups = g.cta.copies, groups_of(g.cta, SMALL)
    if ring is None or ring.is_mixed:
        return
    for each in ring.taken_over():
        op, threads = g.cta.program.ops[each.site], np.arange(len(each.targets))
        copy = _Copy(g, op, each.size, each.targets, each.sources, each.counts)
        groups.set_commits(each.group)
        groups.add(submit(g, op, copy.complete), threads)
    groups.set_commits(ring.commits)


def _copied(g: Group, mask: Array | None, dst: Any, src: Any, size: int, source: Any) -> bool:
    """Copy by native code where the copy completes at once; False where the reference must do it."""
    grid, mode = g.grid, g.cta.mode
    if not mode.at_once or mode.flight.count or grid.routines is None or grid.regions is None:
        return False
    counts = None if source is None or (isinstance(source, int) and source == size) else source
    if isinstance(counts, int):
        counts = np.full(g.lanes, counts, np.uint32)
    moved = grid.routines.granules.copy_lanes(size, dst, src, mask, counts, grid.regions, g.cta.shared)
    if moved < 0:
        return False
    grid.effects += 2
    count_bytes(g, "global->shared", moved)
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """One instruction: the addresses of its lanes, and the bytes that each reads (None: all)."""

    g: Group
    op: Op
    size: int
    places: Array
    origins: Array
    sizes: Array | None

    def complete(self) -> None:
        """Read and write the bytes of the lanes."""
        g, what = self.g, f"`{self.op.instruction.opcode}`"
        if not g.cta.live_threads:
            return  # A thread may exit under its small copies: hardware keeps the memory until they are done.
        values = _read(g, self.origins, self.sizes, self.size, what)
        g.cta.shared.write(self.places, values, self.size, None, what, g.number)
        count_bytes(g, "global->shared", len(self.places) * self.size)


def _hide(g: Group, copies: Sequence[_Copy], number: int) -> None:
    """Let no reader see copies that were under way, as an operation of this number, when it began."""
    for reader in g.cta.state.get(READERS, ()):
        landing = [(number, int(each.places.min()), int(each.places.max()) + each.size) for each in copies]
        reader.hide(landing, noted=False)


class _Copies:
    """The copies of a warp that complete together: those that it issues one after the other into one group."""

    __slots__ = ("_all", "_g", "_size", "_what", "operation")

    def __init__(self, g: Group, size: int, what: str, first: _Copy) -> None:
        self._g, self._size, self._what, self._all = g, size, what, [first]
        self.operation: Operation | None = None

    def takes(self, g: Group, size: int) -> bool:
        """Return whether a copy of so many bytes per lane, by a group, may complete with these."""
        return (
            self._g is g
            and self.operation is not None
            and not self.operation.done
            and size == self._size
            and len(self._all) < _MOST_TOGETHER
        )

    def add(self, copy: _Copy, touches: Sequence[Touches] = (), group: CommitGroup | None = None) -> None:
        """Let another copy complete with these."""
        assert self.operation is not None
        self._all.append(copy)
        grid = self._g.grid
        grid.effects += 1
        if grid.reporter is not None:
            self.operation.issues += grid.reporter.issue(touches, group)

    def complete(self) -> None:
        """Read and write the bytes of all lanes in one go; where that is a fault, one after the other."""
        g, copies = self._g, self._all
        if self.operation is not None:
            _hide(g, copies, self.operation.number)
        if g.cta.live_threads and self._together(g):
            return
        for each in copies:
            placing(g, each.op, each.complete)()

    def _together(self, g: Group) -> bool:
        """Copy all bytes at once; False, and nothing is done, where that would be a fault."""
        copies, grid, shared = self._all, g.grid, g.cta.shared
        places, origins = copies[0].places, copies[0].origins
        if len(copies) > 1:
            places = np.concatenate([each.places for each in copies])
            origins = np.concatenate([each.origins for each in copies])
        whole = all(each.sizes is None for each in copies)
        if grid.routines is not None and grid.regions is not None and grid.buffers is None:
            routine, targets, counts = grid.routines.granules.copy_lanes, places.astype(np.uint32), None
            if not whole:
                parts = [np.full(len(e.places), e.size, np.uint32) if e.sizes is None else e.sizes for e in copies]
                counts = np.concatenate(parts)
            if routine(self._size, targets, origins, None, counts, grid.regions, shared) < 0:
                return False
            shared.wrote(places, self._size, None, g.number)
        elif not whole:
            return False
        else:
            try:
                values = grid.memory.load(origins, self._size, None, self._what)
                shared.index(places, self._size, self._what)
            except WarploomError:
                return False
            shared.write(places, values, self._size, None, self._what, g.number)
        count_bytes(g, "global->shared", len(places) * self._size)
        return True


def _close(g: Group) -> None:
    """Let no later copy complete with those that a group's warps have issued."""
    for warp in range(g.first_warp, g.first_warp + g.warps):
        g.cta.state.pop((SMALL, warp), None)


def _sources(origins: Array, sizes: Array | None, size: int) -> tuple[Touch, ...]:
    """The bytes that cp.async reads: `size` per lane, or byte by byte where lanes read less."""
    if sizes is None:
        return (Touch("reads", "global", None, "generic", origins.astype(np.int64), size),)
    runs = [
        np.arange(start, start + count) for start, count in zip(origins.tolist(), sizes.tolist(), strict=True) if count
    ]
    return (Touch("reads", "global", None, "generic", np.concatenate(runs).astype(np.int64), 1),) if runs else ()


def _threads(g: Group, mask: Array | None) -> Array:
    first = g.first_warp * WARP
    return np.arange(first, first + g.lanes) if mask is None else first + np.flatnonzero(mask)


def _read(g: Group, origins: Array, sizes: Array | None, size: int, what: str) -> Array:
    """One value per lane from global memory; nothing is read past a lane's source size."""
    memory = g.grid.memory
    if sizes is None:
        whole: Array = memory.load(origins, size, None, what)
        return whole
    values = np.zeros(len(origins), WIDTHS[size])
    full = sizes == size
    if full.any():
        values[full] = memory.load(origins[full], size, None, what)
    parts = values.view(np.uint8).reshape(-1, size)
    for lane in np.flatnonzero((sizes > 0) & ~full).tolist():
        count = int(sizes[lane])
        region, start = global_span(g, int(origins[lane]), count, size, what)
        parts[lane, :count] = region.data[start : start + count]
    return values


@executes("cp.async.commit_group")
def commit(op: Op) -> Run:
    """Commit the copies that each thread has issued as a group."""

    def run(g: Group, mask: Array | None) -> None:
        _commit(g, mask, SMALL)

    return run


def _commit(g: Group, mask: Array | None, *names: str) -> None:
    """Close the open groups of the executing threads: one group, which bulk copies keep in two halves."""
    reporter, kept, ring = g.grid.reporter, [groups_of(g.cta, name) for name in names], g.cta.copies
    if ring is not None and ring.under_way:
        if _has_all_threads(g, mask):
            ring.commit()
            return
        _take_over(g)
    if reporter is None and not any(groups.under_way for groups in kept):
        return  # Groups are counted from those under way: where there are none, an empty one changes nothing.
    threads = threads_of(g, mask)
    _close(g)
    if reporter is not None:
        for some in kept[0].alike(g, mask):
            reporter.tell("issue", "commits", group=kept[0].open_group(g, some))
    for groups in kept:
        groups.commit(threads)


def _wait(g: Group, mask: Array | None, groups: ThreadGroups, count: int) -> bool:
    reporter, ring = g.grid.reporter, g.cta.copies
    if ring is not None and ring.under_way:
        if _has_all_threads(g, mask):
            g.grid.late.complete_copies(g, ring.due(count))
            return True
        _take_over(g)
    if reporter is None and not groups.under_way:
        if ring is not None:
            ring.resume()
        return True
    threads = threads_of(g, mask)
    if groups.under_way and not groups.drains(g, threads, count):
        return False
    if reporter is not None:
        for some in groups.alike(g, mask):
            reporter.tell("wait", "drains", group=groups.complete_below(some, count), leave=count)
    return True


def _has_all_threads(g: Group, mask: Array | None) -> bool:
    """True if all live threads of a CTA execute an instruction together."""
    return mask is None is g.mask and g.lanes == g.cta.live_threads


@executes("cp.async.wait_group")
def wait(op: Op) -> Run:
    """Wait until all but the most recent groups of every thread are complete."""

    def run(g: Group, mask: Array | None, count: int) -> bool:
        return _wait(g, mask, groups_of(g.cta, SMALL), count)

    return run


@executes("cp.async.wait_all")
def wait_all(op: Op) -> Run:
    """Commit, and wait for every group."""

    def run(g: Group, mask: Array | None) -> bool:
        if g.token is None:
            g.token = SMALL
            _commit(g, mask, SMALL)
        if not _wait(g, mask, groups_of(g.cta, SMALL), 0):
            return False
        g.token = None
        return True

    return run


@executes("cp.async.mbarrier.arrive")
def arrive(op: Op) -> Run:
    """Arrive on a barrier when the copies that each lane has issued are complete."""
    counted = bool(op["noinc"])

    def run(g: Group, mask: Array | None, address: Any) -> None:
        groups = groups_of(g.cta, SMALL)
        _close(g)
        for at, lanes, many in by_address(g, mask, address):
            barrier = barrier_at(g.cta, at)
            if not counted:
                barrier.raise_pending(many)
            before = groups.of(threads_of(g, mask))
            for some in warps_of(g, lanes):
                count = g.lanes if isinstance(some, slice) else len(some)
                _arrive_later(g, op, at, count, before, groups.open_group(g, some))

    return run


def _arrive_later(
    g: Group, op: Op, address: int, count: int, before: tuple[Any, ...], group: CommitGroup | None
) -> None:
    def touches() -> tuple[Touch, ...]:
        return (barrier_touch("arrives", g.cta, address),)

    submit(g, op, lambda: barrier_at(g.cta, address).arrive(count), touches=touches, group=group, after=before)


def _checked_size(size: int) -> int:
    if size % _UNIT:
        raise Diag.MISALIGNED.error(what=f"The size of a bulk copy, {size} bytes,", align=_UNIT)
    return size


@executes("cp.async.bulk.load")
def load(op: Op) -> Run:
    """A run of bytes from global to shared memory, of one CTA or of each in a mask."""
    multicast, own = bool(op["multicast"]), op["dst"] == "shared::cta"

    def issue(g: Group, target: Cta, offset: int, src: int, size: int, signal: int) -> None:
        region, start = global_span(g, src, size, _UNIT, "A bulk copy")
        barrier_at(g.cta, signal)

        def complete() -> None:
            require_live(target, "A bulk copy writes")
            target.shared.async_write(offset, region.data[start : start + size])
            count_bytes(g, "global->shared", size)
            barrier_at(g.cta, signal).complete(size)

        def touches() -> tuple[Touch, ...]:
            return (
                run_of_bytes("reads", "global", None, src, size),
                run_of_bytes("writes", "shared", target.index, target.rank << RANK_SHIFT | offset, size),
                barrier_touch("completes", g.cta, signal),
            )

        submit(g, op, complete, touches=touches)

    def run(g: Group, mask: Array | None, dst: Any, src: Any, size: Any, barrier: Any, *rest: Any) -> None:
        for lane in issuers(g, mask):
            count, signal = _checked_size(of_lane(size, lane)), shared_address(of_lane(barrier, lane))
            address = shared_address(of_lane(dst, lane))
            owner, offset = shared_span(g.cta, address, count, _UNIT, "A bulk copy", own=own)
            if not multicast:
                issue(g, owner, offset, of_lane(src, lane), count, signal)
                continue
            for target in multicast_targets(g.cta, of_lane(rest[0], lane)):
                at = target.rank << RANK_SHIFT | signal & OFFSET_MASK
                issue(g, target, offset, of_lane(src, lane), count, at)

    return run


def _combined(g: Group, op: Op, current: Bytes, operand: Bytes, address: int) -> Bytes:
    """The bytes that a copy leaves at its destination: its own, or their reduction with those there."""
    if not op["op"]:
        return operand
    name = _ELEMENT.get(op["type"], op["type"])
    dtype = DTYPES[name]
    mine, theirs = operand.view(dtype), current.view(dtype)
    if g.grid.sums is not None and is_exact_sum(op["op"], dtype):
        sums = g.grid.sums.of(op.instruction)
        combined = sums.add(address + dtype.itemsize * np.arange(len(mine)), theirs, mine)[1]
    else:
        combined = theirs + mine if name == "f64" else reduce_values(op["op"], name, theirs, mine)
    out: Bytes = combined.view(np.uint8)
    return out


@executes("cp.async.bulk.send")
def send(op: Op) -> Run:
    """A run of bytes from the CTA's shared memory to a peer's, copied or combined, counted on a barrier there."""

    def issue(g: Group, dst: int, src: int, size: int, signal: int) -> None:
        source, start = shared_span(g.cta, src, size, _UNIT, "A bulk copy", own=True)
        target, offset = shared_span(g.cta, dst, size, _UNIT, "A bulk copy")
        barrier_at(g.cta, signal)

        def complete() -> None:
            require_live(source, "A bulk copy reads")
            require_live(target, "A bulk copy writes")
            data = source.shared.seen_by(g.grid.sight, start, start + size)[start : start + size].copy()
            there = target.shared.async_whole[offset : offset + size].copy()
            place = address_of(target.shared.async_whole) + offset
            target.shared.async_write(offset, _combined(g, op, there, data, place))
            count_bytes(g, "shared->shared", size)
            barrier_at(g.cta, signal).complete(size)

        def touches() -> tuple[Touch, ...]:
            return (
                run_of_bytes("reads", "shared", source.index, src, size),
                run_of_bytes("writes", "shared", target.index, dst, size),
                barrier_touch("completes", g.cta, signal),
            )

        submit(g, op, complete, touches=touches)

    def run(g: Group, mask: Array | None, dst: Any, src: Any, size: Any, barrier: Any) -> None:
        require_cluster(g, op)
        for lane in issuers(g, mask):
            count = _checked_size(of_lane(size, lane))
            places = [shared_address(of_lane(value, lane)) for value in (dst, src, barrier)]
            issue(g, places[0], places[1], count, places[2])

    return run


@executes("cp.async.bulk.store", "cp.async.bulk.store.masked")
def store(op: Op) -> Run:
    """A run of bytes from shared to global memory, copied, copied in part or combined; it belongs to a bulk group."""
    masked = op.family.endswith("masked")

    def issue(g: Group, dst: int, src: int, size: int, chosen: int | None, thread: int) -> None:
        source, start = shared_span(g.cta, src, size, _UNIT, "A bulk copy", own=True)
        region, offset = global_span(g, dst, size, _UNIT, "A bulk copy", writes=True)
        data: list[Bytes] = []

        def read() -> None:
            # The CTA may have exited: an H200 keeps its shared memory until it is read, and CUTLASS relies on it.
            data.append(source.shared.seen_by(g.grid.sight, start, start + size)[start : start + size].copy())

        def write() -> None:
            there = region.data[offset : offset + size]
            if chosen is None:
                there[:] = _combined(g, op, there, data.pop(), address_of(there))
            else:
                some = np.tile((chosen >> np.arange(_UNIT)) & 1 == 1, size // _UNIT)
                there[some] = data.pop()[some]
            count_bytes(g, "shared->global", size)

        def written() -> tuple[Touch, ...]:
            if chosen is None:
                return (run_of_bytes("writes", "global", None, dst, size),)
            some = np.flatnonzero(np.tile((chosen >> np.arange(_UNIT)) & 1 == 1, size // _UNIT))
            return (Touch("writes", "global", None, "async", dst + some, 1),)

        sources, whole = groups_of(g.cta, READS), groups_of(g.cta, WRITES)
        group = whole.open_group(g, thread)
        first = submit(
            g, op, read, touches=lambda: (run_of_bytes("reads", "shared", source.index, src, size),), group=group
        )
        second = submit(g, op, write, touches=written, group=group, after=(first,))
        sources.add(first, thread)
        whole.add(second, thread)

    def run(g: Group, mask: Array | None, dst: Any, src: Any, size: Any, *rest: Any) -> None:
        for lane in issuers(g, mask):
            issue(
                g,
                of_lane(dst, lane),
                shared_address(of_lane(src, lane)),
                _checked_size(of_lane(size, lane)),
                of_lane(rest[-1], lane) if masked else None,
                g.first_warp * WARP + lane,
            )

    return run


@executes("cp.async.bulk.commit_group")
def commit_bulk(op: Op) -> Run:
    """Commit the bulk copies that each thread has issued as a group."""

    def run(g: Group, mask: Array | None) -> None:
        _commit(g, mask, WRITES, READS)

    return run


@executes("cp.async.bulk.wait_group")
def wait_bulk(op: Op) -> Run:
    """Wait until all but the most recent bulk groups are complete, or with `.read` until their sources were read."""
    name = READS if op["read"] else WRITES

    def run(g: Group, mask: Array | None, count: int) -> bool:
        return _wait(g, mask, groups_of(g.cta, name), count)

    return run
