"""mbarriers: objects in shared memory that count arrivals and bytes through phases.

The state of an `Mbarrier` is a row of words that native code finds too (`routines/mbarrier_rows.py`); the eight bytes
in shared memory hold a mark, so that a barrier which something else has overwritten is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warploom.diagnostics import Diag
from warploom.machine.core.group import EXPIRED, WARP, Waitable
from warploom.machine.core.late_arrivals import arrive_later, is_late
from warploom.machine.core.names import name_of
from warploom.machine.core.registry import Run, executes
from warploom.machine.memory.byte_memory import SHARED_WINDOW
from warploom.machine.memory.shared_memory import OFFSET_MASK, RANK_SHIFT
from warploom.machine.observers.events import BarrierName, Touch, lanes_as_bits, run_of_bytes
from warploom.machine.routines.mbarrier_rows import EXPECTED, MARK, PENDING, PHASE, TESTS, TX, WAITERS
from warploom.ptx.isa.table import Op
from warploom.ptx.syntax.model import Sink

if TYPE_CHECKING:
    from warploom.machine.core.cta import Cta
    from warploom.machine.core.group import Group

Array = npt.NDArray[Any]

_new = tuple.__new__  # the constructor of a named tuple takes twice as long
BARRIER_BYTES = 8
_INVALIDATED = "invalidated mbarriers"
"""In the state of a CTA: who has invalidated the mbarriers that were there, by offset."""
_GONE = 0xFFFF_FFFF_FFFF_FFFF


class Mbarrier(Waitable):
    """One mbarrier: arrivals pending in this phase and expected in each, bytes outstanding, and phases completed."""

    __slots__ = ("cta", "exchange", "label", "late", "limit", "offset", "reporter", "row", "word")
    expires = True

    def __init__(self, cta: Cta, offset: int, count: int) -> None:
        super().__init__()
        self.cta, self.offset, self.exchange = cta, offset, cta.cluster.exchange()
        self.row = row = cta.mbarrier_rows.take(offset)
        row[PENDING] = row[EXPECTED] = count
        row[TX] = row[PHASE] = row[TESTS] = row[WAITERS] = 0
        self.limit, self.reporter = cta.grid.machine.barrier_tx_limit, cta.grid.reporter
        self.label: BarrierName | None = None
        self.late = bool(cta.grid.late_barrier) and is_late(cta.grid, self.name)
        self.word = memoryview(cta.shared.whole.data)[offset : offset + BARRIER_BYTES].cast("Q")
        self._fill(MARK)

    @property
    def pending(self) -> int:
        """Arrivals that this phase still waits for."""
        found: int = self.row[PENDING]
        return found

    @property
    def expected(self) -> int:
        """Arrivals of each phase."""
        found: int = self.row[EXPECTED]
        return found

    @property
    def tx(self) -> int:
        """Bytes outstanding in this phase."""
        found: int = self.row[TX]
        return found

    @property
    def phase(self) -> int:
        """Phases that are complete."""
        found: int = self.row[PHASE]
        return found

    def wait(self, group: Group) -> None:
        """Let a group wait for the phase."""
        self.row[WAITERS] = 1
        group.wait(self)

    def wait_too(self, group: Group) -> None:
        """Let a group that waits for another barrier wait for this one as well."""
        if group not in self.waiters:
            self.row[WAITERS] = 1
            self.waiters.append(group)

    def notify(self) -> None:
        self.row[WAITERS] = 0
        super().notify()

    def _fill(self, value: int) -> None:
        shared, place = self.cta.shared, slice(self.offset, self.offset + BARRIER_BYTES)
        self.word[0] = value
        if shared.two_views:
            shared.async_whole[place] = shared.whole[place]

    @property
    def state(self) -> int:
        """The state that arrive returns: the phase, and the arrivals it still needs."""
        return (self.phase & 0xFFFF_FFFF) << 32 | self.pending

    @property
    def valid(self) -> bool:
        """Return whether its bytes are still those of a barrier."""
        return bool(self.word[0] == MARK)

    def arrive(self, count: int = 1) -> None:
        """Count arrivals; the last one completes the phase if no bytes are outstanding."""
        if self.late:
            arrive_later(self.cta.grid, self.name, partial(self._if_valid, self._arrive, count))
        else:
            self._arrive(count)

    def arrive_unreported(self) -> None:
        """The same for one arrival that the caller reports."""
        reporter, self.reporter = self.reporter, None
        try:
            self._arrive(1)
        finally:
            self.reporter = reporter

    def _if_valid(self, act: Callable[[int], None], count: int) -> None:
        """An arrival that was kept back counts, unless the barrier has ended since."""
        if self.cta.mbarriers.get(self.offset) is self:
            act(count)

    def _arrive(self, count: int) -> None:
        row = self.row
        pending = row[PENDING] - count
        if pending < 0:
            room = f"which waits for {self.pending} of {self.expected}"
            what = f"{count} arrivals on {self.name} in phase {self.phase}, {room}."
            raise Diag.BARRIER_OVERFLOW.error(what=what)
        if self.exchange is not None:
            self.exchange.arrive(self.cta.grid.current)
        if self.reporter is not None:
            self.tell("arrive", "arrives", count)
        row[PENDING] = pending
        if pending == 0 and row[TX] == 0:
            self._complete()

    def expect(self, count: int) -> None:
        """Let the phase wait for so many more bytes."""
        if self.reporter is not None:
            self.tell("arrive", "expects", count)
        self._count_bytes(count)

    def complete(self, count: int) -> None:
        """So many bytes have arrived; they may come before they are expected."""
        if self.late:
            arrive_later(self.cta.grid, self.name, partial(self._if_valid, self._complete_bytes, count))
        else:
            self._complete_bytes(count)

    def _complete_bytes(self, count: int) -> None:
        if self.exchange is not None:
            self.exchange.arrive(self.cta.grid.current)
        if self.reporter is not None:
            self.tell("arrive", "completes", count)
        self._count_bytes(-count)

    def _count_bytes(self, count: int) -> None:
        row, limit = self.row, self.limit
        tx = row[TX] + count
        if not -limit <= tx <= limit:
            what = f"The transaction count of {self.name} goes from {self.tx} to {tx}; it holds {-limit} to {limit}."
            raise Diag.BARRIER_OVERFLOW.error(what=what)
        row[TX] = tx
        if tx == 0 and row[PENDING] == 0:
            self._complete()

    def drop(self, count: int) -> None:
        """Expect fewer arrivals in all later phases."""
        if count > self.expected:
            what = f"{self.name} expects {self.expected} arrivals; {count} cannot be dropped."
            raise Diag.BARRIER_OVERFLOW.error(what=what)
        self.tell("arrive", "drops", count)
        self.row[EXPECTED] -= count

    def raise_pending(self, count: int) -> None:
        """Wait for more arrivals in this phase only: what cp.async.mbarrier.arrive without .noinc does."""
        limit = self.cta.grid.machine.barrier_count_limit
        if self.pending + count > limit:
            what = f"{self.name} would wait for {self.pending + count} arrivals; the limit is {limit}."
            raise Diag.BARRIER_OVERFLOW.error(what=what)
        self.tell("arrive", "raises", count)
        self.row[PENDING] += count

    def _complete(self) -> None:
        row = self.row
        row[PHASE] += 1
        row[PENDING] = row[EXPECTED]
        row[TESTS] = 0
        if self.exchange is not None:
            self.exchange.turn()
        self.tell("complete", "phase", phase=self.phase - 1, operation=0)
        self.notify()

    def passed(self, group: Group) -> None:
        """A group has seen that the latest phase is complete."""
        if self.exchange is not None:
            self.exchange.leave(group)
        self.tell("wait", "waits", phase=self.phase - 1)

    def invalidate(self) -> None:
        """Invalidate the barrier and wake its waiters, which then fault."""
        self.tell("free", "frees")
        del self.cta.mbarriers[self.offset]
        self.cta.mbarrier_rows.give_back(self.row)
        self._fill(_GONE)
        self.notify()

    def tell(
        self,
        kind: str,
        verb: str,
        count: int = 0,
        *,
        phase: int | None = None,
        operation: int | None = None,
        passed: bool = True,
    ) -> None:
        """Let observers know what happens to the barrier, in its present phase unless another is given."""
        reporter = self.reporter
        if reporter is not None:
            now = self.phase if phase is None else phase
            reporter.at_barrier(kind, verb, self.label or self.named, now, count, operation, passed)

    @property
    def named(self) -> BarrierName:
        """Its name in events."""
        if self.label is None:
            address, name = self.cta.rank << RANK_SHIFT | self.offset, self.name
            self.label = _new(BarrierName, ("mbarrier", self.cta.index, address, name))
            if self.reporter is not None and self.reporter.native is not None:
                self.reporter.native.names[self.offset] = name
        return self.label

    @property
    def name(self) -> str:
        """Its name in messages."""
        return name_of(self.cta, self.offset)

    def describe(self) -> str:
        missing = [f"{self.pending} of {self.expected} arrivals missing"] if self.pending else ["all arrivals are in"]
        if self.tx:
            missing.append(f"{self.tx} bytes missing" if self.tx > 0 else f"{-self.tx} bytes more than announced")
        return f"{self.name} phase {self.phase}: {', '.join(missing)}"


def barrier_at(cta: Cta, address: int) -> Mbarrier:
    """The barrier at a shared address, the CTA's own or a peer's."""
    owner = cta if address >> RANK_SHIFT == cta.rank else peer_at(cta, address)
    barrier: Mbarrier | None = owner.mbarriers.get(address & OFFSET_MASK)
    if barrier is None or barrier.word[0] != MARK:
        raise _absent(owner, address, barrier)
    return barrier


def peer_at(cta: Cta, address: int) -> Cta:
    """The CTA of the cluster that a shared address lies in; it must still be running."""
    rank, ctas = address >> RANK_SHIFT, cta.cluster.ctas
    if not 0 <= rank < len(ctas):
        note = f"address {address:#x} names CTA {rank} of a cluster of {len(ctas)}"
        raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what="The address", space="shared")
    if not ctas[rank].live_threads:
        what = f"{ctas[rank].name} (rank {rank}) has exited; its shared memory is gone."
        raise Diag.CTA_EXITED.error(what=what)
    return ctas[rank]


def barrier_touch(verb: str, cta: Cta, address: int) -> Touch:
    """The barrier that an operation will arrive at, or whose bytes it will count."""
    return barrier_touch_of(verb, cta.cluster.ctas[address >> RANK_SHIFT].index, address)


@lru_cache(maxsize=1 << 10)
def barrier_touch_of(verb: str, owner: tuple[int, int, int], address: int) -> Touch:
    return run_of_bytes(verb, "shared", owner, address, BARRIER_BYTES, "generic")


def _check_place(owner: Cta, address: int) -> None:
    """Eight aligned bytes inside shared memory."""
    start, size = (address & OFFSET_MASK) - owner.shared.reserved, owner.shared.size
    if address % BARRIER_BYTES:
        raise Diag.MISALIGNED.error(what=f"The mbarrier address {address:#x}", align=BARRIER_BYTES)
    if not 0 <= start <= size - BARRIER_BYTES:
        note = f"address {address:#x} is byte {start} of {size} bytes of shared memory"
        raise Diag.OUT_OF_BOUNDS.error(notes=(note,), what="The mbarrier address", space="shared")


def _absent(owner: Cta, address: int, barrier: Mbarrier | None) -> Exception:
    _check_place(owner, address)
    offset, shared = address & OFFSET_MASK, owner.shared
    content = int.from_bytes(shared.whole[offset : offset + BARRIER_BYTES].tobytes(), "little")
    found = f"shared memory of {owner.name} holds {content:#018x} at {address:#x}"
    if barrier is not None:
        notes = [f"{found}: something else was written over the barrier"]
    else:
        live = [name_of(owner, at) for at in sorted(owner.mbarriers)]
        more = f" and {len(live) - 8} more" if len(live) > 8 else ""
        there = f"its barriers are {', '.join(live[:8])}{more}" if live else "it has no barriers"
        notes = [f"{found}; {there}"]
        if (invalidated := owner.state.get(_INVALIDATED, {}).get(offset)) is not None:
            notes.append(
                f"{invalidated}: that must come after everything that uses the barrier, arrivals in flight too"
            )
    return Diag.BARRIER_NOT_INITIALISED.error(notes=notes, what=name_of(owner, offset))


def shared_address(address: int) -> int:
    """A shared address from a shared or a generic one."""
    return address - SHARED_WINDOW if address >= SHARED_WINDOW else address


def by_address(g: Group, mask: Array | None, address: Any) -> Iterable[tuple[int, Any, int]]:
    """The lanes that take part, by shared address: (address, lanes or None for all, how many)."""
    reporter = g.grid.reporter
    if isinstance(address, int):
        yield shared_address(address), mask, g.lanes if mask is None else mask.tobytes().count(1)
        return
    live = address if mask is None else address[mask]
    if len(live) <= WARP and len(each_at := live.tolist()) == len(set(each_at)):  # one lane at each
        lanes_of, one = range(g.lanes) if mask is None else mask.nonzero()[0].tolist(), _one_lane(g.lanes)
        for each, lane in sorted(zip(each_at, lanes_of, strict=True)):
            if reporter is not None:
                reporter.narrow(1 << lane)
            yield shared_address(each), one[lane], 1
        return
    for each in np.unique(live).tolist():
        lanes = address == each if mask is None else mask & (address == each)
        if reporter is not None:
            reporter.narrow(lanes_as_bits(lanes, g.lanes))
        yield shared_address(each), lanes, int(np.count_nonzero(lanes))


@lru_cache(maxsize=8)
def _one_lane(count: int) -> Array:
    """For each of so many lanes, a mask with this lane alone."""
    found = np.eye(count, dtype=np.bool_)
    found.setflags(write=False)
    return found


def _total(value: Any, lanes: Array | None, count: int, default: int = 1) -> int:
    """The sum of an operand over some lanes."""
    if value is None:
        return default * count
    if isinstance(value, int):
        return value * count
    return int((value if lanes is None else value[lanes]).sum(dtype=np.int64))


@executes("mbarrier.init")
def init(op: Op) -> Run:
    """Make a barrier; exactly one lane may."""

    def run(g: Group, mask: Array | None, address: Any, count: Any) -> None:
        g.grid.effects += 1
        limit = g.grid.machine.barrier_count_limit
        for at, lanes, many in by_address(g, mask, address):
            require_own(g, at)
            _check_place(g.cta, at)
            offset, number = at & OFFSET_MASK, _total(count, lanes, many) // many
            if not 1 <= number <= limit:
                what = f"{name_of(g.cta, offset)} is initialised with {number} arrivals; it takes 1 to {limit}."
                raise Diag.BARRIER_OVERFLOW.error(what=what)
            before: Mbarrier | None = g.cta.mbarriers.get(offset)
            twice = f"{many} lanes initialise {name_of(g.cta, offset)} at once" if many > 1 else ""
            if before is not None and before.valid:
                twice = before.describe()
            if twice:
                raise Diag.BARRIER_REINITIALISED.error(notes=(twice,), what=name_of(g.cta, offset))
            if before is not None:
                g.cta.mbarrier_rows.give_back(before.row)
            made = g.cta.mbarriers[offset] = Mbarrier(g.cta, offset, number)
            g.grid.barriers[made.name] = None
            made.tell("alloc", "allocates", number)

    return run


def require_own(g: Group, address: int) -> None:
    """Only arrive, expect_tx and complete_tx reach the barriers of other CTAs."""
    if address >> RANK_SHIFT != g.cta.rank:
        rank = address >> RANK_SHIFT
        note = f"address {address:#x} lies in the CTA of rank {rank}; {g.cta.name} has rank {g.cta.rank}"
        raise Diag.BAD_BARRIER.error(notes=(note,), what="Only arrivals and byte counts reach another CTA's mbarrier.")


@executes("mbarrier.inval")
def inval(op: Op) -> Run:
    """End a barrier."""

    def run(g: Group, mask: Array | None, address: Any) -> None:
        g.grid.effects += 1
        by: dict[int, str] = g.cta.state.setdefault(_INVALIDATED, {})
        for at, _, many in by_address(g, mask, address):
            require_own(g, at)
            for _ in range(many):
                barrier_at(g.cta, at).invalidate()
            by[at & OFFSET_MASK] = f"{g.name} has invalidated it, {g.grid.loc_of(op)}"

    return run


@executes("mbarrier.expect_tx")
def expect_tx(op: Op) -> Run:
    """Announce bytes."""

    def run(g: Group, mask: Array | None, address: Any, count: Any) -> None:
        g.grid.effects += 1
        for at, lanes, many in by_address(g, mask, address):
            barrier_at(g.cta, at).expect(_total(count, lanes, many))

    return run


@executes("mbarrier.complete_tx")
def complete_tx(op: Op) -> Run:
    """Pretend that bytes arrived."""

    def run(g: Group, mask: Array | None, address: Any, count: Any) -> None:
        g.grid.effects += 1
        for at, lanes, many in by_address(g, mask, address):
            barrier_at(g.cta, at).complete(_total(count, lanes, many))

    return run


@executes("mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.arrive.expect_tx", "mbarrier.arrive_drop.expect_tx")
def arrive(op: Op) -> Run:
    """Every lane arrives once, or with its count; bytes are announced first, and a drop lowers later phases."""
    drops, expects = "arrive_drop" in op.family, op.family.endswith("expect_tx")
    local, wanted = op["space"] in ("shared", "shared::cta"), not isinstance(op.operands["state"], Sink)

    def one(g: Group, at: int, lanes: Array | None, many: int, operand: Any) -> int:
        if local and at >> RANK_SHIFT != g.cta.rank:
            require_own(g, at)
        barrier = barrier_at(g.cta, at)
        state = barrier.state if wanted else 0
        count = many
        if expects:
            barrier.expect(operand * many if isinstance(operand, int) else _total(operand, lanes, many))
        elif operand is not None:
            count = _total(operand, lanes, many)
            if count < many:
                raise Diag.BARRIER_OVERFLOW.error(what=f"An arrival on {barrier.name} counts 0; it counts at least 1.")
        if drops:
            barrier.drop(count)
        barrier.arrive(count)
        return state

    def run(g: Group, mask: Array | None, address: Any, operand: Any = None) -> Any:
        g.grid.effects += 1
        if isinstance(address, int):
            many = g.lanes if mask is None else mask.tobytes().count(1)
            return one(g, address if address < SHARED_WINDOW else address - SHARED_WINDOW, mask, many, operand)
        states = np.zeros(g.lanes, np.uint64)
        for at, lanes, many in by_address(g, mask, address):
            states[lanes] = one(g, at, lanes, many, operand)
        return states

    return run


@executes("mbarrier.arrive.noComplete", "mbarrier.arrive_drop.noComplete")
def arrive_incomplete(op: Op) -> Run:
    """Arrive without completing the phase; lanes see each other's arrivals in their order."""
    drops = "arrive_drop" in op.family

    def run(g: Group, mask: Array | None, address: Any, count: Any) -> Array:
        g.grid.effects += 1
        states, reporter = np.zeros(g.lanes, np.uint64), g.grid.reporter
        for at, lanes, _ in by_address(g, mask, address):
            require_own(g, at)
            barrier = barrier_at(g.cta, at)
            for lane in range(g.lanes) if lanes is None else np.flatnonzero(lanes).tolist():
                number = count if isinstance(count, int) else int(count[lane])
                states[lane] = barrier.state
                if reporter is not None:
                    reporter.narrow(1 << lane)
                if number >= barrier.pending and barrier.tx == 0:
                    what = f"A noComplete arrival would complete phase {barrier.phase} of {barrier.name}."
                    raise Diag.BARRIER_OVERFLOW.error(what=what)
                if drops:
                    barrier.drop(number)
                barrier.arrive(number)
        return states

    return run


@executes("mbarrier.pending_count")
def pending_count(op: Op) -> Run:
    """The arrivals that were pending when a state was taken."""

    def run(g: Group, mask: Array | None, state: Any) -> Any:
        if isinstance(state, int):
            return state & 0xFFFF_FFFF
        return state.astype(np.uint32)

    return run


__all__ = [
    "BARRIER_BYTES",
    "Mbarrier",
    "barrier_at",
    "barrier_touch",
    "barrier_touch_of",
    "by_address",
    "name_of",
    "peer_at",
    "require_own",
    "shared_address",
]


_PATIENCE = 64
"""The number of times that test_wait may fail in one phase before the tester is suspended: a loop of them must not
starve the rest."""


def _passed_parity(barrier: Mbarrier, parity: int) -> bool:
    """Return whether the phase of a parity is complete; only bit 0 of the operand counts, as in ptxas's code."""
    return barrier.phase & 1 != parity & 1


def _passed_state(barrier: Mbarrier, state: int) -> bool:
    behind = barrier.phase - (state >> 32)
    if not 0 <= behind <= 1:
        what = f"{barrier.name} is in phase {barrier.phase}; a state of phase {state >> 32} can no longer be tested."
        raise Diag.BAD_BARRIER.error(what=what)
    return behind == 1


@executes("mbarrier.try_wait", "mbarrier.try_wait.parity", "mbarrier.test_wait", "mbarrier.test_wait.parity")
def wait(op: Op) -> Run:
    """Test whether a phase has completed; try_wait suspends until it has, a time limit passes, or the schedule gives
    up.
    """
    passed = _passed_parity if op.family.endswith("parity") else _passed_state
    tests = "test_wait" in op.family

    def run(g: Group, mask: Array | None, address: Any, operand: Any, limit: Any = None) -> Any:
        if not (isinstance(address, int) and isinstance(operand, int)):
            return _each(g, mask, address, operand)
        at = shared_address(address)
        if at >> RANK_SHIFT != g.cta.rank:
            require_own(g, at)
        barrier = barrier_at(g.cta, at)
        if passed(barrier, operand):
            g.token = None
            barrier.passed(g)
            return True
        answer = _not_yet(g, [barrier])
        if answer is not None:
            barrier.tell("wait", "waits", passed=False)
        return answer

    def _not_yet(g: Group, barriers: list[Mbarrier]) -> Any:
        """False where the instruction may end now, None where the group is suspended."""
        first = barriers[0]
        if g.token == EXPIRED:
            g.token = None
            return False
        if tests and first.row[TESTS] < _PATIENCE:
            first.row[TESTS] += 1
            return False
        if not g.grid.eager and g.grid.choose("giveup", ("wait", "give up")):
            return False
        first.wait(g)
        for barrier in barriers[1:]:
            barrier.wait_too(g)
        return None

    def _each(g: Group, mask: Array | None, address: Any, operand: Any) -> Any:
        """Every lane tests for itself; the group waits while none has passed."""
        done = np.zeros(g.lanes, np.bool_)
        waiting: list[Mbarrier] = []
        answers: list[tuple[Mbarrier, Array, bool]] = []
        operands = np.broadcast_to(np.asarray(operand, np.uint64), (g.lanes,))
        for at, lanes, _ in by_address(g, mask, address):
            require_own(g, at)
            barrier = barrier_at(g.cta, at)
            for value in np.unique(operands if lanes is None else operands[lanes]).tolist():
                these = operands == value if lanes is None else lanes & (operands == value)
                done_here = passed(barrier, value)
                answers.append((barrier, these, done_here))
                if done_here:
                    done |= these
                else:
                    waiting.append(barrier)
        if not done.any() and _not_yet(g, waiting) is None:
            return None
        g.token = None
        _answer(g, answers)
        return done

    return run


def _answer(g: Group, answers: list[tuple[Mbarrier, Array, bool]]) -> None:
    """Some lanes have passed a barrier, others have not."""
    reporter = g.grid.reporter
    for barrier, lanes, passed in answers:
        if reporter is not None:
            reporter.narrow(lanes_as_bits(lanes, g.lanes))
        if passed:
            barrier.passed(g)
        else:
            barrier.tell("wait", "waits", passed=False)
